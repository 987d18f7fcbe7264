"""What happens when Kafka no longer has what was to be read: an error, or a warning if the user chose so."""

from __future__ import annotations

from assigner.errors import AssignerError
from assigner.keys import TopicPartition
from assigner.logs import get_logger

_log = get_logger(__name__)


class DataLost(AssignerError):
    """Offsets that were to be read are gone from Kafka."""


def report_loss(tp: TopicPartition, first: int, end: int, why: str, *, fail: bool) -> None:
    """Raises `DataLost`, unless the user chose to go on without the offsets from `first` to before `end`."""
    what = f"offsets {first} to {end} of {tp} are gone from Kafka: {why}"
    if fail:
        raise DataLost(
            f"{what}; stop the query and set the group's committed offset to one that exists "
            f"(`assigner offsets GROUP --set FILE`), or set option failOnDataLoss to false to go on without them"
        )
    _log.warning("data lost", partition=str(tp), first=first, end=end, why=why)
