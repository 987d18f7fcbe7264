"""Serves Kafka 4's members (`group.protocol=consumer`): they are ordinary members of assigner groups.

What a call means is decided in `assigner.core.kafka_groups.modern`; here is what waits and does. A gateway keeps what
its clients were told, and nothing that can't be had again: a member that it does not know is looked up by its session,
and goes on where it was.

- `handlers`: the table of this protocol's calls, and everything behind it put together.
- `heartbeats`: one ConsumerGroupHeartbeat, from the checks to the held answer.
- `member`, `members`: the members that call here: they join, are resumed, renewed, let go of partitions and leave.
- `subscriptions`: which topics of Kafka a member's names and pattern are, now and when new topics appear.
- `patterns`: RE2, with bounds.
- `offsets`: commits and fetches of such groups.
- `views`: lists, descriptions and deletion of such groups.
- `encoding`: kio's entities of the calls that this protocol alone has.

It may import the interfaces of `assigner.api`, mirrors, and the rest of the gateway. Not promised: that a client's
answer is never late. An answer that is held back waits for no longer than the heartbeat interval.
"""
