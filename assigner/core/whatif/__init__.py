"""What-if plans: what a change would move, computed on a sketch of a group and not on the group.

In order: `sketch` describes a group by names, as a person or a file does, and translates it into a strategy's problem.
`changes` makes another sketch of it: a consumer more or less, another weight, another topic. `report` solves a sketch
and says in words who moves where and why.

For `assigner plan`, simulations and tests; needs no service and no store. May import `planning` and the interface of
strategies. Not promised: the very plan that the service would make. A sketch has no sessions, no handoffs in flight and
no consumers that are leaving.
"""
