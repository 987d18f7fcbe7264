"""A member of a Kafka group in Python, by one of three libraries, that says in lines of JSON what happens to it.

    python -m tests.support.kafka_groups.python_member library=confluent bootstrap=... group=g topics=t

Words: library (confluent, aiokafka, kafka-python), bootstrap, group, topics, protocol (consumer, classic), client_id,
instance_id, rack, commit (each, auto, none), session (seconds, classic), set.NAME=VALUE for the library. It leaves on
SIGTERM. Not promised: what a library does not offer; only confluent knows `protocol=consumer`, and aiokafka no rack.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from tests.support.kafka_groups.events import Kind, options_of, properties_of, say

_POLL = 0.1
_RETRY_FOR = 20.0
_PAUSE = 0.05
Options = dict[str, str]


def main(words: list[str]) -> int:
    options = options_of(words)
    leaving = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: leaving.set())
    try:
        _LIBRARIES[options["library"]](options, leaving)
    except Exception as failure:  # noqa: BLE001
        say(Kind.ERROR, what=f"{type(failure).__name__}: {failure}")
        return 1
    finally:
        say(Kind.CLOSED)
    return 0


# --- librdkafka --------------------------------------------------------------------------------------------------


def confluent(options: Options, leaving: threading.Event) -> None:
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer(_librdkafka(options))
    say(Kind.UP)

    def told(kind: Kind) -> Callable[[Any, list[Any]], None]:
        return lambda _, partitions: say(kind, partitions=_names(partitions))

    consumer.subscribe(
        options["topics"].split(","),
        on_assign=told(Kind.ASSIGNED),
        on_revoke=told(Kind.REVOKED),
        on_lost=told(Kind.LOST),
    )
    while not leaving.is_set():
        message = consumer.poll(_POLL)
        if message is None:
            continue
        if (error := message.error()) is not None:
            say(Kind.ERROR, what=str(error))
            if error.fatal():
                return
            continue
        offset: Any = message.offset()
        key: Any = message.key() or b""
        which = f"{message.topic()}/{message.partition()}"
        say(Kind.RECORD, partition=which, offset=offset, key=key.decode())
        if _commits_each(options):

            def commit(message: Any = message) -> None:
                for one in consumer.commit(message=message, asynchronous=False):
                    if one.error is not None:
                        raise KafkaException(one.error)

            _commit(which, offset + 1, commit, KafkaException, _may_be_tried_again)
    consumer.close()


def _librdkafka(options: Options) -> dict[str, Any]:
    protocol = options.get("protocol", "consumer")
    settings: dict[str, Any] = {
        "bootstrap.servers": options["bootstrap"],
        "group.id": options["group"],
        "group.protocol": protocol,
        "client.id": options.get("client_id", "confluent"),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": options.get("commit") == "auto",
        "fetch.wait.max.ms": 50,
        "broker.address.family": "v4",
        "log_level": 3,
    }
    if "instance_id" in options:
        settings["group.instance.id"] = options["instance_id"]
    if "rack" in options:
        settings["client.rack"] = options["rack"]
    if protocol == "classic":
        session = int(1000 * _session(options))
        settings |= {"session.timeout.ms": session, "heartbeat.interval.ms": session // 6}
    return settings | properties_of(options)


def _may_be_tried_again(failure: Any) -> bool:
    from confluent_kafka import KafkaError

    code = failure.args[0].code()
    passing = (KafkaError._TRANSPORT, KafkaError._WAIT_COORD, KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT)
    moving = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    return bool(failure.args[0].retriable()) or code in passing or code in moving


# --- kafka-python ------------------------------------------------------------------------------------------------


def kafka_python(options: Options, leaving: threading.Event) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc, unused-ignore]
        def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            say(Kind.ASSIGNED, partitions=_names(assigned))

        def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
            say(Kind.REVOKED, partitions=_names(revoked))

        def on_partitions_lost(self, lost: Iterable[Any]) -> None:
            say(Kind.LOST, partitions=_names(lost))

    session = int(1000 * _session(options))
    settings: dict[str, Any] = {
        "bootstrap_servers": options["bootstrap"],
        "group_id": options["group"],
        "client_id": options.get("client_id", "kafka-python"),
        "auto_offset_reset": "earliest",
        "enable_auto_commit": options.get("commit") == "auto",
        "session_timeout_ms": session,
        "heartbeat_interval_ms": session // 6,
        **({"group_instance_id": options["instance_id"]} if "instance_id" in options else {}),
        **properties_of(options),
    }
    consumer = KafkaConsumer(**settings)
    consumer.subscribe(options["topics"].split(","), listener=Listener())
    say(Kind.UP)
    while not leaving.is_set():
        for tp, records in consumer.poll(timeout_ms=int(_POLL * 1000), max_records=20).items():
            for record in records:
                which = f"{tp.topic}/{tp.partition}"
                say(Kind.RECORD, partition=which, offset=record.offset, key=(record.key or b"").decode())
                if _commits_each(options):
                    offsets = {TopicPartition(*tp): OffsetAndMetadata(record.offset + 1, "", -1)}

                    def commit(offsets: Any = offsets) -> None:
                        consumer.commit(offsets)

                    _commit(which, record.offset + 1, commit, KafkaError, _is_retriable)
    consumer.close()


def _is_retriable(failure: Any) -> bool:
    return bool(getattr(failure, "retriable", False))


# --- aiokafka ----------------------------------------------------------------------------------------------------


def aiokafka(options: Options, leaving: threading.Event) -> None:
    asyncio.run(_aiokafka(options, leaving))


async def _aiokafka(options: Options, leaving: threading.Event) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import KafkaError

    # It rebalances beside this loop: what is taken away is let go of between two records.
    turn, rebalances = asyncio.Lock(), 0

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc, unused-ignore]
        async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            say(Kind.ASSIGNED, partitions=_names(assigned))

        async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
            nonlocal rebalances
            async with turn:
                rebalances += 1
                say(Kind.REVOKED, partitions=_names(revoked))

    session = int(1000 * _session(options))
    consumer = AIOKafkaConsumer(
        bootstrap_servers=options["bootstrap"],
        group_id=options["group"],
        client_id=options.get("client_id", "aiokafka"),
        auto_offset_reset="earliest",
        # Its own default is one that Java's consumers do not offer.
        partition_assignment_strategy=(RangePartitionAssignor,),
        enable_auto_commit=options.get("commit") == "auto",
        session_timeout_ms=session,
        heartbeat_interval_ms=session // 6,
        **({"group_instance_id": options["instance_id"]} if "instance_id" in options else {}),
        **properties_of(options),
    )
    await consumer.start()
    consumer.subscribe(options["topics"].split(","), listener=Listener())
    say(Kind.UP)
    while not leaving.is_set():
        batch = await consumer.getmany(timeout_ms=int(_POLL * 1000), max_records=20)
        before = rebalances
        for tp, record in ((tp, record) for tp, records in batch.items() for record in records):
            async with turn:
                if rebalances != before:
                    # What is left of the batch is read again, by whoever has it now.
                    break
                which = f"{tp.topic}/{tp.partition}"
                say(Kind.RECORD, partition=which, offset=record.offset, key=(record.key or b"").decode())
                if _commits_each(options):
                    try:
                        await consumer.commit({tp: record.offset + 1})
                        say(Kind.COMMITTED, partition=which, offset=record.offset + 1)
                    except KafkaError as failure:
                        say(Kind.REFUSED, partition=which, offset=record.offset + 1, what=repr(failure)[:200])
    await consumer.stop()


# --- of all three ------------------------------------------------------------------------------------------------


def _commit(
    which: str,
    offset: int,
    attempt: Callable[[], None],
    errors: type[Exception],
    may_be_tried_again: Callable[[Any], bool],
) -> None:
    deadline = time.monotonic() + _RETRY_FOR
    while True:
        try:
            attempt()
        except errors as failure:
            if may_be_tried_again(failure) and time.monotonic() < deadline:
                time.sleep(_PAUSE)
                continue
            say(Kind.REFUSED, partition=which, offset=offset, what=str(failure))
        else:
            say(Kind.COMMITTED, partition=which, offset=offset)
        return


def _commits_each(options: Options) -> bool:
    return options.get("commit", "each") == "each"


def _session(options: Options) -> float:
    return float(options.get("session", "6"))


def _names(partitions: Iterable[Any]) -> list[str]:
    return sorted(f"{one.topic}/{one.partition}" for one in partitions)


_LIBRARIES: dict[str, Callable[[Options, threading.Event], None]] = {
    "confluent": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
