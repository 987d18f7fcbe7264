"""The handoff of one partition, or of a co-partition set, from its old owner to its new one.

    warming -> ready -> [freezing] -> [releasing -> released] -> complete -> (deleted)
       \\-> failed        routers       exclusive groups            overlap groups

The record of a handoff is in the store, so every edge is a write, and each edge is decided in one place:

    (start)   -> warming     a plan: `planning.execution` warming   -> ready       the new owner's Ready: `acks.ready`;
    -> failed, if it says why it could not failed    -> warming     elsewhere, or abandoned:
    `progress._retry_elsewhere`, counted by `warm_failures` ready     -> freezing    if routers are registered:
    `lifecycle._forward`; they ack by records of their own ready, freezing -> releasing   the Release of an exclusive
    group: `lifecycle._forward` releasing -> released    the old owner's Released: `acks.released` released  ->
    (deleted)   the cut-over (flip) of an exclusive group, with the new assignment: `lifecycle._forward` ready, freezing
    -> complete    the cut-over (flip) of an overlap group, with the new assignment: `lifecycle._forward` complete  ->
    (deleted)   the old owner's Released: `acks.released`; or it is gone: `lifecycle._after_flip` any       -> (deleted)
    abandoned after a deadline, or void: `lifecycle._overdue`, `lifecycle.next_action`

So a Release is decided in `lifecycle`, turned into a write in `progress`, spelled in `core.transitions` and derived for
the old owner's stream in `core.consumer_view`; `assigner.members` sends it.

In order: `lifecycle` (what a handoff needs next, and its deadlines), `progress` (the write that does it), `acks` (what
consumers' acks do), `warm_failures` (who failed to warm what, and the quarantine). May import `planning` and what is
below it. Not promised: that a handoff ends by cutting over. Whatever happens, the partition keeps an owner on record.
"""
