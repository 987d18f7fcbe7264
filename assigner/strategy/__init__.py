"""Defines the Strategy interface, and explains a strategy's result.

A strategy is a pure function from who could own what, and who does, to who should. Its author imports this package and
nothing else of the service. In the order of reading:

- `interface`: `Problem`, `Solution` and the protocol `Strategy`; re-exported here.
- `reasons`: why each partition has another owner, worked out from the problem and the result.
- `explanation`: what a solution costs and achieves, counted the same way.
- `registry`: strategies by name, from the entry points `assigner.strategies`.

May import `errors` and numpy. Not promised: that two strategies agree, or that a strategy is fast; see
`docs/interfaces/strategy.md` for what each must keep.
"""

from assigner.strategy.interface import (
    NONE,
    BoolArray,
    FloatArray,
    IntArray,
    KeyArray,
    Members,
    PlacesStandbys,
    Problem,
    Solution,
    Strategy,
    Topics,
    name_keys,
)

__all__ = [
    "NONE",
    "BoolArray",
    "FloatArray",
    "IntArray",
    "KeyArray",
    "Members",
    "PlacesStandbys",
    "Problem",
    "Solution",
    "Strategy",
    "Topics",
    "name_keys",
]
