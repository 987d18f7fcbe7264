"""What-if plans: computes which partitions a change would move, from a description of the group, without a store.

In order: `group_spec` describes a group by names, as a file does, and translates it into a strategy's problem.
`changes` derives another spec from it: a member more or less, another weight, another topic. `report` solves a spec
and reports which partition moves where and why.

For `assigner plan`, simulations and tests; needs no service and no store. May import `planning` and the interface of
strategies. Not promised: the very plan that the service would make. A spec has no sessions, no handoffs in flight and
no consumers that are leaving.
"""
