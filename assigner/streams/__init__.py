"""What the streams of consumers and of routers have in common: leases, outboxes, one stream per name, and batched acks.

`leases` (the lease a session registers under, and the write of the registration), `outbox` (the partitions a stream has
to say something about), `registry` (the streams of one instance, and the listener that feeds their outboxes), `acks`
(acks of handoffs, tried together and then one by one). May import `storage`, `core` and what lies below them;
`assigner.members` and `assigner.routers` build on it.

Not promised: anything about what is sent. That is decided in `core` and said by the two packages above.
"""
