"""Simulates each strategy on membership traces, in parallel, and measures moves, imbalance and pauses.

Each (group, strategy) is one simulation on an executor, which loads strategies by entry point; so the package has to be
installed on every node. Changes within the debounce window make one plan, as in the service.

Not promised: real durations. Pauses are partitions times the seconds in `Model`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast

from assigner.errors import InvalidInput
from assigner.spark.jobs.sql import views
from assigner.spark.jobs.traces import CRASH, JOIN, LEAVE, TOPIC
from assigner.strategy import NONE, IntArray, Members, Problem, Strategy, Topics, name_keys
from assigner.strategy.explanation import Explanation
from assigner.strategy.registry import installed, load

MAX_PARTITIONS = 1_000_000
RESULT = (
    "group string, strategy string, partitions int, members int, changes int, moves long, forced long, "
    "imbalance_mean double, imbalance_max int, pause_s double, warming_s double, plan_ms double, hours double"
)
_SCHEMA = pa.schema(
    [
        ("group", pa.string()),
        ("strategy", pa.string()),
        ("partitions", pa.int32()),
        ("members", pa.int32()),
        ("changes", pa.int32()),
        ("moves", pa.int64()),
        ("forced", pa.int64()),
        ("imbalance_mean", pa.float64()),
        ("imbalance_max", pa.int32()),
        ("pause_s", pa.float64()),
        ("warming_s", pa.float64()),
        ("plan_ms", pa.float64()),
        ("hours", pa.float64()),
    ]
)


@dataclass(frozen=True)
class Model:
    """Assumed durations, in seconds per partition."""

    warm: float = 20.0
    """Warming, before a handoff or after a crash."""
    handover: float = 0.5
    """The pause of a graceful handoff."""
    ttl: float = 30.0
    """Until a crash of the owner is noticed."""
    debounce: float = 1.0


class TraceEvent(NamedTuple):
    ts_us: int
    what: str
    name: str
    value: float


@dataclass
class SimulationOutcome:
    """The result of one strategy on one group's trace."""

    partitions: int = 0
    members: int = 0
    changes: int = 0
    moves: int = 0
    """Partitions taken from a member that stays."""
    forced: int = 0
    """Partitions of members that left or crashed."""
    imbalance_mean: float = 0.0
    imbalance_max: int = 0
    pause_s: float = 0.0
    """Partition-seconds without a working owner."""
    warming_s: float = 0.0
    plan_ms: float = 0.0
    hours: float = 0.0


def simulate(
    spark: SparkSession, traces: DataFrame, strategies: Sequence[str] = (), model: Model | None = None
) -> DataFrame:
    """Simulate the traces; one row per group and strategy. No strategies: all that are installed here."""
    chosen = list(strategies) or list(installed())
    for name in chosen:
        load(name)
    model = model or Model()

    def run(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
        group, strategy = (value.as_py() for value in key)
        outcome = asdict(simulate_group(_trace_events(group, table), load(strategy), model))
        return pa.Table.from_pylist([{"group": group, "strategy": strategy, **outcome}], schema=_SCHEMA)

    strategy_names = spark.createDataFrame([(name,) for name in chosen], "strategy string")
    # The number of tasks follows from the cores, not from the bytes to shuffle.
    tasks = 4 * spark.sparkContext.defaultParallelism
    crossed = traces.crossJoin(broadcast(strategy_names)).repartition(tasks, "group", "strategy")
    return crossed.groupBy("group", "strategy").applyInArrow(run, RESULT)


def compare(spark: SparkSession, outcomes: DataFrame) -> DataFrame:
    """Compare strategies; one row each, the best first: the fewest moves among those about as balanced as the best
    balanced one."""
    outcomes.createOrReplaceTempView("outcomes")
    return views(spark, "simulate.sql")["strategies"]


def _trace_events(group: str, table: pa.Table) -> list[TraceEvent]:
    columns = (table.column(name).to_pylist() for name in TraceEvent._fields)
    found = sorted((TraceEvent(*row) for row in zip(*columns, strict=True)), key=lambda one: one.ts_us)
    unknown = {one.what for one in found} - {TOPIC, JOIN, LEAVE, CRASH}
    if unknown:
        raise InvalidInput(
            f"group {group}: the trace says {', '.join(sorted(unknown))}; use topic, join, leave or crash"
        )
    not_finite = next((one for one in found if not isfinite(one.value)), None)
    if not_finite is not None:
        raise InvalidInput(
            f"group {group}: {not_finite.what} {not_finite.name} has the value {not_finite.value}; use a number"
        )
    return found


# --- one group, one strategy ---------------------------------------------------------------------------------------


def simulate_group(trace: Sequence[TraceEvent], strategy: Strategy, model: Model) -> SimulationOutcome:
    """Simulate one strategy on one group's trace, which must be in order of time."""
    simulation = _Simulation(strategy, model)
    batches = list(_batches(trace, int(model.debounce * 1_000_000)))
    ends = [batch[0].ts_us for batch in batches[1:]] + [trace[-1].ts_us] if batches else []
    for batch, end in zip(batches, ends, strict=True):
        simulation.change(batch, (end - batch[0].ts_us) / 1e6)
    return simulation.outcome()


def _batches(trace: Iterable[TraceEvent], window_us: int) -> Iterator[list[TraceEvent]]:
    """Group the events into batches that one plan handles: those within the window from the first of them."""
    batch: list[TraceEvent] = []
    for event in trace:
        if batch and event.ts_us > batch[0].ts_us + window_us:
            yield batch
            batch = []
        batch.append(event)
    if batch:
        yield batch


@dataclass
class _Simulation:
    strategy: Strategy
    model: Model
    found: SimulationOutcome = field(default_factory=SimulationOutcome)
    members: dict[str, float] = field(default_factory=dict)
    """Name -> capacity."""
    topics: dict[str, IntArray] = field(default_factory=dict)
    """Name -> owner of each partition, as the member's permanent number."""
    numbers: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def change(self, batch: Sequence[TraceEvent], duration: float) -> None:
        crashed = {one.name for one in batch if one.what == CRASH and one.name in self.members}
        for one in batch:
            self._apply(one)
        self.found.changes += 1
        self.found.members = max(self.found.members, len(self.members))
        self.found.partitions = max(self.found.partitions, sum(map(len, self.topics.values())))
        self.seconds += duration
        if self.members and self.topics:
            self._plan(crashed, duration)

    def _apply(self, one: TraceEvent) -> None:
        if one.what == TOPIC:
            self._resize(one.name, int(one.value))
        elif one.what == JOIN:
            self.members[one.name] = one.value if one.value > 0 else 1.0
            self.numbers.setdefault(one.name, len(self.numbers))
        else:
            self.members.pop(one.name, None)

    def _resize(self, name: str, partitions: int) -> None:
        if not 0 < partitions <= MAX_PARTITIONS:
            raise InvalidInput(f"topic {name} has {partitions} partitions; give it 1 to {MAX_PARTITIONS}")
        before = self.topics.get(name, np.empty(0, np.int32))
        fresh = np.full(max(0, partitions - len(before)), NONE, np.int32)
        self.topics[name] = np.concatenate((before[:partitions], fresh))

    def _plan(self, crashed: set[str], duration: float) -> None:
        names, topics = sorted(self.members), sorted(self.topics)
        held = np.concatenate([self.topics[topic] for topic in topics])
        index = np.full(len(self.numbers) + 1, NONE, np.int32)
        index[[self.numbers[name] for name in names]] = np.arange(len(names), dtype=np.int32)
        problem = self._problem(names, topics, index[held])
        began = perf_counter()
        owner = self.strategy.assign(problem).owner
        self.found.plan_ms += (perf_counter() - began) * 1e3
        self._count(Explanation(problem, owner, 0), held, crashed, duration)
        number = np.array([self.numbers[name] for name in names] + [NONE], np.int32)
        sizes = np.cumsum([len(self.topics[topic]) for topic in topics])[:-1]
        self.topics = dict(zip(topics, np.split(number[owner], sizes), strict=True))

    def _problem(self, names: Sequence[str], topics: Sequence[str], owner: IntArray) -> Problem:
        return Problem(
            Members(
                capacity=np.array([self.members[name] for name in names]),
                rack=np.full(len(names), NONE, np.int32),
                subscription=np.ones((len(names), len(topics)), np.bool_),
                hold=np.zeros(len(names), np.bool_),
                cap=np.full(len(names), NONE, np.int32),
                key=name_keys(names),
            ),
            Topics(np.array([len(self.topics[topic]) for topic in topics], np.int32), key=name_keys(topics)),
            owner=owner,
            pinned=np.zeros(len(owner), np.bool_),
        )

    def _count(self, explanation: Explanation, held: IntArray, crashed: set[str], duration: float) -> None:
        forced = int(np.count_nonzero((held != NONE) & (explanation.problem.owner == NONE)))
        dead = int(np.isin(held, [self.numbers[name] for name in crashed]).sum()) if crashed else 0
        self.found.moves += explanation.moves
        self.found.forced += forced
        self.found.imbalance_max = max(self.found.imbalance_max, explanation.imbalance)
        self.found.imbalance_mean += explanation.imbalance * duration
        model = self.model
        self.found.warming_s += (explanation.moves + forced) * model.warm
        alive = explanation.moves + forced - dead
        self.found.pause_s += alive * model.handover + dead * (model.ttl + model.debounce + model.warm)

    def outcome(self) -> SimulationOutcome:
        found = self.found
        found.imbalance_mean = found.imbalance_mean / self.seconds if self.seconds else float(found.imbalance_max)
        found.plan_ms /= max(1, found.changes)
        found.hours = self.seconds / 3_600
        return found
