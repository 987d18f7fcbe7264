"""Runs the group member behind a streaming query, on a thread of its own.

- `thread`: `MemberThread` runs the member's event loop in the process that plans, and passes calls to it.
- `member`: `QueryMember` claims assigned partitions and releases them at batch boundaries.
- `claims`: the ownership marker beside a committed offset, by which a restarted query trusts its checkpoint.
- `progress`: `ProgressReporter` commits offsets, and probes who owns a partition after contact was lost.
- `admin_calls`: calls about the group that need no membership.

It imports the client library, and of this package `options`, `positions`, `kafka_offsets`, `state` and `sinks.fence`.
Not promised: that a former owner stops reading at once; its running batch ends first, and a fenced sink rejects it.
"""
