"""Decides each step of a handoff: of one partition, or of a co-partition set, from its old owner to its new one.

    warming -> ready -> [freezing] -> [releasing -> released] -> complete -> (deleted)

`[freezing]` only where routers are registered, `[releasing -> released]` in exclusive groups and from Kafka clients,
`complete` in overlap groups. The record is in the store, so every edge is a write, and each edge is decided in one
place:

    (none)            -> warming     a plan: `planning.execution`
    warming           -> ready       the new owner's Ready: `acks.ready`; -> failed, if it says why it could not
    failed            -> warming     with another new owner, or abandoned: `progress`, counted by `warm_failures`
    ready             -> freezing    routers are registered, and ack by records of their own: `lifecycle._forward`
    ready, freezing   -> releasing   the Release of an exclusive group: `lifecycle._forward`
    releasing         -> released    the old owner's Released: `acks.released`
    released          -> (deleted)   the flip of an exclusive group, with its new assignment: `lifecycle._forward`
    ready, freezing   -> complete    the flip of an overlap group, with its new assignment: `lifecycle._forward`
    complete          -> (deleted)   the old owner's Released: `acks.released`; or it is gone: `lifecycle._after_flip`
    ready, freezing   -> the same    also without all acks, overdue and the group's choice: `lifecycle._goes_on`
    any               -> (deleted)   overdue or void, so the old owner stays: `lifecycle._overdue`, `next_action`

So a Release is decided in `lifecycle`, turned into a write by `progress` and `core.transitions`, derived for the old
owner's stream in `core.consumer_view`, and sent by `assigner.members`.

In order: `lifecycle` (what a handoff needs next, and its deadlines), `progress` (the write that does it), `acks` (what
consumers' acks do), `warm_failures` (who failed to warm what, and the quarantine), `deleted_freezes` (handoffs that
others deleted while routers held requests back). Which routers must ack is for `core.routers.quorum` to say. May
import `planning` and what is below it. Not promised: that a handoff ends by a flip. It may be abandoned at any step.
"""
