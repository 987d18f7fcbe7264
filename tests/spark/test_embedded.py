"""The embedded assigner in tests of Spark jobs, as a team writes them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from assigner.embedded import EmbeddedAssigner
from assigner.spark import register
from tests.support.servers.mock_kafka import MockKafka

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "test-a-spark-job.md"
_FILE = re.compile(r"^```python\n# ([\w.]+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.embedded_assigner(topics={"billing": {"orders": 4}})
def test_a_query_reads_its_share_from_the_embedded_assigner(
    spark: SparkSession, embedded_assigner: EmbeddedAssigner, tmp_path: Path
) -> None:
    kafka = MockKafka()
    kafka.produce("orders", 25)
    register(spark)
    options = {
        "assigner": embedded_assigner.address,
        "group": "billing",
        "member": "etl",
        "kafka.bootstrap.servers": kafka.bootstrap,
        "subscribe": "orders",
    }
    rows = spark.readStream.format("assigned_kafka").options(**options).load()
    writer = rows.writeStream.format("memory").queryName("orders").option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert spark.table("orders").selectExpr("CAST(value AS STRING)").distinct().count() == 100


def test_the_example_of_the_page_passes(tmp_path: Path) -> None:
    files = dict(_FILE.findall(PAGE.read_text()))
    assert files.keys() == {"payments.py", "conftest.py", "test_payments.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "1 passed" in done.stdout
