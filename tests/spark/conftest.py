"""One Spark session for all tests here that need one. It takes some seconds and a JVM, so one worker runs them all.

Tests that start JVMs of their own need no session, and run beside those on another worker: in a row they would take as
long as all other tests together.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from assigner.spark.requirements import MissingRequirement, require_java
from tests.support.spark import jvms

_HERE = Path(__file__).parent
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
}
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_PATIENCE = 600
"""Seconds. JVMs on a busy machine may take longer than a test is usually given."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker("spark")
            shares = "spark" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("spark" if shares else "spark-processes"))


@pytest.fixture(scope="session", autouse=True)
def java() -> Iterator[None]:
    """Whatever starts a JVM finds Java, or the test is skipped."""
    try:
        require_java()
    except MissingRequirement as missing:
        pytest.skip(str(missing))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in jvms.environment().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def patience() -> None:
    faulthandler.dump_traceback_later(_PATIENCE, exit=True)


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    session = builder.config("spark.sql.warehouse.dir", warehouse).getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def stateful(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(_PROVIDER, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    yield spark
    spark.conf.unset(_PROVIDER)
    for query in spark.streams.active:
        query.stop()
