"""`sticky_balanced`: even over all topics and per topic, and as little as possible moves.

In this order:

1. **Valid.** Only subscribed members, nothing new for members on hold (they keep what they have), no more than a
   member's cap, pinned partitions stay. A partition has no owner only where no member may have it.
2. **Even over all.** Where members may take the same topics, each has the floor or the ceiling of its share of the
   whole, in proportion to capacity; else no chain of gifts makes the loads more even. Groups of members without a
   common topic have nothing to do with each other.
3. **Even per topic.** Each member has the floor or the ceiling of its share of every topic; where (2) is in the way,
   as near to it as can be (the squared distances added up are at their minimum).
4. **Near.** As few partitions as possible on members in racks where they have no replica.
5. **Few moves.** The minimum among all that is as good by the above.

The option `balance` changes this: `both` is the above, `topic` puts (3) before (2), `topic_only` leaves (2) out,
`global` comes without (3), which then only decides between results with equally few moves. The option `racks` puts (4)
before (5) (`before_moves`), after it (`after_moves`) or leaves it out (`ignore`).

All of this is exact and proved, and `Explanation.lower_bound` is the number of moves, as long as topics (or, with
racks, kinds of partitions) x members is at most four million, and the proof takes no more than some seconds of work.
Beyond that `Explanation.unproved` says so: owners stay, what has none is filled in, and gifts from one member to
another make things better as long as one does (`assigner.strategies.exact.keep_owners`); racks may not be looked at,
and the lower bound may be too low. Also not proved: co-partition sets of different sizes in one group (a large one is
not traded for two small ones), and partitions of unequal weights, which `assigner.strategies.weighted.solver` deals
with.

It ends because every step lowers the cost of one level and leaves those above as they are
(`assigner.strategies.exact.improve`). Given its own result it returns the same again. How busy nodes say they are only
decides between members that are equal otherwise.
"""

from __future__ import annotations

import numpy as np

from assigner.strategies.problem.member_order import original, renumbered, serving_order
from assigner.strategies.problem.options import must_move, objective_order
from assigner.strategies.problem.rack_classes import Classes, rack_classes
from assigner.strategies.problem.units import Units, fold, split_slots, unfold
from assigner.strategies.problem.validation import check
from assigner.strategies.standbys.placement import place_standbys
from assigner.strategies.standbys.promotion import prefer_standby_holders
from assigner.strategies.sticky_solver import free, solve
from assigner.strategy import NONE, IntArray, Problem, Solution
from assigner.strategy.explanation import Explanation


class StickyBalanced:
    name = "sticky_balanced"

    def assign(self, problem: Problem) -> Solution:
        check(problem)
        explained = self._owners(problem)
        return Solution(explained.owner, place_standbys(problem, explained.owner), explained)

    def place_standbys(self, problem: Problem, owner: IntArray) -> IntArray:
        return place_standbys(problem, owner)

    def _owners(self, problem: Problem) -> Explanation:
        """New owners, a lower bound on the moves, and whether that was proved to be the best."""
        chosen = objective_order(self.name, problem.options)
        if problem.members.count == 0:
            return Explanation(problem, np.full(len(problem.owner), NONE, np.int32), 0)
        order = serving_order(problem.members.load)
        given = problem if order is None else renumbered(problem, order)
        units = fold(given)
        classes = None if chosen.racks == "ignore" else rack_classes(units, given)
        found = solve(units, given.members, chosen, classes, problem.options)
        kind = _kind(units, given, classes, found.unproved)
        owner = prefer_standby_holders(units, given.members, found.owner, kind)
        owner = unfold(units, given, owner)
        if order is not None:
            owner = original(owner, order)
        bound = _bound(given, units, found.lower_bound)
        return Explanation(problem, _unless_same(owner, problem), bound, unproved=found.unproved)


def _kind(units: Units, problem: Problem, classes: Classes | None, unproved: bool) -> IntArray | None:
    """What may trade places when standbys are promoted. Where shares are bent by pins, holds or caps, or other counts
    might look better to the next plan, counts must stay as they are: units are of one kind then."""
    if classes is not None:
        return classes.of_units
    counts_move = free(units, problem.members) and not unproved
    return None if counts_move else np.zeros(len(units.owner), np.int32)


def _unless_same(owner: IntArray, problem: Problem) -> IntArray:
    """Nothing changes: the very array of the problem, which spares everybody the comparison."""
    return problem.owner if bool((owner == problem.owner).all()) else owner


def _bound(problem: Problem, units: Units, bound: int) -> int:
    # Of a slot whose topics disagree on their owner, more or fewer partitions than all may move.
    return must_move(problem) + (0 if split_slots(units, problem) else bound)


strategy = StickyBalanced()
