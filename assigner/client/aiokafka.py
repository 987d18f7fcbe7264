"""Reads the records of the partitions that the assigner assigns to this consumer, with aiokafka.

    async with AssignedKafkaConsumer("127.0.0.1:50051", "127.0.0.1:9092", "billing", "worker-1", ["orders"]) as records:
        async for record in records:
            await work_on(record)

A record counts as processed when the next one is requested. Offsets are committed to Kafka after each batch, with the
epoch in their metadata; the next owner starts from them. After SIGTERM or SIGINT the loop ends once every partition is
handed over.

Not promised: that a record is processed once. After a crash, or when a partition is lost in the middle of a batch, the
next owner reads the batch again: pass `epoch_of(record)` to the sink. Kafka does not compare the epoch of a commit, so
use a group with exclusive handoffs. Needs the extra `aiokafka`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from assigner.aio.backoff import Backoff
from assigner.client.consumer import DRAIN_WITHIN, AssignerConsumer
from assigner.client.gate import PartitionGate
from assigner.client.handler import Handler
from assigner.client.session import Ending
from assigner.core.client.gate import GateClosed, StaleEpoch
from assigner.core.client.messages import Ownership
from assigner.errors import FailedPrecondition, how_to_install
from assigner.logs import get_logger
from assigner.model.commands import Release

try:
    from aiokafka import AIOKafkaConsumer, ConsumerRecord, OffsetAndMetadata, TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.errors import GroupLoadInProgressError, KafkaError
except ImportError as error:
    raise ImportError(f"assigner.client.aiokafka needs aiokafka ({error}); {how_to_install('aiokafka')}") from error

POLL_MILLISECONDS = 200
"""How long a poll waits for records, and so the longest delay before a change of ownership is acted on."""
BATCH = 500
"""Records in one poll, and so in one commit."""
OFFSET_FETCH_RETRIES = 7
"""How often a committed offset is asked for again, about ten seconds in all. Not for ever: a release waits for it."""

_log = get_logger(__name__)


class _Position:
    """The position from which an owned partition is read."""

    __slots__ = ("epoch", "offset")

    def __init__(self, epoch: int, offset: int) -> None:
        self.epoch = epoch
        self.offset = offset


class _Partitions(Handler):
    """The owned partitions. Handler calls only record changes here; the reading loop applies them between two polls."""

    def __init__(self, kafka: Any, admin: Any, group: str) -> None:
        self._kafka = kafka
        self._admin = admin
        self._group = group
        self.owned: dict[Any, _Position] = {}
        self.changed = asyncio.Event()

    async def assigned(self, partition: Ownership) -> None:
        tp = TopicPartition(partition.topic, partition.partition)
        stored = await self._committed(tp)
        if stored.metadata.isdecimal() and int(stored.metadata) > partition.epoch:
            # An owner with a newer epoch committed: our grant is out of date, and its revocation will follow. If the
            # assigner's store lost its data, the old epochs are still in Kafka, and an operator has to reset them.
            raise FailedPrecondition(
                f"{partition} is behind the epoch {stored.metadata} of Kafka's committed offset; "
                "if the assigner's data was lost, commit the group's offsets anew without metadata"
            )
        offset = stored.offset if stored.offset >= 0 else (await self._kafka.beginning_offsets([tp]))[tp]
        self.owned[tp] = _Position(partition.epoch, offset)
        self.changed.set()

    async def _committed(self, tp: Any) -> Any:
        """Read Kafka's committed offset and metadata. Asks again while the group has no coordinator, as Kafka's own
        clients do: a new cluster creates the offsets topic at the first request, and a restarted broker has yet to load
        it."""
        backoff = Backoff(f"{tp.topic}/{tp.partition}")
        while True:
            try:
                found = await self._admin.list_consumer_group_offsets(self._group, partitions=[tp])
                if tp in found:
                    return found[tp]
                # aiokafka drops an error that concerns a whole reply, and returns no partitions.
                raise GroupLoadInProgressError(f"no offset of {tp.topic}/{tp.partition} in the reply")
            except KafkaError as error:
                if not error.retriable or backoff.tries == OFFSET_FETCH_RETRIES:
                    raise
                _log.info("offset_fetch_failed", partition=f"{tp.topic}/{tp.partition}", error=str(error))
            await backoff.pause()

    async def release(self, partition: Ownership, order: Release) -> None:
        # The gate admits nothing new. The client acks the release after the current record is processed and committed,
        # so the next owner starts where this one stopped.
        self._forget(partition)

    async def revoked(self, partition: Ownership, reason: str) -> None:
        self._forget(partition)

    def _forget(self, partition: Ownership) -> None:
        self.owned.pop(TopicPartition(partition.topic, partition.partition), None)
        self.changed.set()


class AssignedKafkaConsumer:
    """Combines an `AssignerConsumer` and an `AIOKafkaConsumer`. Iterate over it inside its block, in one task."""

    def __init__(
        self,
        assigner: str | Sequence[str],
        kafka: str | Sequence[str],
        group: str,
        name: str,
        topics: Sequence[str],
        *,
        connection: Mapping[str, Any] | None = None,
        reader: Mapping[str, Any] | None = None,
        until_signal: bool = True,
        drain_within: float = DRAIN_WITHIN,
        **consumer: Any,
    ) -> None:
        """`connection`: aiokafka's connection options, such as `security_protocol`. `reader`, `consumer`: further
        arguments of `AIOKafkaConsumer` and of `AssignerConsumer`. `until_signal`: stop at SIGTERM or SIGINT; without
        it, the program handles signals and calls `stop`."""
        reaching = {"bootstrap_servers": kafka, **(connection or {})}
        # The group id is only the name under which offsets are committed: no consumer joins that Kafka group.
        fixed = {"group_id": group, "enable_auto_commit": False}
        self._admin = AIOKafkaAdminClient(**reaching)
        self._kafka = AIOKafkaConsumer(**reaching, **{**(reader or {}), **fixed})
        self._partitions = _Partitions(self._kafka, self._admin, group)
        self._members = AssignerConsumer(assigner, group, name, topics, self._partitions, **consumer)
        self._until_signal = until_signal
        self._drain_within = drain_within
        self._stack = AsyncExitStack()
        self._end: asyncio.Task[Ending] | None = None
        self._records = self._read()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._admin.start()
            stack.push_async_callback(self._admin.close)
            await self._kafka.start()
            stack.push_async_callback(self._kafka.stop)
            self._end = asyncio.create_task(self._run(), name="assigner-consumer of aiokafka")
            stack.push_async_callback(self._leave)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # First, because the current record holds its gate.
        await self._records.aclose()
        await self._stack.aclose()

    @property
    def members(self) -> AssignerConsumer:
        """The `AssignerConsumer`: its partitions, gates and statistics."""
        return self._members

    def epoch_of(self, record: ConsumerRecord) -> int | None:
        """The epoch under which the record's partition is owned, for a sink that refuses lower ones."""
        return self._gate(TopicPartition(record.topic, record.partition)).epoch

    async def stop(self) -> None:
        """Hand every partition over and end the loop over the records. Returns when that is done."""
        await self._members.drain(self._drain_within)

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self._records

    # --- the membership ------------------------------------------------------------------------------------------

    async def _run(self) -> Ending:
        try:
            if self._until_signal:
                return await self._members.run_until_signal(drain_within=self._drain_within)
            async with self._members as members:
                return await members.closed()
        finally:
            self._partitions.changed.set()

    async def _leave(self) -> None:
        await self._members.close()
        if self._end is not None:
            self._end.cancel()
            await asyncio.wait([self._end])

    # --- reading ---------------------------------------------------------------------------------------------------

    async def _read(self) -> AsyncGenerator[ConsumerRecord, None]:
        assert self._end is not None, "iterate inside the block"
        partitions = self._partitions
        while not self._end.done():
            if partitions.changed.is_set():
                self._assign()
            if not partitions.owned:
                await partitions.changed.wait()
                continue
            owned = dict(partitions.owned)
            for tp, records in (await self._kafka.getmany(timeout_ms=POLL_MILLISECONDS, max_records=BATCH)).items():
                # A partition that was lost meanwhile is read from its committed offset again, even if it came back.
                if records and partitions.owned.get(tp) is owned.get(tp):
                    async for record in self._work_on(tp, owned[tp], records):
                        yield record
        # An error that ended the consumer is raised in the loop.
        self._end.result()

    def _assign(self) -> None:
        self._partitions.changed.clear()
        self._kafka.assign(list(self._partitions.owned))
        # `assign` drops all positions, so each partition is set to its known position again.
        for tp, position in self._partitions.owned.items():
            self._kafka.seek(tp, position.offset)

    async def _work_on(
        self, tp: Any, position: _Position, records: list[ConsumerRecord]
    ) -> AsyncGenerator[ConsumerRecord, None]:
        gate = self._gate(tp)
        try:
            with gate.enter(position.epoch) as epoch:
                for record in records:
                    yield record
                    position.offset = record.offset + 1
                    if not gate.is_open:
                        # Release as soon as possible: the next owner reads the rest.
                        break
                gate.check(epoch)
                await self._kafka.commit({tp: OffsetAndMetadata(position.offset, str(epoch))})
        except (GateClosed, StaleEpoch) as closed:
            _log.info("batch_dropped", partition=f"{tp.topic}/{tp.partition}", records=len(records), reason=str(closed))

    def _gate(self, tp: Any) -> PartitionGate:
        return self._members.gate(tp.topic, tp.partition)
