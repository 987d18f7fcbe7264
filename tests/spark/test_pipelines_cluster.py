"""The same command on a cluster: a master and two workers as processes on loopback."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import assigner.cli.submit
from assigner.spark.requirements import MissingRequirement, require_java
from tests.support.spark.standalone import StandaloneCluster

# Six JVMs on the machine of a test take their time.
pytestmark = [pytest.mark.processes, pytest.mark.slow]
SCRIPT = Path(assigner.cli.submit.__file__).with_name("pipeline.py")


def test_a_pipeline_submitted_to_a_cluster_runs_on_both_workers(tmp_path: Path) -> None:
    try:
        require_java()
    except MissingRequirement as missing:
        pytest.skip(str(missing))
    output = tmp_path / "out"
    strategies = ("--strategy", "sticky_balanced", "--strategy", "range")
    with StandaloneCluster(tmp_path, workers=2) as cluster:
        status, said, complained = cluster.submit(
            *(str(SCRIPT), "simulate", "--sample", "--groups", "3", *strategies, "--output", str(output), "--json"),
            within=300,
        )
        assert status == 0, complained[-3_000:]
        assert cluster.executors() == {"work-0", "work-1"}
    # spark-submit puts what a program complains of before what it says.
    told = json.loads(said[said.index("{") :])
    assert [one["strategy"] for one in told["strategies"]] == ["sticky_balanced", "range"]
    assert pq.read_table(output / "outcomes").num_rows == 6
    assert Path(told["picture"]).exists()
