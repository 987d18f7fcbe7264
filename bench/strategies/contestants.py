"""Who is measured: our strategies, Kafka's assignors and the models, all asked in the same way.

Each is given a problem and answers with the time of several calls and who owns what then; moves and balance are counted
by the same code for all. A contestant that keeps what it finds starts from the same ownership as the others; one that
does not (a hash, a range, a model that reads ownership in its own way) starts from what it made of the group before,
else everything would seem to move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from assigner.errors import InvalidInput
from assigner.strategy import Problem, Strategy
from assigner.strategy.registry import installed, prepare
from bench.strategies.bounds import Balance
from bench.strategies.kafka_assignors import ASSIGNORS, KafkaAssignors
from bench.strategies.models import MODELS, Model
from bench.strategies.timed_calls import Answer, Effort, Failed, timed

DEFAULT = "sticky_balanced"
STICKY = f"{DEFAULT}, both"
GLOBAL = f"{DEFAULT}, global"
UNIFORM = "Kafka uniform"
COOPERATIVE = "Kafka cooperative-sticky"
RANGE = "Kafka range"

QUICK_ONES = ("jump_hash", "range", "upstream (model)")
"""Others than the default that are quick in groups of any size."""
MOST_PAIRS = 30_000_000
"""Members x partitions up to which the rest is run."""
MOST_UNEQUAL, MOST_WITH_RACKS = 1_000_000, 10_000_000
"""The same for Kafka's cooperative-sticky where subscriptions differ or racks are known: it takes minutes above."""


class Contestant(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def own_start(self) -> bool:
        """Starts from what it made itself of the group before."""
        ...

    def refuses(self, problem: Problem) -> str | None:
        """Why it is not asked, if so."""
        ...

    def solve(self, problem: Problem, effort: Effort) -> Answer:
        """Raises `Failed`."""
        ...


@dataclass(frozen=True)
class Ours:
    name: str
    strategy: Strategy
    options: Mapping[str, Any] = field(default_factory=dict)
    own_start: bool = False
    pairwise: bool = False

    def refuses(self, problem: Problem) -> str | None:
        return _too_large(problem) if self.pairwise else None

    def solve(self, problem: Problem, effort: Effort) -> Answer:
        given = replace(problem, options=self.options)
        try:
            return timed(lambda: self.strategy.assign(given).owner, effort)
        except InvalidInput as error:
            raise Failed(str(error)) from error


@dataclass(frozen=True)
class Kafkas:
    process: KafkaAssignors
    assignor: str
    own_start: bool = False

    @property
    def name(self) -> str:
        return f"Kafka {self.assignor}"

    def refuses(self, problem: Problem) -> str | None:
        if self.assignor != "cooperative-sticky":
            return None
        pairs = problem.members.count * len(problem.owner)
        unequal = not problem.members.subscription.all() and pairs > MOST_UNEQUAL
        racks = problem.topics.replica_racks is not None and pairs > MOST_WITH_RACKS
        return "takes minutes" if unequal or racks else None

    def solve(self, problem: Problem, effort: Effort) -> Answer:
        self.process.load(problem)
        return self.process.run(self.assignor, effort)


@dataclass(frozen=True)
class Modelled:
    name: str
    model: Model
    own_start: bool = True

    def refuses(self, problem: Problem) -> str | None:
        return None if self.name in QUICK_ONES else _too_large(problem)

    def solve(self, problem: Problem, effort: Effort) -> Answer:
        return timed(lambda: self.model(problem), replace(effort, warm_up=0.0, rounds=1))


def _too_large(problem: Problem) -> str | None:
    large = problem.members.count * len(problem.owner) > MOST_PAIRS
    return f"more than {MOST_PAIRS:,} members x partitions" if large else None


def ours() -> list[Contestant]:
    """The default with both balances, then every other strategy that is installed."""
    default = prepare(DEFAULT)
    found: list[Contestant] = [
        Ours(STICKY, default),
        Ours(GLOBAL, default, {"balance": Balance.GLOBAL.value}),
    ]
    others = (name for name in installed() if name != DEFAULT)
    return found + [Ours(name, prepare(name), own_start=True, pairwise=name not in QUICK_ONES) for name in others]


def kafkas(process: KafkaAssignors) -> list[Contestant]:
    return [Kafkas(process, assignor, own_start=assignor == "range") for assignor in ASSIGNORS]


def models() -> list[Contestant]:
    return [Modelled(name, model) for name, model in MODELS.items()]
