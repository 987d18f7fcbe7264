"""Decides where a request goes, and when it has to be held back while its partition changes hands.

Routers use it by way of `assigner.routing`. `partitioner` maps keys to partitions as Kafka's producers do.
"""
