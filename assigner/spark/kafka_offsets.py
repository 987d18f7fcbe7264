"""`KafkaLog` asks Kafka for the partitions of topics, their first and their last offsets; `report_loss` reports gaps.

Offsets are lost when Kafka deleted them before they were read: an error, or a warning if the user chose so. Calls time
out after the option kafkaTimeout with an error that names what to check. The member makes them on the driver, and
executors report what they find lost while they fetch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from assigner.errors import AssignerError, InvalidInput, SourceUnavailable, UnknownTopic
from assigner.logs import get_logger
from assigner.model.keys import TopicPartition
from assigner.spark.options import EARLIEST, SourceOptions

_CONSUMER_SETTINGS = (
    "fetch.",
    "queued.",
    "max.poll.",
    "isolation.",
    "check.crcs",
    "session.",
    "heartbeat.",
    "max.partition.",
)
"""Prefixes of settings that an admin client does not accept."""
_UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})

_log = get_logger(__name__)


class DataLost(AssignerError):
    """Offsets that were to be read are gone from Kafka."""


def report_loss(tp: TopicPartition, first: int, end: int, why: str, *, fail: bool) -> None:
    """Raise `DataLost`, unless the user chose to go on without the offsets from `first` to before `end`."""
    what = f"offsets {first} to {end} of {tp} are gone from Kafka: {why}"
    if fail:
        raise DataLost(
            f"{what}; stop the query and set the group's committed offset to one that exists "
            f"(`assigner offsets GROUP --set FILE`), or set option failOnDataLoss to false to go on without them"
        )
    _log.warning("data_lost", partition=str(tp), first=first, end=end, reason=why)


class KafkaLog:
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._timeout = options.kafka_timeout
        uncommitted = options.kafka.get("isolation.level") == "read_uncommitted"
        self._isolation = IsolationLevel.READ_UNCOMMITTED if uncommitted else IsolationLevel.READ_COMMITTED
        settings: dict[str, Any] = {
            name: value for name, value in options.kafka.items() if not name.startswith(_CONSUMER_SETTINGS)
        }
        settings["logger"] = logging.getLogger("librdkafka")
        try:
            self._client = AdminClient(settings)
        except KafkaException as error:
            raise InvalidInput(f"an option kafka.* is not accepted by librdkafka: {error.args[0].str()}") from error

    def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        return [tp for topic in topics for tp in self._partitions_of(topic)]

    def _partitions_of(self, topic: str) -> list[TopicPartition]:
        try:
            found = self._client.list_topics(topic, timeout=self._timeout).topics[topic]
        except KafkaException as error:
            raise self._unreachable(error.args[0]) from error
        if found.error is not None:
            raise self._problem(f"topic {topic!r}", found.error)
        return [TopicPartition(topic, partition) for partition in sorted(found.partitions)]

    def starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Read the oldest offset that each partition still has."""
        return self._listed(partitions, OffsetSpec.earliest(), self._isolation)  # type: ignore[no-untyped-call]

    def ends(self, partitions: Iterable[TopicPartition], *, uncommitted: bool = False) -> dict[TopicPartition, int]:
        """Read the end of each partition: the last stable offset, or with `uncommitted` the high watermark."""
        isolation = IsolationLevel.READ_UNCOMMITTED if uncommitted else self._isolation
        return self._listed(partitions, OffsetSpec.latest(), isolation)  # type: ignore[no-untyped-call]

    def resolved(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Replace EARLIEST and LATEST in `wanted` by offsets."""
        starts = self.starts(tp for tp, offset in wanted.items() if offset == EARLIEST)
        ends = self.ends(tp for tp, offset in wanted.items() if offset > EARLIEST and offset < 0)
        return {tp: starts.get(tp, ends.get(tp, offset)) for tp, offset in wanted.items()}

    def _listed(self, partitions: Iterable[TopicPartition], spec: Any, isolation: Any) -> dict[TopicPartition, int]:
        # Polling delivers what the library logged.
        self._client.poll(0)
        asked = {KafkaPartition(tp.topic, tp.partition): spec for tp in partitions}
        if not asked:
            return {}
        try:
            results = self._client.list_offsets(asked, isolation_level=isolation, request_timeout=self._timeout)
            return {TopicPartition(at.topic, at.partition): self._offset(result) for at, result in results.items()}
        except KafkaException as error:
            raise self._unreachable(error.args[0]) from error

    def _offset(self, result: Future[Any]) -> int:
        return int(result.result(self._timeout + 5).offset)

    def _unreachable(self, error: Any) -> SourceUnavailable:
        return SourceUnavailable(
            f"Kafka at {self._options.kafka['bootstrap.servers']} did not answer within {self._timeout:g} s "
            f"({error.str()}); check option kafka.bootstrap.servers, or raise option kafkaTimeout"
        )

    def _problem(self, what: str, error: Any) -> UnknownTopic | SourceUnavailable:
        if error.code() in _UNKNOWN:
            return UnknownTopic(f"{what} of option subscribe is not known to Kafka; create it, or correct the option")
        return SourceUnavailable(f"{what} of option subscribe can't be used: {error.str()}")
