"""Computes the weights of partitions from samples of their traffic, for weighted plans.

A sample is the traffic of a partition since the sample before it. The weight is a rate: its moving average, or its 95th
percentile where peaks matter. It is not the backlog: a backlog moves with its partition, and balancing by it would move
the partition again.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from assigner.errors import InvalidInput
from assigner.spark.jobs.sql import views

SMOOTHING = 3_600.0
"""Time constant of the moving average in seconds: a sample of that age has about a third of a new one's weight."""
AMOUNTS = ("bytes", "records")
WEIGHTS = ("ewma", "p95")
MAX_PUBLISHED = 1_000_000
"""Most partitions of one group that are collected on the driver."""


def weigh(
    spark: SparkSession, samples: DataFrame, *, of: str = "bytes", by: str = "ewma", smoothing: float = SMOOTHING
) -> DataFrame:
    """Compute one row per partition: `ewma` and `p95` of its rate, and the one chosen by `by` as `weight`."""
    if of not in AMOUNTS or by not in WEIGHTS:
        raise InvalidInput(f"loads of {of!r} by {by!r}: choose one of {AMOUNTS} and one of {WEIGHTS}")
    samples.createOrReplaceTempView("load_samples")
    return views(spark, "loads.sql", amount=of, weight=by, smoothing_us=int(smoothing * 1_000_000))["weights"]


def weights_of(weights: DataFrame, group: str) -> dict[str, dict[str, float]]:
    """Format a group's weights as `assigner loads GROUP --set` reads them."""
    chosen = weights.where(weights["group"] == group).select("topic", "partition", "weight")
    rows = chosen.limit(MAX_PUBLISHED + 1).collect()
    if not rows:
        raise InvalidInput(f"there are no weights of group {group!r}; name one whose partitions were sampled twice")
    if len(rows) > MAX_PUBLISHED:
        raise InvalidInput(f"group {group!r} has more than {MAX_PUBLISHED} partitions; publish them in parts")
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        found.setdefault(row["topic"], {})[str(row["partition"])] = float(row["weight"])
    return found
