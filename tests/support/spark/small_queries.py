"""Settings for queries over some hundred rows: compiling them would take longer than running them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_INTERPRETED = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@contextmanager
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Spark interprets what it usually compiles, and plans once: the same answers, several times sooner."""
    for name, value in _INTERPRETED.items():
        spark.conf.set(name, value)
    yield
    for name in _INTERPRETED:
        spark.conf.unset(name)
