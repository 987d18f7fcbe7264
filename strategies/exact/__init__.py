"""Solves problems exactly: counts per topic and member as a flow network, optimal by an ordered list of objectives.

The story in the order of files:

1. `targets` and `table`: what each member should have, per row and over all; `caps` enforces caps.
2. `initial`: an initial assignment that is nearly optimal, split by class where racks count.
3. `model`: the counts as a `FlowProblem`; `network`: its stages and their limits; `objectives`: the costs.
4. `improve`: one objective after the other is made optimal by augmenting paths; `residual_search` (`racked_search` with
   racks) finds the paths, or proves that there are none.
5. `placement`: owners that fit the counts.
6. `keep_owners`: the plan where the budget is spent before the proof.

`solver` ties them together. It imports `strategies.problem` only. Not promised: a proof beyond `solver.BUDGET` steps or
`solver.MOST_CELLS` cells, or for sets of different sizes.
"""
