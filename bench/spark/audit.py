"""How long the audit of a long ownership log takes, for up to 10^8 events.

`python -m bench.spark.audit` prints a table. Spark invents the log: every partition is handed over again and again, and
a few faults are sown at known places. The audit must find just these; it is timed from reading the Parquet files to the
last count. Starting Spark is not timed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from assigner.spark.jobs.audit import audit
from assigner.spark.jobs.datasets import OWNERSHIP_EVENTS, read
from assigner.spark.jobs.session import session

SIZES = (10_000_000, 100_000_000)
QUICK = (1_000_000,)
PARTITIONS = 5_000
SOWN_EVERY = 500
"""Each fault is sown in one of so many partitions."""
DOUBLE, BACK, GAP = 7, 11, 13
"""Which of those partitions has which fault."""
AT = 50
"""At which handover."""

_LOG = f"""
SELECT
    1700000000000000 + place * 250000 + abs(hash(partition, place)) % 200000 AS ts_us,
    concat('group-', partition DIV 1000) AS `group`,
    'orders' AS topic,
    CAST(partition % 1000 AS INT) AS partition,
    concat('worker-', (partition + handover) % 37) AS member,
    concat('session-', handover) AS session,
    handover + 1 - CASE
        WHEN handover <> {AT} THEN 0
        WHEN partition % {SOWN_EVERY} = {DOUBLE} THEN 1
        WHEN partition % {SOWN_EVERY} = {BACK} THEN 20
        ELSE 0
    END AS epoch,
    event, 'joined' AS cause, 'bench' AS instance, 'overlap' AS mode,
    CAST(1 AS BIGINT) AS term, 0 AS part, place AS seq
FROM (
    -- The assignment of handover n comes before the release of n - 1, except where a gap is sown.
    SELECT
        partition,
        CASE WHEN step % 2 = 0 THEN step DIV 2 ELSE greatest(step DIV 2 - 1, 0) END AS handover,
        CASE WHEN step % 2 = 0 THEN 'assigned' WHEN step = 1 THEN 'held' ELSE 'released' END AS event,
        2 * step - CASE WHEN step = 2 * {AT} + 1 AND partition % {SOWN_EVERY} = {GAP} THEN 3 ELSE 0 END AS place
    FROM (SELECT id % {PARTITIONS} AS partition, id DIV {PARTITIONS} AS step FROM range({{events}}))
)
"""


class Timing(msgspec.Struct, frozen=True):
    events: int
    megabytes: int
    writing: float
    seconds: float
    found: dict[str, int]
    sown: dict[str, int]

    @property
    def is_exact(self) -> bool:
        return all(self.found[name] == count for name, count in self.sown.items())


def log_of(spark: SparkSession, events: int) -> DataFrame:
    if events < 4 * AT * PARTITIONS:
        raise SystemExit(f"a log of {events} events is too short; give at least {4 * AT * PARTITIONS}")
    return spark.sql(_LOG.replace("{events}", str(events)))


def sown() -> dict[str, int]:
    each = PARTITIONS // SOWN_EVERY
    return {"double": 2 * each, "repeated": each, "back": each, "gaps": each}


def timed(spark: SparkSession, events: int, directory: Path) -> Timing:
    path = directory / f"events-{events}"
    began = time.perf_counter()
    log_of(spark, events).write.option("compression", "zstd").parquet(str(path))
    written = time.perf_counter()
    found = audit(spark, read(spark, str(path), OWNERSHIP_EVENTS))
    counts = found.counts()
    seconds = time.perf_counter() - written
    found.close()
    size = sum(file.stat().st_size for file in path.iterdir())
    told = {
        "double": counts["overlaps", "double"],
        "repeated": counts["epochs", "repeated"],
        "back": counts["epochs", "back"],
        "gaps": sum(count for (part, _), count in counts.items() if part == "gaps"),
        "handovers": counts["overlaps", "handover"],
    }
    shutil.rmtree(path)
    return Timing(events, size // 2**20, written - began, seconds, told, sown())


def table(timings: list[Timing]) -> Table:
    shown = Table(title="Audit of an ownership log", title_justify="left")
    columns = ("events", "MiB", "inventing, s", "audit, s", "events/s", "sown", "found")
    for column in columns:
        shown.add_column(column, justify="right")
    for one in timings:
        found = sum(one.found[name] for name in one.sown)
        shown.add_row(
            *(f"{one.events:,}", str(one.megabytes), f"{one.writing:.1f}", f"{one.seconds:.1f}"),
            *(f"{one.events / one.seconds:,.0f}", str(sum(one.sown.values())), f"{found}" if one.is_exact else "WRONG"),
        )
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.spark.audit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, action="append", metavar="N", help="a size of your own; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a million events")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", type=Path, help="for the log; 1 GB for 100 million events")
    options = parser.parse_args()
    sizes = options.events or (QUICK if options.quick else SIZES)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory, session("audit") as spark:
        timings = [timed(spark, events, Path(directory)) for events in sizes]
    if options.json:
        print(json.dumps(msgspec.to_builtins(timings)))
    else:
        Console().print(table(timings))
    return 0 if all(one.is_exact for one in timings) else 1


if __name__ == "__main__":
    raise SystemExit(main())
