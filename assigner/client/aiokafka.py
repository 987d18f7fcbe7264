"""aiokafka reads what the assigner assigns: records of the partitions that are this consumer's, one after another.

    async with AssignedKafkaConsumer("127.0.0.1:50051", "127.0.0.1:9092", "billing", "worker-1", ["orders"]) as records:
        async for record in records:
            await work_on(record)

A record counts as done when the next one is asked for. Offsets are committed to Kafka after each batch, with the epoch
in their metadata; they are what the next owner starts from. SIGTERM or SIGINT lets the loop end once everything is
handed over.

Not promised: that a record is worked on once. After a crash, or when a partition is lost in the middle of a batch, the
batch is read again by the next owner: give `epoch_of(record)` to whatever the work has an effect on. Kafka does not
compare the epoch of a commit, so use a group with exclusive handoffs. Needs the extra `aiokafka`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

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
except ImportError as error:
    raise ImportError(f"assigner.client.aiokafka needs aiokafka ({error}); {how_to_install('aiokafka')}") from error

POLL_MILLISECONDS = 200
"""How long a poll waits for records, and so how soon a change of what is owned is acted upon."""
BATCH = 500
"""Records of one poll, and so of one commit."""

_log = get_logger(__name__)


class _Position:
    """Where a partition that is owned now is read from."""

    __slots__ = ("epoch", "offset")

    def __init__(self, epoch: int, offset: int) -> None:
        self.epoch = epoch
        self.offset = offset


class _Partitions(Handler):
    """What is owned. The assigner's calls only note facts here; the loop that reads acts on them between two polls."""

    def __init__(self, kafka: Any, admin: Any, group: str) -> None:
        self._kafka = kafka
        self._admin = admin
        self._group = group
        self.owned: dict[Any, _Position] = {}
        self.changed = asyncio.Event()

    async def assigned(self, partition: Ownership) -> None:
        tp = TopicPartition(partition.topic, partition.partition)
        stored = (await self._admin.list_consumer_group_offsets(self._group, partitions=[tp]))[tp]
        if stored.metadata.isdecimal() and int(stored.metadata) > partition.epoch:
            # Someone with a newer epoch was here: our grant is out of date, and its end is on the way to us. Where the
            # assigner's store lost its data the old epochs stay in Kafka, and only who knows that can reset them.
            raise FailedPrecondition(
                f"{partition} is behind the epoch {stored.metadata} of Kafka's committed offset; "
                "if the assigner's data was lost, commit the group's offsets anew without metadata"
            )
        offset = stored.offset if stored.offset >= 0 else (await self._kafka.beginning_offsets([tp]))[tp]
        self.owned[tp] = _Position(partition.epoch, offset)
        self.changed.set()

    async def release(self, partition: Ownership, order: Release) -> None:
        # The gate admits nothing new. The record under way ends with its commit, and the client waits for that before
        # it reports the release, so the next owner starts where this one stopped.
        self._forget(partition)

    async def revoked(self, partition: Ownership, reason: str) -> None:
        self._forget(partition)

    def _forget(self, partition: Ownership) -> None:
        self.owned.pop(TopicPartition(partition.topic, partition.partition), None)
        self.changed.set()


class AssignedKafkaConsumer:
    """An `AssignerConsumer` and an `AIOKafkaConsumer` as one. Iterate over it inside its block, in one task."""

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
        """`connection`: what aiokafka needs to reach the brokers, such as `security_protocol`. `reader`: further
        arguments of `AIOKafkaConsumer`. `consumer`: of `AssignerConsumer`. Without `until_signal` the program has
        signals for itself, and calls `stop`."""
        reaching = {"bootstrap_servers": kafka, **(connection or {})}
        # The group id is only the name under which offsets are committed: nobody joins that group.
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
        # First of all: a record under way holds its gate.
        await self._records.aclose()
        await self._stack.aclose()

    @property
    def members(self) -> AssignerConsumer:
        """The membership: what is owned, statistics, gates."""
        return self._members

    def epoch_of(self, record: ConsumerRecord) -> int | None:
        """The epoch under which the partition is worked on; for a sink that refuses lower ones."""
        return self._gate(TopicPartition(record.topic, record.partition)).epoch

    async def stop(self) -> None:
        """Hand everything over; the loop over the records ends when that is done. Returns then, too."""
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
                # A partition that was lost meanwhile, even if it came back, is read anew from its commit.
                if records and partitions.owned.get(tp) is owned.get(tp):
                    async for record in self._work_on(tp, owned[tp], records):
                        yield record
        # Whatever ended the membership badly is the loop's failure.
        self._end.result()

    def _assign(self) -> None:
        self._partitions.changed.clear()
        self._kafka.assign(list(self._partitions.owned))
        # `assign` replaces everything and forgets where it was, so every partition is put where we know it is.
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
                        # Let go as soon as may be: the next owner reads the rest.
                        break
                gate.check(epoch)
                await self._kafka.commit({tp: OffsetAndMetadata(position.offset, str(epoch))})
        except (GateClosed, StaleEpoch) as closed:
            _log.info("batch_dropped", partition=f"{tp.topic}/{tp.partition}", records=len(records), reason=str(closed))

    def _gate(self, tp: Any) -> PartitionGate:
        return self._members.gate(tp.topic, tp.partition)
