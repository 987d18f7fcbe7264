"""Records that keep coming while a test does something else."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Producer


class Load:
    """Produces `rate` records a second to each partition until it is stopped. Counts what Kafka has confirmed."""

    def __init__(self, producer: Producer, partitions: Sequence[tuple[str, int]], rate: float) -> None:
        self._producer = producer
        self._partitions = partitions
        self._rate = rate
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._failures: list[str] = []
        self.produced: Counter[tuple[str, int]] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def stop(self) -> int:
        """No more records. How many there are."""
        self._stopped.set()
        self._thread.join()
        assert not self._failures, self._failures[0]
        return self.produced.total()

    def _run(self) -> None:
        tick = 0
        while not self._stopped.wait(0.1):
            for topic, partition in self._partitions:
                for number in range(max(1, int(self._rate / 10))):
                    value = f"{topic}/{partition}/{tick}/{number}".encode()
                    self._producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)
            tick += 1
        if self._producer.flush(60):
            self._failures.append("the producer could not get rid of all records")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failures.append(str(error))
        else:
            self.produced[message.topic(), message.partition()] += 1
