"""Lag attributed to whom it belongs to: the owner at the time, and the move that came before it.

Samples of lag are joined to the ownership event log by time, so the clocks of whoever sampled and of the leaders should
agree to within the interval of the samples.

Not promised: that a move caused the lag that follows it. The tables say what came after what.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from assigner.spark.jobs.sql import views

WINDOW = 300.0
"""Seconds after a move in which its lag is looked at."""


@dataclass(frozen=True)
class Attribution:
    owners: DataFrame
    """Per group and owner; the owner '' is nobody."""
    moves: DataFrame
    attributed: DataFrame
    """The samples with their owners, kept until `close`."""

    def close(self) -> None:
        self.attributed.unpersist()


def attribute(spark: SparkSession, samples: DataFrame, events: DataFrame, *, window: float = WINDOW) -> Attribution:
    samples.createOrReplaceTempView("lag_samples")
    events.createOrReplaceTempView("ownership_events")
    made = views(spark, "lag.sql", keep=("attributed",), window_us=int(window * 1_000_000))
    return Attribution(made["owners"], made["costs"], made["attributed"])
