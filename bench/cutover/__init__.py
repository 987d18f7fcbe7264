"""Measures what requests go through while pods join, drain and are killed, beside a plain Kafka consumer group.

`python -m bench.cutover` is the command. In the order of reading:

1. `course`: who joins, drains and is killed when, and when which request is due. `recording`: what is written down.
2. `analysis`: what must not be (lost, stale, two owners, order), the pauses and the latencies. `report`: the tables.
3. `wire`, `pod`, `router`: the processes of our contestants. `routed_group` starts them with a service on a real etcd.
4. `kafka_group`: the peer, with its consumers in `KafkaPods.java`.

Java 17 and Kafka's jars must be there for the peer. Not promised: what machines of their own would do, since all
share one. A pause is seen by requests, so none can look shorter than the distance of two requests of a partition.
"""
