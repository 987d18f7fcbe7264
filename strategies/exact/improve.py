"""Optimises lexicographically: the first objective, then the next within the optima of the first, and so on.

Every augmenting path that is applied lowers the cost of the objective at hand, which is a sum of bounded parts, and
leaves those before it as they are; so each objective ends. When its search finds no path, that is a proof, and it is
kept as limits for the objectives after it. A budget bounds the work: once it is spent, the rest stays, unproved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assigner.strategies.exact.network import UNLIMITED, AugmentingPath, AugmentStep, Network, NetworkStage
from assigner.strategies.exact.objectives import Balance, Halves, Objective
from assigner.strategies.exact.racked_search import RackedSearch
from assigner.strategies.exact.residual_search import Budget, Search, multiplied
from assigner.strategies.problem.shares import Indices
from assigner.strategy import BoolArray


def improve(network: Network, objectives: Sequence[Objective], budget: Budget) -> bool:
    """Optimise the network's counts; whether that is proved for all objectives."""
    return all(_optimise(network, objective, budget) for objective in objectives)


def _optimise(network: Network, objective: Objective, budget: Budget) -> bool:
    search = _search(network, objective, budget)
    if not search.is_optimal():
        while True:
            paths = search.paths()
            if not paths:
                break
            if isinstance(objective, Balance):
                _balance(network, objective, _limit_between(objective, paths), budget)
                search = _search(network, objective, budget)
            else:
                search.applied(_apply(_like(paths, search), objective, objective.stage(network)))
        if budget.gone:
            return False
    search.narrow()
    return True


def _search(network: Network, objective: Objective, budget: Budget) -> Search:
    return Search(network, objective, budget) if network.topic is None else RackedSearch(network, objective, budget)


def _balance(network: Network, balance: Balance, limit: float, budget: Budget) -> None:
    """Transfer from all members above the limit to all below it, as long as there are paths."""
    search = _search(network, Halves(balance, limit), budget)
    while True:
        paths = search.paths()
        if not paths:
            return
        search.applied(_apply(_like(paths, search), balance, network.load))


def _limit_between(balance: Balance, paths: list[AugmentingPath]) -> float:
    """Compute a limit between the prices of the first path's giver and taker."""
    taker, giver = paths[0][0], paths[0][-1]
    prices = [
        balance.price(np.array([step.place]), step.stage.count[[step.place]] - (0 if step.more else 1))[0]
        for step in (taker, giver)
    ]
    return float(sum(prices) / 2)


def _like(paths: list[AugmentingPath], search: Search) -> list[AugmentingPath]:
    return multiplied(paths, search.prices(), len(search.of_member))


# --- applying paths -------------------------------------------------------------------------------------------------


def _apply(paths: list[AugmentingPath], objective: Objective, stage: NetworkStage) -> list[AugmentStep]:
    """Apply each path as often as it lowers the cost. `stage`: the stage that the objective prices."""
    steps = [step for path in paths for step in path]
    number = np.repeat(np.arange(len(paths)), [len(path) for path in paths])
    times = _times(steps, number, objective, stage)
    for step, often in zip(steps, times[number].tolist(), strict=True):
        step.stage.count.reshape(-1)[step.place] += often if step.more else -often
    return steps


def _times(steps: list[AugmentStep], number: Indices, objective: Objective, stage: NetworkStage) -> Indices:
    most = np.full(int(number[-1]) + 1, UNLIMITED, np.int64)
    np.minimum.at(most, number, [_room(step) for step in steps])
    paid = _PricedSteps.of(
        [at for at, step in enumerate(steps) if step.stage is stage], steps, number, objective, stage
    )
    # The cost is convex, so the last repetition that still lowers it decides.
    enough = np.ones(len(most), np.int64)
    while (enough < most).any():
        middle = (enough + most + 1) // 2
        lowers = paid.repetition_cost(middle) < 0
        enough = np.where(lowers, middle, enough)
        most = np.where(lowers, most, middle - 1)
    return enough


def _room(step: AugmentStep) -> int:
    count, low, high = (int(a.reshape(-1)[step.place]) for a in (step.stage.count, step.stage.low, step.stage.high))
    return high - count if step.more else count - low


@dataclass(frozen=True)
class _PricedSteps:
    """The steps of paths that the objective prices."""

    objective: Objective
    path: Indices
    place: Indices
    count: Indices
    more: BoolArray

    @classmethod
    def of(
        cls, chosen: list[int], steps: list[AugmentStep], path: Indices, objective: Objective, stage: NetworkStage
    ) -> _PricedSteps:
        place = np.array([steps[at].place for at in chosen], np.int64)
        more = np.array([steps[at].more for at in chosen], np.bool_)
        return cls(objective, path[chosen], place, stage.count.reshape(-1)[place].astype(np.int64), more)

    def repetition_cost(self, number: Indices) -> NDArray[Any]:
        """[path] the cost of applying it for the `number`-th time."""
        times = number[self.path]
        price = self.objective.price(self.place, self.count + np.where(self.more, times - 1, -times))
        total = np.zeros(len(number), self.objective.dtype)
        np.add.at(total, self.path, np.where(self.more, price, -price))
        return total
