"""Decides everything about routers on the service's side: who registers, what a freeze waits for, what they are sent.

`sessions` (join, resume, takeover, and who may call for a session), `quorum` (which routers a freeze waits for), `acks`
(what an ack does), `route_view` (what a router is told about a partition, and which changes concern it). May import
`group`, `writes` and what lies below them. `handoff` asks the quorum; `assigner.routers` drives the rest. What happens
inside a router process is decided in `core.routing`.

Not promised: that a router that acked has stopped for ever. An ack is about one handoff; at the next one every router
that is registered then is asked again.
"""
