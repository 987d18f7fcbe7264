"""Consume with aiokafka, with partitions given out by the assigner instead of Kafka's own group protocol.

    python docs/examples/aiokafka_consumer.py --assigner 127.0.0.1:50051 --kafka 127.0.0.1:9092 \\
        --group billing --topic orders --name worker-1

Start it several times with different names. SIGTERM or Ctrl-C drains: what it holds is handed over first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable

from aiokafka import AIOKafkaConsumer, ConsumerRecord, OffsetAndMetadata
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.admin import AIOKafkaAdminClient

from assigner.client import AssignerConsumer, GateClosed, Handler, Ownership, ReleaseOrder, StaleEpoch

Process = Callable[[ConsumerRecord, int], Awaitable[None]]
"""What is done with a record, and the epoch to do it under: give the epoch to the sink and let it refuse older ones."""


class Position:
    """Where a partition that is owned now is read from."""

    def __init__(self, epoch: int, offset: int) -> None:
        self.epoch = epoch
        self.offset = offset


class Worker(Handler):
    """One Kafka consumer for all partitions that the assigner gives to this process."""

    def __init__(self, kafka: AIOKafkaConsumer, admin: AIOKafkaAdminClient, group: str, process: Process) -> None:
        self._kafka = kafka
        self._admin = admin
        self._group = group
        self._process = process
        self._owned: dict[KafkaPartition, Position] = {}
        self._changed = asyncio.Event()

    # --- what the assigner says: only facts are noted here, the loop below acts on them ------------------------------

    async def assigned(self, partition: Ownership) -> None:
        tp = KafkaPartition(partition.topic, partition.partition)
        stored = (await self._admin.list_consumer_group_offsets(self._group, partitions=[tp]))[tp]
        if stored.metadata.isdecimal() and int(stored.metadata) > partition.epoch:
            # Someone with a newer epoch was here: our grant is out of date, and its end is on the way to us.
            raise RuntimeError(f"{partition} is behind the committed epoch {stored.metadata}")
        offset = stored.offset if stored.offset >= 0 else (await self._kafka.beginning_offsets([tp]))[tp]
        self._owned[tp] = Position(partition.epoch, offset)
        self._changed.set()

    async def release(self, partition: Ownership, order: ReleaseOrder) -> None:
        # The gate admits no new batch. The one under way ends with its commit, and the client waits for that before
        # it reports the release, so the next owner starts where this one stopped.
        self._forget(partition)

    async def revoked(self, partition: Ownership, reason: str) -> None:
        self._forget(partition)

    def _forget(self, partition: Ownership) -> None:
        self._owned.pop(KafkaPartition(partition.topic, partition.partition), None)
        self._changed.set()

    # --- the work ----------------------------------------------------------------------------------------------------

    async def run(self, members: AssignerConsumer) -> None:
        while True:
            if self._changed.is_set():
                self._assign()
            if not self._owned:
                await self._changed.wait()
                continue
            owned = dict(self._owned)
            for tp, records in (await self._kafka.getmany(timeout_ms=200, max_records=500)).items():
                # A partition that was lost meanwhile, even if it came back, is read anew from its commit.
                if records and self._owned.get(tp) is owned.get(tp):
                    await self._work_on(members, tp, owned[tp], records)

    def _assign(self) -> None:
        self._changed.clear()
        self._kafka.assign(list(self._owned))
        # `assign` replaces everything and forgets where it was, so every partition is put where we know it is.
        for tp, position in self._owned.items():
            self._kafka.seek(tp, position.offset)

    async def _work_on(
        self, members: AssignerConsumer, tp: KafkaPartition, position: Position, records: list[ConsumerRecord]
    ) -> None:
        gate = members.gate(tp.topic, tp.partition)
        try:
            with gate.enter(position.epoch) as epoch:
                for record in records:
                    await self._process(record, epoch)
                gate.check(epoch)
                after = records[-1].offset + 1
                await self._kafka.commit({tp: OffsetAndMetadata(after, str(epoch))})
                position.offset = after
        except (GateClosed, StaleEpoch) as closed:
            print(f"dropped {len(records)} records of {tp.topic}/{tp.partition}: {closed}")


async def consume(assigner: str, kafka: str, group: str, topic: str, name: str, process: Process) -> None:
    """Until cancelled, or until the assigner has drained this consumer."""
    async with contextlib.AsyncExitStack() as stack:
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
        await admin.start()
        stack.push_async_callback(admin.close)
        # The group id is only the name under which offsets are committed: nobody joins that group.
        reader = AIOKafkaConsumer(bootstrap_servers=kafka, group_id=group, enable_auto_commit=False)
        await stack.enter_async_context(reader)
        worker = Worker(reader, admin, group, process)
        members = await stack.enter_async_context(AssignerConsumer(assigner, group, name, [topic], worker))
        work = asyncio.create_task(worker.run(members))
        end = asyncio.create_task(members.closed())
        try:
            await asyncio.wait({work, end}, return_when=asyncio.FIRST_COMPLETED)
            if end.done():
                end.result()
            else:
                work.result()
        except asyncio.CancelledError:
            await members.drain(timeout=60)
        finally:
            for task in (work, end):
                task.cancel()
            await asyncio.wait({work, end})


async def show(record: ConsumerRecord, epoch: int) -> None:
    print(f"{record.topic}/{record.partition} offset {record.offset} epoch {epoch}: {record.value!r}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--assigner", "--kafka", "--group", "--topic", "--name"):
        parser.add_argument(option, required=True)
    options = parser.parse_args()
    work = asyncio.create_task(consume(**vars(options), process=show))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    await asyncio.wait({work})
    if not work.cancelled():
        work.result()


if __name__ == "__main__":
    asyncio.run(main())
