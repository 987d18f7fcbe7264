"""Decides where a request goes, and when it has to be held back while its partition changes hands.

Routers use it by way of `assigner.routing`. It imports `model` and `errors` only: no clock, no thread, no task.

`partitioner` maps keys to partitions as Kafka's producers do. `table` is what a router knows of owners, `permit`
whether it may use it now, `cutover` the five steps of each partition that changes hands, and `balance` picks partitions
for requests without a key.

Not promised: that every row the service had is seen. What was superseded before it was sent never arrives.
"""
