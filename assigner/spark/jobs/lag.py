"""Attributes lag to the owner at the time, and to the move that preceded it.

Samples of lag are joined to the ownership event log by time, so the clocks of the sampler and of the leaders should
agree to within the sampling interval.

Not promised: that a move caused the lag that follows it. The tables show the order in time only.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from assigner.spark.jobs.sql import views

WINDOW = 300.0
"""Seconds after a move in which lag is attributed to it."""


@dataclass(frozen=True)
class Attribution:
    owners: DataFrame
    """Lag per group and owner; the owner '' stands for no owner."""
    moves: DataFrame
    attributed: DataFrame
    """The samples with their owners, cached until `close`."""

    def close(self) -> None:
        self.attributed.unpersist()


def attribute(spark: SparkSession, samples: DataFrame, events: DataFrame, *, window: float = WINDOW) -> Attribution:
    samples.createOrReplaceTempView("lag_samples")
    events.createOrReplaceTempView("ownership_events")
    made = views(spark, "lag.sql", keep=("attributed",), window_us=int(window * 1_000_000))
    return Attribution(made["owners"], made["costs"], made["attributed"])
