"""The leader of a group as one state machine: store events and the time in, writes and the next wake-up out.

`machine` is the entrance: `Coordination.observe` takes a changed record, `decide` returns what to write, whether to run
the strategy, which leases to ask about and when to come back. It fixes the order of decisions and makes none itself:

    partitions     one partition: leave alone, remove, bump the epoch, advance its handoff, or ask for a plan
    removal        deletes ownership of partitions and groups that are gone, below a raised epoch floor
    plan_cycle     when a plan is made, for which causes, and when it is made again
    publishing     the plan record: generation, quarantine, conditions, epoch floor
    lease_checks   when the store is asked whether a lease is over

It may import everything of the core but `client`, `whatif` and what instances need (`leader_spread`,
`offset_commits`). `assigner.leader.coordinator` drives it. Not promised: any memory. A new leader starts from the
records; only deadlines, cooldowns, failure counts and moves that have not begun are lost.
"""
