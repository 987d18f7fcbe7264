"""Plans a group: from its records to a strategy's problem, and from the solution to writes that begin moves.

In order: `copartitions` finds the topics whose partitions move as one. `request` translates names to numbers, pins what
must not move, builds the problem in slices, and translates the solution back into targets. `rollout` adds the
constraints of a rolling deploy and relaxes them where a partition would stay without an owner. `execution` turns
targets into moves, and moves into writes, within the limits of the group; `in_flight` counts the handoffs against those
limits.

When a plan is made is decided in `core.coordination.plan_cycle`; the strategy is run by `assigner.leader`. May import
`loads`, `transitions`, `leader_context` and what is below them, and of strategies only the interface.

Not promised: that a plan is carried out as it was made. It is advisory: each move is checked again when it begins, and
its write has preconditions.
"""
