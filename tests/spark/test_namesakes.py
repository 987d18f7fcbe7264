"""A Spark job in a repository with its own `strategies` and `backends`: its executors find those and ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.project.installation import Environment, build_wheel, copy_sources, everything
from tests.support.project.namesakes import write_namesakes
from tests.support.spark import jvms

pytestmark = [pytest.mark.processes, pytest.mark.slow]

JOB = """
import json
import backends, strategies
from pyspark.sql import SparkSession
from assigner.spark.jobs.datasets import TRACES, from_arrow
from assigner.spark.jobs.simulate import simulate
from assigner.spark.jobs.traces import days


def found_by_an_executor(_):
    import assigner.strategies.sticky_balanced as ours
    import strategies as theirs

    return ours.__file__, theirs.__file__


builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
spark = builder.config("spark.sql.shuffle.partitions", "1").config("spark.log.level", "ERROR").getOrCreate()
traces = from_arrow(spark, days(1), TRACES)
outcomes = simulate(spark, traces, ["sticky_balanced", "range"]).collect()
(files,) = spark.sparkContext.parallelize([0], 1).map(found_by_an_executor).collect()
spark.stop()
print(json.dumps({"strategies": sorted(row["strategy"] for row in outcomes), "files": files}))
"""


def test_an_executor_finds_our_strategies_beside_folders_of_the_same_names(tmp_path: Path) -> None:
    wheel = build_wheel(copy_sources(tmp_path / "source"), tmp_path / "wheel")
    project = write_namesakes(tmp_path / "project")
    (project / "job.py").write_text(JOB)
    environment = Environment(tmp_path / "venv", wheel, everything())
    python, path = str(environment.python), str(project)
    variables = {**jvms.environment(python), "PYSPARK_DRIVER_PYTHON": python, "PYTHONPATH": path}
    done = environment.run(python, "job.py", cwd=project, variables=variables)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["strategies"] == ["range", "sticky_balanced"]
    ours, theirs = told["files"]
    assert ours.startswith(str(tmp_path / "venv"))
    assert theirs == str(project / "strategies" / "__init__.py")
