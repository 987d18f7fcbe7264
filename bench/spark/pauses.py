"""How long a partition rests when it changes hands: from the old owner's last committed row to the new owner's first.

With `assigned_kafka` a query joins another one, and is drained again; the queries run on. With Spark's own source the
option `assign` is fixed, so a query is stopped and started anew with another one, a new checkpoint, and the offsets it
had reached. Same topic, same trigger, same sink (rows are collected) and records that keep coming.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import msgspec
import numpy as np
from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from assigner.spark import drain
from bench.spark.environment import Environment

TOPIC, GROUP = "pauses", "pauses"
PARTITIONS = 8
TRIGGER = "500 milliseconds"
RATE = 50
"""Records per second and partition."""
PATIENCE = 300.0


class Pauses(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that partitions rested, one number for each change of hands."""

    what: str
    seconds: tuple[float, ...]

    def at(self, percent: float) -> float:
        return float(np.percentile(self.seconds, percent))


class Journal:
    """When which owner had rows of a partition committed, and up to where."""

    def __init__(self) -> None:
        self._events: dict[int, list[tuple[float, str]]] = defaultdict(list)
        self._lock = threading.Lock()
        self.next_offsets: dict[int, int] = {}

    def of(self, owner: str) -> Callable[[DataFrame, int], None]:
        """A function for `foreachBatch` in the owner's name."""

        def note(rows: DataFrame, batch_id: int) -> None:
            found = rows.select("partition", "offset").collect()
            now = time.monotonic()
            with self._lock:
                for partition in {row["partition"] for row in found}:
                    self._events[partition].append((now, owner))
                for row in found:
                    reached = self.next_offsets.get(row["partition"], 0)
                    self.next_offsets[row["partition"]] = max(reached, row["offset"] + 1)

        return note

    def has_heard(self, owner: str, partitions: int) -> bool:
        """Whether the owner has committed rows of so many partitions."""
        with self._lock:
            return sum(any(by == owner for _, by in events) for events in self._events.values()) == partitions

    def has_all_since(self, moment: float) -> bool:
        """Whether rows of all partitions were committed since then."""
        with self._lock:
            return all(events[-1][0] > moment for events in self._events.values())

    def gaps(self, *, changed: bool) -> tuple[float, ...]:
        """Seconds between two commits of a partition: by different owners, or by the same one."""
        with self._lock:
            steps = [step for events in self._events.values() for step in pairwise(events)]
        return tuple(after - before for (before, old), (after, new) in steps if (old != new) is changed)


# --- assigned_kafka ------------------------------------------------------------------------------------------------


def handoffs(environment: Environment, rounds: int, tell: Callable[[str], None]) -> list[Pauses]:
    environment.assigner.set_topic(GROUP, TOPIC, PARTITIONS)
    journal = Journal()

    def start(member: str, owner: str) -> StreamingQuery:
        return run(environment, environment.assigned(TOPIC, GROUP, member), journal.of(owner))

    first = start("first", "first")
    until(partial(journal.has_heard, "first", PARTITIONS), first)
    for number in range(rounds):
        owner = f"second-{number}"
        second = start("second", owner)
        until(partial(journal.has_heard, owner, PARTITIONS // 2), first, second)
        drain(second, PATIENCE)
        until(partial(journal.has_all_since, time.monotonic()), first)
        tell(f"handoffs: round {number + 1} of {rounds}")
    drain(first, PATIENCE)
    moved = Pauses(what="assigned_kafka: a partition moves", seconds=journal.gaps(changed=True))
    return [moved, Pauses(what="nothing moves: from batch to batch", seconds=journal.gaps(changed=False))]


# --- Spark's own source ----------------------------------------------------------------------------------------------


def restarts(environment: Environment, rounds: int, tell: Callable[[str], None]) -> Pauses:
    journal = Journal()
    shares = (list(range(PARTITIONS)), list(range(PARTITIONS // 2)))
    for number in range(rounds + 1):
        share, owner = shares[number % 2], f"assign-{number}"
        offsets = {str(one): journal.next_offsets.get(one, -2) for one in share}
        rows = environment.jvm(assign=json.dumps({TOPIC: share}), startingOffsets=json.dumps({TOPIC: offsets}))
        query = run(environment, rows, journal.of(owner))
        until(partial(journal.has_heard, owner, len(share)), query)
        tell(f"restarts: {number} of {rounds}")
        query.stop()
    return Pauses(what="kafka (JVM): assign changes", seconds=journal.gaps(changed=True))


# --- both ------------------------------------------------------------------------------------------------------------


def run(environment: Environment, rows: DataFrame, note: Callable[[DataFrame, int], None]) -> StreamingQuery:
    writer = rows.writeStream.foreachBatch(note).option("checkpointLocation", environment.new_checkpoint())
    return writer.trigger(processingTime=TRIGGER).start()


def until(condition: Callable[[], bool], *queries: StreamingQuery) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        for query in queries:
            failure = query.exception()
            if failure is not None:
                raise failure
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s"
        time.sleep(0.05)


@contextmanager
def records_coming(environment: Environment) -> Iterator[None]:
    """Some records for every partition, all the time."""
    environment.create(TOPIC, PARTITIONS)
    producer = Producer({"bootstrap.servers": environment.bootstrap, "linger.ms": 5})
    stopped = threading.Event()

    def produce() -> None:
        while not stopped.wait(0.1):
            for partition in range(PARTITIONS):
                for _ in range(RATE // 10):
                    producer.produce(TOPIC, b"x" * 100, partition=partition)
            producer.poll(0)
        producer.flush(30)

    thread = threading.Thread(target=produce, name="records", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
