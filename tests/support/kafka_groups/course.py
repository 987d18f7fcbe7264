"""A stream of numbered records, and one group of members of every kind that process it while things happen to them.

Records go to the broker itself, so that they flow whatever becomes of the gateway. In the end the stream stops, what is
left is processed, everybody leaves, and the ledger is drawn up.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Producer

from tests.support.kafka_groups.events import Kind
from tests.support.kafka_groups.ledger import Ledger, Record, gather
from tests.support.kafka_groups.members import Members
from tests.support.servers.mock_kafka import LOGGED


class Stream:
    """Numbered records at a steady rate, one partition after the other."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: float) -> None:
        self.produced: set[Record] = set()
        self._producer: Any = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, **LOGGED})
        self._topic, self._partitions, self._rate = topic, partitions, rate
        self._stop = threading.Event()
        self._failures: list[str] = []
        self._thread = threading.Thread(target=self._run, name="stream of records")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until every record is in the log."""
        self._stop.set()
        self._thread.join()
        if self._failures:
            raise AssertionError(f"{len(self._failures)} records were not produced: {self._failures[0]}")

    def _run(self) -> None:
        began, sequence = time.monotonic(), 0
        while not self._stop.wait(max(0.0, began + sequence / self._rate - time.monotonic())):
            key = str(sequence).encode()
            where = sequence % self._partitions
            self._producer.produce(self._topic, key=key, value=key, partition=where, on_delivery=self._delivered)
            self._producer.poll(0)
            sequence += 1
        if self._producer.flush(30) > 0:
            self._failures.append("some were still under way after 30 s")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failures.append(str(error))
        else:
            self.produced.add(Record(f"{message.topic()}/{message.partition()}", message.offset()))


class Course:
    """A stream, its members, and what became of each record."""

    def __init__(self, stream: Stream, members: Members) -> None:
        self.stream = stream
        self.members = members
        self._began = time.monotonic()
        self.story: list[str] = []
        """What happened, with the second at which it did."""

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self.stream.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.members.close()
        if error is not None:
            self.stream._stop.set()

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return time.monotonic() - self._began

    def tell(self, what: str) -> None:
        self.story.append(f"{self.seconds:6.1f} s  {what}")

    def sleep_until(self, second: float) -> None:
        """Wait until that many seconds of the course are over."""
        time.sleep(max(0.0, second - self.seconds))

    def finish(self, within: float) -> Ledger:
        """Stop the stream, wait until all is processed or nothing happens any more, let everybody leave."""
        self.stream.stop()
        self.tell(f"no more records; {len(self.stream.produced)} were produced")
        deadline, last = time.monotonic() + within, -1
        while time.monotonic() < deadline and len(seen := self._processed()) < len(self.stream.produced):
            if len(seen) != last:
                # As long as something happens, it goes on.
                last, deadline = len(seen), time.monotonic() + within
            time.sleep(0.3)
        for member in self.members.all.values():
            if member.is_running:
                member.leave()
        self.tell("everybody has left")
        return self.ledger()

    def ledger(self) -> Ledger:
        members = self.members.all
        said = {name: member.events() for name, member in members.items()}
        in_batches = frozenset(name for name, member in members.items() if member.in_batches)
        return gather(frozenset(self.stream.produced), said, self.members.accidents(), in_batches)

    def counts(self) -> dict[str, dict[str, int]]:
        """How often each member said each thing."""
        found: dict[str, dict[str, int]] = {}
        for name, member in self.members.all.items():
            counted = found.setdefault(name, {})
            for event in member.events():
                counted[event.event.value] = counted.get(event.event.value, 0) + 1
        return found

    def complaints(self) -> list[str]:
        """What members said of errors and refused commits."""
        return [
            f"{name}: {event.event.value}: {event.what}"
            for name, member in self.members.all.items()
            for event in member.events()
            if event.event in (Kind.ERROR, Kind.REFUSED)
        ]

    def _processed(self) -> set[Record]:
        return {
            Record(event.partition, event.offset)
            for member in self.members.all.values()
            for event in member.events()
            if event.event is Kind.RECORD
        }
