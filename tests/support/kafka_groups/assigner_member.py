"""A gRPC consumer that reads Kafka and commits to the assigner, and says in lines of JSON what happens to it.

    python -m tests.support.kafka_groups.assigner_member assigner=... bootstrap=... group=g topics=t client_id=a

Words: assigner (addresses, by commas), bootstrap, group, topics, client_id (its name in the group), rack. It leaves on
SIGTERM. aiokafka fetches; no Kafka group is joined.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as KafkaPartition

from assigner.client import AssignerConsumer, GateClosed, Handler, Ownership, Release, StaleEpoch, TopicPartition
from assigner.errors import AssignerError
from tests.support.kafka_groups.events import Kind, options_of, say

_POLL_MILLISECONDS = 50
_AT_ONCE = 20
_LEAVE_WITHIN = 15.0


class _Positions(Handler):
    """What is owned, and from where each partition is read."""

    def __init__(self) -> None:
        self.consumer: AssignerConsumer
        self.owned: dict[TopicPartition, Ownership] = {}
        self.next: dict[TopicPartition, int] = {}
        self.changed = asyncio.Event()
        self.turn = asyncio.Lock()
        """Held while a record is worked on, so that what is said of a release comes after it."""

    async def assigned(self, partition: Ownership) -> None:
        found = await self.consumer.committed([partition])
        self.owned[partition.tp] = partition
        self.next[partition.tp] = found[partition.tp].offset if partition.tp in found else 0
        say(Kind.ASSIGNED, partitions=[str(partition.tp)])
        self.changed.set()

    async def release(self, partition: Ownership, order: Release) -> None:
        async with self.turn:
            self._forget(partition, Kind.REVOKED)

    async def revoked(self, partition: Ownership, reason: str) -> None:
        self._forget(partition, Kind.LOST)

    def _forget(self, partition: Ownership, kind: Kind) -> None:
        if self.owned.pop(partition.tp, None) is not None:
            say(kind, partitions=[str(partition.tp)])
        self.changed.set()


async def main(options: dict[str, str]) -> int:
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    positions = _Positions()
    addresses, topics = options["assigner"].split(","), options["topics"].split(",")
    name, rack = options["client_id"], options.get("rack", "")
    consumer = AssignerConsumer(addresses, options["group"], name, topics, positions, rack=rack)
    positions.consumer = consumer
    kafka = AIOKafkaConsumer(bootstrap_servers=options["bootstrap"], enable_auto_commit=False, fetch_max_wait_ms=50)
    await kafka.start()
    say(Kind.UP)
    try:
        async with consumer:
            reading = asyncio.create_task(_read(kafka, consumer, positions))
            ended = asyncio.create_task(consumer.closed())
            asked = asyncio.create_task(leaving.wait())
            await asyncio.wait([reading, ended, asked], return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                await consumer.drain(_LEAVE_WITHIN)
            reading.cancel()
            asked.cancel()
            await asyncio.wait([reading, asked])
            if not reading.cancelled():
                reading.result()
        ended.result()
    except (AssignerError, OSError) as failure:
        say(Kind.ERROR, what=f"{type(failure).__name__}: {failure}")
        return 1
    finally:
        await kafka.stop()
        say(Kind.CLOSED)
    return 0


async def _read(kafka: Any, consumer: AssignerConsumer, positions: _Positions) -> None:
    while True:
        if positions.changed.is_set():
            positions.changed.clear()
            kafka.assign([KafkaPartition(tp.topic, tp.partition) for tp in positions.owned])
            for tp in positions.owned:
                kafka.seek(KafkaPartition(tp.topic, tp.partition), positions.next[tp])
        if not positions.owned:
            await positions.changed.wait()
            continue
        found = await kafka.getmany(timeout_ms=_POLL_MILLISECONDS, max_records=_AT_ONCE)
        for kafka_partition, records in found.items():
            tp = TopicPartition(kafka_partition.topic, kafka_partition.partition)
            for record in records:
                async with positions.turn:
                    if not await _work_on(consumer, positions, tp, record):
                        break


async def _work_on(consumer: AssignerConsumer, positions: _Positions, tp: TopicPartition, record: Any) -> bool:
    """Process and commit one record; false: it is not ours to process."""
    owned = positions.owned.get(tp)
    if owned is None or record.offset != positions.next[tp]:
        return False
    try:
        with consumer.gate(tp.topic, tp.partition).enter(owned.epoch):
            say(Kind.RECORD, partition=str(tp), offset=record.offset, key=(record.key or b"").decode())
            positions.next[tp] += 1
            await consumer.commit({owned: record.offset + 1})
            say(Kind.COMMITTED, partition=str(tp), offset=record.offset + 1)
    except (GateClosed, StaleEpoch):
        return False
    except AssignerError as failure:
        say(Kind.REFUSED, partition=str(tp), offset=record.offset + 1, what=str(failure))
    return True


if __name__ == "__main__":
    sys.exit(asyncio.run(main(options_of(sys.argv[1:]))))
