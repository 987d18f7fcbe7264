"""How fast rows come: `assigned_kafka` beside Spark's own Kafka source, on the same topic, with nothing done to them.

The same columns, limits and sink for both; one warm-up each, then in turns. The rate is that of batches: from the start
of a batch's planning to its end. What it takes a query to come up is in the other measurement.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from contextlib import suppress

import msgspec
import psutil
from pyspark.sql import DataFrame

from bench.spark.environment import CORES, Environment

OURS, JVM = "assigned_kafka", "kafka (JVM)"
PARTITIONS = 4
BATCH = 1_000_000
"""Rows in a batch, for both."""


class Turn(msgspec.Struct, frozen=True):
    """A topic read once."""

    rate: float
    """Rows per second."""
    cpu: float
    """Seconds that Spark's processes computed for a million rows, whoever else was at work."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    value_bytes: int
    rows: int
    turns: tuple[Turn, ...]

    @property
    def median(self) -> float:
        return statistics.median(turn.rate for turn in self.turns)

    @property
    def cpu(self) -> float:
        return statistics.median(turn.cpu for turn in self.turns)


def rates(environment: Environment, size: int, rows: int, turns: int, tell: Callable[[str], None]) -> list[Rate]:
    topic = f"rows-{size}"
    tell(f"filling {topic} with {rows:,} rows")
    environment.fill(topic, rows, size, PARTITIONS)
    sources: dict[str, Callable[[int], DataFrame]] = {
        OURS: lambda turn: ours(environment, topic, turn),
        JVM: lambda turn: environment.jvm(subscribe=topic, maxOffsetsPerTrigger=str(BATCH)),
    }
    found: dict[str, list[Turn]] = {source: [] for source in sources}
    for number in range(turns + 1):
        for source, make in sources.items():
            turn = run(environment, make(number), rows)
            tell(f"{source}, {size} B: {turn.rate:,.0f} rows/s" + ("" if number else " (warm-up)"))
            if number:
                found[source].append(turn)
    return [Rate(source=one, value_bytes=size, rows=rows, turns=tuple(found[one])) for one in sources]


def ours(environment: Environment, topic: str, turn: int) -> DataFrame:
    group = f"{topic}-{turn}"
    environment.assigner.set_topic(group, topic, PARTITIONS)
    return environment.assigned(
        topic, group, "only", maxOffsetsPerTrigger=str(BATCH), minPartitions=str(max(CORES, PARTITIONS))
    )


def run(environment: Environment, rows: DataFrame, expected: int) -> Turn:
    """Read everything once."""
    writer = rows.writeStream.format("noop").option("checkpointLocation", environment.new_checkpoint())
    before = computed()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [json.loads(one.json) for one in query.recentProgress]
    read = sum(one["numInputRows"] for one in batches)
    assert read == expected, f"{read} of {expected} rows were read"
    seconds = sum(one["durationMs"]["triggerExecution"] for one in batches if one["numInputRows"]) / 1000
    return Turn(read / seconds, (computed() - before) / read * 1_000_000)


def computed() -> float:
    """Seconds of CPU that the session's JVM and what it started have used."""
    total = 0.0
    for one in psutil.Process().children(recursive=True):
        # One that has just ended is counted with its parent.
        with suppress(psutil.Error):
            if "kafka.Kafka" not in one.cmdline():
                times = one.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total
