"""A group as Kafka has it: its state, its members and its committed offsets, read and written by confluent-kafka.

Everything here blocks, and is called on a thread. The library is imported at the first call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import msgspec

from assigner.cli.exit_codes import REFUSED, UNREACHABLE, USAGE, Failure
from assigner.errors import InvalidInput, how_to_install
from assigner.model.kafka_groups import KafkaError
from assigner.secret_files import read_properties

T = TypeVar("T")

BATCH = 1_000
"""Offsets in one request."""
_GRACE = 2.0
"""librdkafka times a request out by itself; this many seconds later we stop waiting for it."""
_NAMED = 3
_PAUSE = 0.5
_COORDINATOR = "kafka_coordinator"
_WITHOUT_COORDINATOR = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)


class KafkaOffset(msgspec.Struct, frozen=True, order=True):
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    """-1: not known."""
    metadata: str = ""


class KafkaGroup(msgspec.Struct, frozen=True):
    name: str
    state: str
    """As Kafka's tools show it; empty: there is no such group."""
    members: tuple[str, ...] = ()
    """A few of them, by client id and host."""

    @property
    def is_used(self) -> bool:
        return self.state not in ("", "EMPTY", "DEAD")


class KafkaGroups:
    """The groups of one Kafka cluster."""

    def __init__(self, bootstrap: str, properties: Mapping[str, str], timeout: float) -> None:
        try:
            import confluent_kafka
            import confluent_kafka.admin
        except ImportError as error:
            raise Failure(
                USAGE, f"Kafka's groups are read by confluent-kafka ({error}); {how_to_install('kafka')}", kind="extra"
            ) from error
        self._library: Any = confluent_kafka
        self._bootstrap = bootstrap
        self._timeout = timeout
        configured: dict[str, Any] = {
            "client.id": "kafka-assigner-offsets",
            # Failures are returned as answers; librdkafka's own lines about each try would hide them.
            "log_level": "0",
            **properties,
            "bootstrap.servers": bootstrap,
        }
        try:
            self._admin: Any = confluent_kafka.admin.AdminClient(configured, logger=_silent())
        except (confluent_kafka.KafkaException, ValueError, TypeError) as error:
            raise Failure(
                USAGE, f"the Kafka properties are refused: {_text(error)}; correct --kafka-properties", kind="kafka"
            ) from error

    def group(self, name: str) -> KafkaGroup:
        """Ask for the state of the group by the list of groups: described, groups of newer kinds may be dead."""
        listed = self._patiently(self._list_groups)
        found = [one for one in listed if one.group_id == name]
        if not found:
            return KafkaGroup(name, "")
        group = KafkaGroup(name, found[0].state.name)
        return msgspec.structs.replace(group, members=self._members(name)) if group.is_used else group

    def _list_groups(self) -> list[Any]:
        listed = self._result(self._admin.list_consumer_groups(request_timeout=self._timeout))
        for error in listed.errors:
            raise self._failed(error)
        return list(listed.valid)

    def _members(self, group: str) -> tuple[str, ...]:
        future = self._admin.describe_consumer_groups([group], request_timeout=self._timeout)[group]
        try:
            members = self._result(future).members
        except Failure:
            return ()
        return tuple(sorted(f"{one.client_id} at {one.host.lstrip('/')}" for one in members)[:_NAMED])

    def committed(self, group: str) -> list[KafkaOffset]:
        """The group's committed offsets, in order. A partition whose offset can't be told is an error."""
        request = [self._library.ConsumerGroupTopicPartitions(group)]

        def fetch() -> Any:
            options = {"require_stable": True, "request_timeout": self._timeout}
            return self._each(self._admin.list_consumer_group_offsets(request, **options)[group])

        return sorted(_offset(one) for one in self._patiently(fetch) if one.offset >= 0)

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """The numbers of partitions of those topics that Kafka has."""
        wanted, counts = frozenset(topics), {}
        try:
            known = self._admin.list_topics(timeout=self._timeout).topics
        except self._library.KafkaException as error:
            raise self._failed(error.args[0]) from error
        for topic in wanted:
            if topic in known and known[topic].error is None:
                counts[topic] = len(known[topic].partitions)
        return counts

    def ends(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The offset after the last record of each partition that Kafka has."""
        latest = self._library.admin.OffsetSpec.latest()
        ends: dict[tuple[str, int], int] = {}
        counts = self.partition_counts(topic for topic, _ in partitions)
        rest = iter([one for one in partitions if one[1] < counts.get(one[0], 0)])
        while part := list(islice(rest, BATCH)):
            wanted = {self._library.TopicPartition(topic, number): latest for topic, number in part}
            for one, future in self._admin.list_offsets(wanted, request_timeout=self._timeout).items():
                ends[one.topic, one.partition] = self._result(future).offset
        return ends

    def commit(self, group: str, offsets: Sequence[KafkaOffset]) -> Iterable[int]:
        """Set offsets of a group without members, in parts. Yields how many were set by each."""
        rest = iter(offsets)
        while part := list(islice(rest, BATCH)):
            wanted = [
                self._library.TopicPartition(one.topic, one.partition, one.offset, **_epoch_and_metadata(one))
                for one in part
            ]
            self._patiently(partial(self._alter, group, wanted))
            yield len(part)

    def _alter(self, group: str, wanted: list[Any]) -> None:
        request = [self._library.ConsumerGroupTopicPartitions(group, wanted)]
        self._each(self._admin.alter_consumer_group_offsets(request, request_timeout=self._timeout)[group])

    def _each(self, future: Future[Any]) -> list[Any]:
        """The partitions of an answer, unless one of them has an error."""
        found = self._result(future).topic_partitions or []
        for one in found:
            if one.error is not None:
                raise self._failed(one.error, f"{one.topic}/{one.partition}: ")
        return list(found)

    def _patiently(self, work: Callable[[], T]) -> T:
        """Try again while the group's coordinator is on its way: the first group of a cluster waits for one."""
        until = time.monotonic() + self._timeout
        while True:
            try:
                return work()
            except Failure as failure:
                if failure.kind != _COORDINATOR or time.monotonic() > until:
                    raise
                time.sleep(_PAUSE)

    def _result(self, future: Future[T]) -> T:
        try:
            return future.result(self._timeout + _GRACE)
        except self._library.KafkaException as error:
            raise self._failed(error.args[0]) from error
        except TimeoutError as error:
            raise Failure(
                UNREACHABLE,
                f"Kafka at {self._bootstrap} did not answer within {self._timeout:g} s: raise --timeout",
                kind="kafka",
            ) from error

    def _failed(self, error: Any, where: str = "") -> Failure:
        codes = self._library.KafkaError
        unreachable = (codes._TIMED_OUT, codes._TRANSPORT, codes._ALL_BROKERS_DOWN, codes._RESOLVE, codes._SSL)
        if error.code() in unreachable:
            return Failure(
                UNREACHABLE,
                f"can't reach Kafka at {self._bootstrap} ({where}{error.str()}): check the address, and "
                "--kafka-properties if it wants TLS or SASL",
                kind="kafka_unreachable",
            )
        if error.code() in _WITHOUT_COORDINATOR:
            return Failure(UNREACHABLE, f"Kafka can't tell: {where}{error.str()}; try again", kind=_COORDINATOR)
        if error.code() in (codes.UNKNOWN_MEMBER_ID, codes.NON_EMPTY_GROUP, codes.GROUP_SUBSCRIBED_TO_TOPIC):
            return Failure(
                REFUSED, f"{where}Kafka sets no offsets of a group that has members; stop them first", kind="kafka"
            )
        return Failure(REFUSED, f"Kafka refuses: {where}{error.str()}", kind="kafka")


def properties_in(path: str | None) -> dict[str, str]:
    """The properties in a file. Raises `Failure`."""
    if path is None:
        return {}
    try:
        return read_properties(path)
    except InvalidInput as error:
        raise Failure(USAGE, f"{error}; check --kafka-properties", kind="file") from error


def _offset(one: Any) -> KafkaOffset:
    epoch = -1 if one.leader_epoch is None else one.leader_epoch
    return KafkaOffset(one.topic, one.partition, one.offset, epoch, one.metadata or "")


def _epoch_and_metadata(one: KafkaOffset) -> dict[str, int | str]:
    given: dict[str, int | str] = {} if one.leader_epoch < 0 else {"leader_epoch": one.leader_epoch}
    return {**given, "metadata": one.metadata} if one.metadata else given


def _silent() -> Any:
    import logging

    return logging.getLogger("librdkafka")


def _text(error: object) -> str:
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    text_of = getattr(inner, "str", None)
    return str(text_of() if callable(text_of) else inner)
