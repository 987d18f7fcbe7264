"""One Spark session for all tests here. It takes some seconds and a JVM, so one worker runs them all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from assigner.spark.requirements import MissingRequirement, require_java

_HERE = Path(__file__).parent
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.log.level": "ERROR",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker("spark")
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    try:
        require_java()
    except MissingRequirement as missing:
        pytest.skip(str(missing))
    # Workers import the project and the tests from this checkout, whatever directory Spark runs in.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    session = builder.config("spark.sql.warehouse.dir", warehouse).getOrCreate()
    yield session
    session.stop()
