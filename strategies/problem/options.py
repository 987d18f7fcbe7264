"""Parses the options of strategies; those of `sticky_balanced` determine the order of objectives.

An unknown option is an error: a misspelt one must not be ignored silently.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from assigner.errors import InvalidInput
from assigner.strategy import NONE, Problem


def refuse_unknown(strategy: str, options: Mapping[str, Any], known: Collection[str] = ()) -> None:
    unknown = sorted(set(options) - set(known))
    if unknown:
        offer = f"its options are {', '.join(sorted(known))}" if known else "it has no options"
        raise InvalidInput(f"{strategy} does not know the option {unknown[0]!r}; {offer}")


def one_of(strategy: str, options: Mapping[str, Any], name: str, values: tuple[str, ...]) -> str:
    """Read an option's value; the first of `values` if it is not given."""
    value = options.get(name, values[0])
    if value not in values:
        raise InvalidInput(f"{strategy}: {name} is {value!r}; it must be one of {', '.join(values)}")
    return str(value)


BALANCES = ("both", "topic", "topic_only", "global")
RACKS = ("before_moves", "after_moves", "ignore")

_OBJECTIVES = {
    "both": ("unowned", "balance", "spread", "moves"),
    "topic": ("unowned", "spread", "balance", "moves"),
    "topic_only": ("unowned", "spread", "moves"),
    "global": ("unowned", "balance", "moves", "spread"),
}


@dataclass(frozen=True)
class ObjectiveOrder:
    """The values of the options `balance` and `racks`."""

    balance: str
    racks: str

    @property
    def objectives(self) -> tuple[str, ...]:
        """Names of objectives for `assigner.strategies.exact.model`, the most important one first."""
        objectives = list(_OBJECTIVES[self.balance])
        if self.racks != "ignore":
            moves = objectives.index("moves")
            objectives.insert(moves if self.racks == "before_moves" else moves + 1, "racks")
        return tuple(objectives)


def objective_order(strategy: str, options: Mapping[str, Any]) -> ObjectiveOrder:
    """Read `balance` and `racks`. Raises `InvalidInput` for unknown options and values. `strategies.weighted.solver`
    reads the tolerance."""
    refuse_unknown(strategy, options, ("balance", "racks", "tolerance"))
    return ObjectiveOrder(one_of(strategy, options, "balance", BALANCES), one_of(strategy, options, "racks", RACKS))


def must_move(problem: Problem) -> int:
    """Count the partitions whose owner may not keep them, because it does not subscribe to their topic."""
    if problem.members.subscription.all():
        return 0
    topic = np.repeat(np.arange(problem.topics.count), problem.topics.partitions)
    loose = (problem.owner != NONE) & ~problem.pinned
    return int((~problem.members.subscription[problem.owner[loose], topic[loose]]).sum())
