"""The pipelines on Spark: each says exactly what a calculation by hand says."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from assigner.cli import main
from assigner.client import AssignerConsumer, Handler
from assigner.embedded import EmbeddedAssigner
from assigner.server import ServerSettings
from assigner.settings import HttpSettings, Settings
from assigner.spark.jobs import sample_data
from assigner.spark.jobs.audit import KINDS, VIOLATIONS, Audit, audit
from assigner.spark.jobs.datasets import LAG_SAMPLES, LOAD_SAMPLES, OWNERSHIP_EVENTS, TRACES, from_arrow
from assigner.spark.jobs.lag import attribute
from assigner.spark.jobs.loads import weigh
from assigner.spark.jobs.sample_ownership import Finding, SampleLog, sample_log
from assigner.spark.jobs.simulate import Model, TraceEvent, compare, simulate, simulate_group
from assigner.spark.jobs.traces import days
from assigner.strategy.registry import load
from tests.support.spark.small_queries import interpreted

SECOND = 1_000_000


@pytest.fixture(scope="module", autouse=True)
def quickly(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


def events_of(spark: SparkSession, log: SampleLog) -> Any:
    return from_arrow(spark, log.table(), OWNERSHIP_EVENTS)


def findings(found: Audit) -> Counter[Finding]:
    """All of them, asked for at once, which saves some jobs."""
    place = "kind", "`group`", "topic", "partition"
    parts = [
        frame.selectExpr(f"'{part}'", *place, *(("ts_us", "NULL") if part == "epochs" else ("start_us", "end_us")))
        for part, frame in found.parts().items()
    ]
    return Counter(Finding(*row) for row in reduce(DataFrame.unionAll, parts).collect())


def pipeline(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["pipeline", *arguments])


# --- audit -------------------------------------------------------------------------------------------------------


# Without shrinking, which would take some hundred queries; the seed is told, and the first findings are small.
@settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32), faults=st.sampled_from([0.1, 0.6]))
def test_an_audit_finds_exactly_what_was_injected(spark: SparkSession, seed: int, faults: float) -> None:
    log = sample_log(seed=seed, groups=2, partitions=16, scenarios=20, faults=faults)
    found = audit(spark, events_of(spark, log))
    try:
        told, expected = findings(found), Counter(log.expected)
        assert set(log.counts()) == {(part, kind) for part, kinds in KINDS.items() for kind in kinds}, "all is there"
        assert told - expected == Counter(), "what nobody did"
        assert expected - told == Counter(), "what was missed"
    finally:
        found.close()


def test_a_log_without_faults_breaks_no_promise_and_still_tells_overlaps_and_gaps(spark: SparkSession) -> None:
    log = sample_log(seed=7, groups=2, partitions=8, scenarios=20, faults=0.0)
    found = audit(spark, events_of(spark, log))
    counts = found.counts()
    found.close()
    assert not any(counts[one] for one in VIOLATIONS)
    assert counts["overlaps", "handover"]
    assert counts["gaps", "failover"]
    assert counts == {one: log.counts()[one] for one in counts}


def test_a_log_without_terms_goes_by_its_clock(spark: SparkSession) -> None:
    lines = [(3, "b", 2, "assigned"), (1, "a", 1, "assigned"), (2, "a", 1, "released"), (9, "c", 2, "assigned")]
    table = pa.table(
        {
            "ts_us": [at * SECOND for at, *_ in lines],
            "group": ["g"] * 4,
            "topic": ["t"] * 4,
            "partition": [0] * 4,
            "member": [member for _, member, _, _ in lines],
            "epoch": [epoch for _, _, epoch, _ in lines],
            "event": [event for *_, event in lines],
        }
    )
    found = audit(spark, from_arrow(spark, table, OWNERSHIP_EVENTS))
    told = findings(found)
    found.close()
    assert told == Counter(
        {
            Finding("gaps", "handover", "g", "t", 0, 2 * SECOND, 3 * SECOND): 1,
            Finding("overlaps", "double", "g", "t", 0, 9 * SECOND, None): 1,
            Finding("epochs", "repeated", "g", "t", 0, 9 * SECOND, None): 1,
        }
    )


def test_a_log_in_which_nothing_ever_ends_is_reported_in_bounded_time(spark: SparkSession) -> None:
    """Each holding overlaps with all before it; no more than `most` of those are compared."""
    count, most = 50, 20
    table = pa.table(
        {
            "ts_us": list(range(count)),
            "group": ["g"] * count,
            "topic": ["t"] * count,
            "partition": [0] * count,
            "member": [f"m{number}" for number in range(count)],
            "epoch": list(range(count)),
            "event": ["assigned"] * count,
        }
    )
    found = audit(spark, from_arrow(spark, table, OWNERSHIP_EVENTS), most=most)
    pairs = found.overlaps.count()
    found.close()
    assert pairs == most * (count - most) + most * (most - 1) // 2


def test_the_command_writes_parquet_tells_counts_and_fails_the_check(spark: SparkSession, tmp_path: Path) -> None:
    log = sample_log(seed=3, groups=2, partitions=4, scenarios=10, faults=0.5)
    pq.write_table(log.table(), tmp_path / "log.parquet")
    output = tmp_path / "out"
    arguments = ("audit", "--input", str(tmp_path / "log.parquet"), "--output", str(output), "--json")
    result = pipeline(*arguments, "--check")
    assert result.exit_code == 1, result.output
    told = json.loads(result.stdout)
    assert told["found"] == {f"{part}.{kind}": log.counts()[part, kind] for part, kind in _keys(told)}
    assert told["violations"] == sum(log.counts()[one] for one in VIOLATIONS)
    assert pq.read_table(output / "overlaps").num_rows == sum(
        count for (part, _), count in log.counts().items() if part == "overlaps"
    )


def _keys(told: dict[str, Any]) -> list[tuple[str, str]]:
    return [(part, kind) for part, _, kind in (name.partition(".") for name in told["found"])]


# --- loads -------------------------------------------------------------------------------------------------------


def load_rows(*rows: tuple[int, int, int]) -> pa.Table:
    """Seconds, partition, bytes."""
    at, partition, amount = zip(*rows, strict=True)
    return pa.table(
        {
            "ts_us": [second * SECOND for second in at],
            "group": ["g"] * len(at),
            "topic": ["t"] * len(at),
            "partition": list(partition),
            "bytes": list(amount),
            "records": [number // 10 for number in amount],
        }
    )


def test_a_weight_is_what_smoothing_sample_by_sample_comes_to(spark: SparkSession) -> None:
    given_rows = [(0, 0, 999), (10, 0, 1_000), (40, 0, 6_000), (50, 0, 500), (0, 1, 0), (50, 1, 5_000)]
    smoothing = 20.0
    weights = weigh(spark, from_arrow(spark, load_rows(*given_rows), LOAD_SAMPLES), smoothing=smoothing)
    found = {row.partition: row for row in weights.collect()}
    average = total = 0.0
    for span, rate in ((10, 100.0), (30, 200.0), (10, 50.0)):
        kept = math.exp(-span / smoothing)
        average = average * kept + rate * (1 - kept)
        total = total * kept + (1 - kept)
    assert found[0].ewma == pytest.approx(average / total)
    assert found[0].p95 == 200
    assert found[0].weight == found[0].ewma
    assert found[1].ewma == pytest.approx(100)
    assert (found[0].samples, found[1].samples) == (3, 1)


def test_a_partition_sampled_once_or_by_a_clock_that_stood_still_has_no_weight(spark: SparkSession) -> None:
    rows = from_arrow(spark, load_rows((0, 0, 5), (0, 1, 5), (0, 1, 7), (9, 2, 1), (19, 2, 50)), LOAD_SAMPLES)
    found = weigh(spark, rows, of="records", by="p95").collect()
    assert [(row.partition, row.weight) for row in found] == [(2, 0.5)]


def test_weights_are_published_to_the_group_which_plans_by_them(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(at, partition, at * (300 if partition == 0 else 100)) for partition in range(4) for at in (0, 10)]
    pq.write_table(load_rows(*rows), tmp_path / "loads.parquet")
    data = ("--input", str(tmp_path / "loads.parquet"), "--output", str(tmp_path / "out"), "--overwrite", "--json")
    quick = Settings(grpc=ServerSettings(port=0), http=HttpSettings(port=0))
    by_load = msgspec.structs.replace(quick.group, debounce=0.5, use_loads=True)
    with EmbeddedAssigner(msgspec.structs.replace(quick, group=by_load), topics={"g": {"t": 4}}) as assigner:
        address = assigner.address
        result = pipeline("loads", *data, "--publish", address, "--group", "g")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["published"] == 4
        shown = CliRunner(env={"ASSIGNER_ADDRESS": address}).invoke(main, ["loads", "g", "-o", "json"])
        told = {one["partition"]: one["weight"] for one in json.loads(shown.stdout)["heaviest"]}
        assert told == pytest.approx({0: 300.0, 1: 100.0, 2: 100.0, 3: 100.0})
        assert anyio.run(shares_of_two, address) == {frozenset({0}), frozenset({1, 2, 3})}, "as much for each"
        other = pipeline("loads", *data, "--publish", address, "--group", "nobody")
        assert other.exit_code == 2
        assert "there are no weights of group 'nobody'" in other.stderr
    nowhere = pipeline("loads", *data, "--publish", address, "--group", "g")
    assert nowhere.exit_code == 3
    assert (
        f"The weights are in {tmp_path / 'out' / 'weights'} and were not published: check --publish" in nowhere.stderr
    )


async def shares_of_two(address: str) -> set[frozenset[int]]:
    """Who has what, once all is settled: by counts it would be two and two."""
    async with (
        AssignerConsumer([address], "g", "a", ["t"], Handler()) as a,
        AssignerConsumer([address], "g", "b", ["t"], Handler()) as b,
    ):
        await a.wait_for(lambda one: {len(one.partitions), len(b.partitions)} == {1, 3})
        return {frozenset(tp.partition for tp in one.partitions) for one in (a, b)}


# --- lag ---------------------------------------------------------------------------------------------------------


def ownership(*lines: tuple[int, str, int, str]) -> pa.Table:
    """Seconds, member, epoch, event; of partition 0."""
    at, member, epoch, event = zip(*lines, strict=True)
    return pa.table(
        {
            "ts_us": [second * SECOND for second in at],
            "group": ["g"] * len(at),
            "topic": ["t"] * len(at),
            "partition": [0] * len(at),
            "member": list(member),
            "epoch": list(epoch),
            "event": list(event),
            "cause": ["joined"] * len(at),
        }
    )


def test_lag_belongs_to_the_owner_of_the_time_and_to_the_move_before(spark: SparkSession) -> None:
    events = ownership(
        (0, "a", 1, "assigned"),
        (100, "b", 2, "assigned"),
        (105, "a", 1, "released"),
        (200, "b", 2, "away"),
        (230, "c", 3, "assigned"),
    )
    taken = [(-10, 5), (10, 10), (90, 20), (110, 500), (120, 60), (130, 20), (150, 10), (210, 40), (240, 90), (250, 90)]
    lag = pa.table(
        {
            "ts_us": [at * SECOND for at, _ in taken],
            "group": ["g"] * len(taken),
            "topic": ["t"] * len(taken),
            "partition": [0] * len(taken),
            "lag": [lag for _, lag in taken],
        }
    )
    found = attribute(
        spark, from_arrow(spark, lag, LAG_SAMPLES), from_arrow(spark, events, OWNERSHIP_EVENTS), window=60
    )
    owners = {row.owner: row for row in found.owners.collect()}
    moves = {row.new_owner: row for row in found.moves.collect()}
    found.close()
    assert {owner: row.samples for owner, row in owners.items()} == {"": 2, "a": 2, "b": 4, "c": 2}
    assert (owners["b"].max_lag, owners["b"].growth, owners["a"].growth) == (500, 10 - 500, 10)
    assert sum(row.share for row in owners.values()) == pytest.approx(1)
    assert moves.keys() == {"b", "c"}
    b, c = moves["b"], moves["c"]
    assert (b.old_owner, b.lag_before, b.peak_lag, b.added_lag, b.recovered_s) == ("a", 20, 500, 480, 30)
    assert (c.old_owner, c.lag_before, c.peak_lag, c.recovered_s) == ("b", 40, 90, None)


def test_the_sample_shows_the_slow_consumer(spark: SparkSession) -> None:
    log = sample_log(groups=1, partitions=12, scenarios=15, faults=0.0)
    found = attribute(
        spark,
        from_arrow(spark, sample_data.lag_samples(log), LAG_SAMPLES),
        from_arrow(spark, log.table(), OWNERSHIP_EVENTS),
    )
    growth = {row.owner: row.growth or 0 for row in found.owners.collect()}
    found.close()
    named = {owner: grown for owner, grown in growth.items() if owner}
    assert max(named, key=lambda owner: named[owner]) == sample_data.SLOW


# --- simulate ----------------------------------------------------------------------------------------------------


def test_simulations_in_executors_come_to_what_they_come_to_here(spark: SparkSession) -> None:
    table, model = days(2, seed=2), Model(warm=5)
    names = ("sticky_balanced", "range")
    traces = from_arrow(spark, table, TRACES)
    found = simulate(spark, traces, names, model).cache()
    rows = {(row["group"], row["strategy"]): row for row in found.collect()}
    order = [row["strategy"] for row in compare(spark, found).collect()]
    found.unpersist()
    assert len(rows) == 4
    assert order == ["sticky_balanced", "range"]
    for (group, strategy), row in rows.items():
        lines = [line for line in table.to_pylist() if line["group"] == group]
        trace = sorted(
            (TraceEvent(line["ts_us"], line["what"], line["name"], line["value"]) for line in lines),
            key=lambda one: one.ts_us,
        )
        expected = simulate_group(trace, load(strategy), model)
        for name in ("moves", "forced", "changes", "imbalance_mean", "pause_s", "hours"):
            assert row[name] == pytest.approx(getattr(expected, name)), f"{name} of {strategy} in {group}"


def test_the_command_compares_strategies_and_draws_the_answer(spark: SparkSession, tmp_path: Path) -> None:
    result = pipeline(
        *("simulate", "--sample", "--groups", "2", "--output", str(tmp_path / "out")),
        *("--strategy", "sticky_balanced", "--strategy", "rendezvous"),
    )
    assert result.exit_code == 0, result.output
    assert "strategies, the best choice first" in result.stdout
    assert (tmp_path / "out" / "strategies.svg").read_text().startswith("<?xml")
    assert pq.read_table(tmp_path / "out" / "outcomes").num_rows == 4


def test_an_unknown_strategy_is_named_before_anything_runs(spark: SparkSession) -> None:
    result = pipeline("simulate", "--sample", "--groups", "1", "--strategy", "nonsense")
    assert result.exit_code == 2
    assert "no strategy named 'nonsense'; installed:" in result.stderr
