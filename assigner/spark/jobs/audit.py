"""Audits an ownership event log: every overlap of owners, every gap, every epoch that did not rise.

Not every finding is a fault. During a handoff in an overlap group two members own a partition for a moment, with
different epochs; in an exclusive group none does. Findings have kinds, and `VIOLATIONS` names those that the assigner
guarantees never to happen.

Not promised: anything about the time between the runs of a log, or about effects in sinks without fences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from assigner.spark.jobs.sql import views

OVERLAP_LIMIT = 120.0
"""Seconds: the default `release_timeout`, plus the lease of a session that was evicted for exceeding it."""
MOST_OVERLAPPING = 1_000
"""How many earlier ownerships each one is compared with: in a log without ends each would overlap with all before
it."""
KINDS = {
    "overlaps": ("double", "exclusive", "late", "handover"),
    "gaps": ("failover", "handover", "unseen", "start"),
    "epochs": ("back", "repeated"),
}
VIOLATIONS = frozenset({("overlaps", "double"), ("overlaps", "exclusive"), ("epochs", "back"), ("epochs", "repeated")})
MEANING = {
    ("overlaps", "double"): "a second owner without a higher epoch: no sink can tell the two apart",
    ("overlaps", "exclusive"): "two owners of a partition of an exclusive group",
    ("overlaps", "late"): "the old owner held on for longer than the limit; its epoch is refused",
    ("overlaps", "handover"): "by design: both hold a moving partition, with different epochs",
    ("gaps", "failover"): "nobody from the end of a session to its successor",
    ("gaps", "handover"): "nobody from a release to the next owner",
    ("gaps", "unseen"): "nobody where the log begins anew; an owner before",
    ("gaps", "start"): "nobody yet where the log begins",
    ("epochs", "back"): "an epoch below one that was there before",
    ("epochs", "repeated"): "an epoch given a second time",
}


@dataclass(frozen=True)
class Audit:
    """The findings of an audit. The parsed log is cached until `close`."""

    overlaps: DataFrame
    gaps: DataFrame
    epochs: DataFrame
    findings: DataFrame

    def parts(self) -> Mapping[str, DataFrame]:
        return {"overlaps": self.overlaps, "gaps": self.gaps, "epochs": self.epochs}

    def counts(self) -> dict[tuple[str, str], int]:
        """The number of findings by part and kind, zeros included."""
        found = {(part, kind): 0 for part, kinds in KINDS.items() for kind in kinds}
        for part, frame in self.parts().items():
            for row in frame.groupBy("kind").count().collect():
                found[part, row["kind"]] = row["count"]
        return found

    def close(self) -> None:
        self.findings.unpersist()


def audit(
    spark: SparkSession, events: DataFrame, *, overlap_limit: float = OVERLAP_LIMIT, most: int = MOST_OVERLAPPING
) -> Audit:
    """Audit a log. Nothing is computed before a result is used; then the log is read once."""
    events.createOrReplaceTempView("ownership_events")
    limits = {"overlap_limit_us": int(overlap_limit * 1_000_000), "most": most}
    made = views(spark, "audit.sql", keep=("findings",), **limits)
    return Audit(made["overlaps"], made["gaps"], made["epochs"], made["findings"])
