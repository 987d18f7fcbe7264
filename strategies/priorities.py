"""The options of `sticky_balanced`, and the order of priorities they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strategies.options import one_of, refuse_unknown

BALANCES = ("both", "topic", "topic_only", "global")
RACKS = ("before_moves", "after_moves", "ignore")

_LEVELS = {
    "both": ("unowned", "balance", "spread", "moves"),
    "topic": ("unowned", "spread", "balance", "moves"),
    "topic_only": ("unowned", "spread", "moves"),
    "global": ("unowned", "balance", "moves", "spread"),
}


@dataclass(frozen=True)
class Priorities:
    balance: str
    racks: str

    @property
    def levels(self) -> tuple[str, ...]:
        """Names of levels for `strategies.case`, the most important one first."""
        levels = list(_LEVELS[self.balance])
        if self.racks != "ignore":
            moves = levels.index("moves")
            levels.insert(moves if self.racks == "before_moves" else moves + 1, "racks")
        return tuple(levels)


def priorities(strategy: str, options: Mapping[str, Any]) -> Priorities:
    """Raises `InvalidInput` for what nobody knows. The tolerance is read by `strategies.weighted`."""
    refuse_unknown(strategy, options, ("balance", "racks", "tolerance"))
    return Priorities(one_of(strategy, options, "balance", BALANCES), one_of(strategy, options, "racks", RACKS))
