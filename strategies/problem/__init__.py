"""Prepares a strategy's problem in the terms that the solvers share. It imports `assigner.strategy` and no solver.

- `options`: option values, and the order of objectives they stand for.
- `units`: co-partitioned topics folded into rows of units; a unit is what has one owner.
- `current_owners`: which owners may keep their units, and which units can't move.
- `member_order`: in which order equal members are served.
- `components`: members without a common topic are separate problems.
- `rack_classes`: units of a row by the racks of their replicas.
- `shares`: fair shares by water-filling, in proportion to capacity.
- `validation`: whether a problem is well-formed, before anything is computed.

Not promised: stable interfaces. A strategy outside this repository builds on `assigner.strategy` alone.
"""
