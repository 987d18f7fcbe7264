"""Leads classic Kafka groups: the driver around `assigner.core.kafka_groups.classic`, where a group is led.

A classic group's members choose a leader among themselves that assigns, by JoinGroup and SyncGroup. What they agreed
upon is one record, written before anybody is told; so is every committed offset. Requests come from gateways, through
the gRPC service `KafkaGroups` or, where the gateway runs in the same process, directly.

It may import `offsets` (which writes its commits), `storage`, `core` and what lies below them. `admin`, `server` and
gateways are above it; it reaches the deletion of groups through a callable. In the order of reading:

- `service`: `ClassicGroupService`, which implements `assigner.api.ClassicGroups` for the groups that are led here.
- `coordinator`: one group in one term: requests in, answers out, timers, and the write in between.
- `records`: loads and writes what a group consists of, under the fences of the term.
- `watching`: what changes of the group's options and topics mean for it.
- `assignor`: computes assignments, where the service assigns in place of a member.
- `commits`: commits offsets of members under the same fences, by the one writer of offsets.
- `expiry`: deletes the offsets of groups that have had no members for long.
- `listing`: what is on record of an organization's groups.
- `held`: counts the requests that wait here.
- `spans`: traces the calls at the leader.

What is promised is that no answer is ahead of the store. Not promised: that a member whose answer got lost is told
again without asking, or that the groups of a listing are of the same moment.
"""
