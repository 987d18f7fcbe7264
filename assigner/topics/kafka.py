"""Reads topics from Kafka: partition counts, topic ids, racks of the replicas.

This is the only module of the service that knows confluent-kafka (the extra `kafka`), and it imports the library at the
first call. Calls are made on a thread and answered by librdkafka's own threads, so the event loop never blocks. TLS and
SASL are librdkafka's properties (`security.protocol`, `ssl.*`, `sasl.*`), passed on as they are; certificates are
verified unless a property says otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import anyio
import anyio.to_thread

from assigner.errors import InvalidInput, InvalidName, how_to_install
from assigner.model.names import check_topic
from assigner.model.records import TopicConfig
from assigner.secret_files import read_properties, stamp
from assigner.topics.source import TopicAnswer, TopicMissing, TopicUnavailable

CLIENT_ID = "kafka-assigner"
BATCH = 500
"""Topics in one request."""
_GRACE = 1.0
"""librdkafka times a request out by itself; this many seconds later we stop waiting for it."""


class KafkaSource:
    name = "kafka"
    remedy = "create it in Kafka, or set it with `assigner topics set`"

    def __init__(
        self,
        bootstrap_servers: str,
        properties: Mapping[str, str] | None = None,
        *,
        timeout: float = 15.0,
        properties_file: str | None = None,
    ) -> None:
        """`timeout`: seconds that one request (up to 500 topics) may take. `properties_file`: further properties, read
        again before a call if the file has changed."""
        if not bootstrap_servers.strip():
            raise InvalidInput("kafka bootstrap servers are empty; name at least one as host:port")
        self._properties = {
            "client.id": CLIENT_ID,
            # Failures are returned as answers; librdkafka's own lines about each try would flood the log.
            "log_level": "0",
            **(properties or {}),
        }
        self._servers = {"bootstrap.servers": bootstrap_servers}
        self._timeout = timeout
        self._file = properties_file
        self._stamp: tuple[int, int] | None = None
        """The modification time and size of the properties file that the client was created with."""
        self._client: _Client | None = None
        self._opening = anyio.Lock()

    async def describe(self, topics: Sequence[str]) -> Mapping[str, TopicAnswer]:
        # librdkafka rejects a whole request for one invalid name.
        answers: dict[str, TopicAnswer] = {topic: TopicUnavailable("not a name Kafka takes") for topic in topics}
        names = [topic for topic in answers if _is_topic(topic)]
        client = await self._open()
        for first in range(0, len(names), BATCH):
            answers |= await client.describe(names[first : first + BATCH])
        return answers

    async def aclose(self) -> None:
        """Close the connections. The next call opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _open(self) -> _Client:
        async with self._opening:
            at = await anyio.to_thread.run_sync(stamp, self._file) if self._file else None
            if self._client is not None and at is not None and at != self._stamp:
                await self.aclose()
            if self._client is None:
                self._client = await anyio.to_thread.run_sync(self._make)
                self._stamp = at
            return self._client

    def _make(self) -> _Client:
        more = read_properties(self._file) if self._file else {}
        return _Client({**self._properties, **more, **self._servers}, self._timeout)


class _Client:
    """An AdminClient and its library, created on a thread because importing and connecting block."""

    def __init__(self, properties: Mapping[str, str], timeout: float) -> None:
        self._library = _library()
        self._timeout = timeout
        self._errors: deque[str] = deque(maxlen=1)
        # Without a logger the library writes to stderr. It logs when it is polled.
        config = {**properties, "error_cb": self._note, "logger": logging.getLogger("librdkafka")}
        try:
            self._admin: Any = self._library.admin.AdminClient(config)
        except (self._library.KafkaException, ValueError, TypeError) as error:
            raise InvalidInput(f"kafka properties are refused: {_text(error)}; correct the setting") from error

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicAnswer]:
        try:
            futures = await anyio.to_thread.run_sync(self._send, list(topics))
        except (self._library.KafkaException, ValueError) as error:
            return {topic: self._failure(error) for topic in topics}
        deadline = anyio.current_time() + self._timeout + _GRACE
        found = {topic: await _outcome(future, deadline) for topic, future in futures.items()}
        # Polling delivers the library's log lines and the reasons of failures.
        await anyio.to_thread.run_sync(self._admin.poll, 0)
        return {topic: self._answer(topic, outcome) for topic, outcome in found.items()}

    async def aclose(self) -> None:
        # Dropping the last reference blocks until librdkafka's threads have ended.
        held = [self._admin]
        self._admin = None
        await anyio.to_thread.run_sync(held.clear)

    def _send(self, topics: list[str]) -> dict[str, Future[Any]]:
        collection = self._library.TopicCollection(topics)
        futures: dict[str, Future[Any]] = self._admin.describe_topics(collection, request_timeout=self._timeout)
        return futures

    def _answer(self, topic: str, found: Any) -> TopicAnswer:
        if isinstance(found, BaseException):
            return self._failure(found)
        partitions = sorted(found.partitions, key=lambda partition: partition.id)
        if [partition.id for partition in partitions] != list(range(len(partitions))):
            return TopicUnavailable(f"Kafka described only some partitions of {topic!r}")
        return TopicConfig(
            topic=topic,
            partition_count=len(partitions),
            topic_id=str(found.topic_id),
            replica_racks=_replica_racks(partitions),
            source=KafkaSource.name,
        )

    def _failure(self, error: BaseException) -> TopicAnswer:
        code = error.args[0].code() if isinstance(error, self._library.KafkaException) else None
        if code == self._library.KafkaError.UNKNOWN_TOPIC_OR_PART:
            return TopicMissing()
        return TopicUnavailable("; ".join([_text(error), *self._errors]))

    def _note(self, error: object) -> None:
        self._errors.append(_text(error))


def _is_topic(name: str) -> bool:
    try:
        check_topic(name)
    except InvalidName:
        return False
    return True


def _replica_racks(partitions: Sequence[Any]) -> tuple[tuple[str, ...], ...]:
    """Collect the racks of each partition's replicas, sorted, so that a change of leader is no change of racks; empty
    if no broker has a rack."""
    racks = tuple(tuple(sorted({node.rack for node in it.replicas if node.rack})) for it in partitions)
    return racks if any(racks) else ()


def _library() -> Any:
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise InvalidInput(
            f"discovering topics from Kafka needs confluent-kafka ({error}); {how_to_install('kafka')}"
        ) from error
    return confluent_kafka


async def _outcome(future: Future[Any], deadline: float) -> Any:
    """Wait for the future, and return its result or exception as a value. The future itself is never cancelled:
    librdkafka's thread would fail to set its result."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def wake(_: Future[Any]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(wake)
    with anyio.CancelScope(deadline=deadline):
        await done.wait()
    if not future.done():
        return TimeoutError("Kafka did not answer in time")
    return future.exception() or future.result()


def _text(error: object) -> str:
    """The message of a librdkafka error, without its code."""
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    text_of = getattr(inner, "str", None)
    return str(text_of() if callable(text_of) else inner)
