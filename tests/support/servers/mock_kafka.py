"""librdkafka's mock cluster: Kafka enough to produce and read, started in no time, gone with the process.

Topics come to be by being produced to, with 4 partitions each; of a partition about 5 MB are kept. There are no
transactions, no compaction and no deletion of topics: what depends on those is tested against a real broker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer

PARTITIONS = 4
LOGGED: dict[str, Any] = {"logger": logging.getLogger("librdkafka")}
"""For a client whose library messages are to go to Python's logging instead of stderr."""


class MockKafka:
    def __init__(self, brokers: int = 1) -> None:
        self._producer = Producer({"test.mock.num.brokers": brokers, "log_level": 3, "linger.ms": 1, **LOGGED})
        found = self._producer.list_topics(timeout=10).brokers.values()
        self.bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in found)
        self.ends: dict[tuple[str, int], int] = {}
        """The next offset of each partition."""

    def produce(self, topic: str, count: int, *, partitions: Iterable[int] = range(PARTITIONS), **more: Any) -> None:
        """`count` records to each of the partitions; a record's value says which one it is."""
        for partition in partitions:
            first = self.ends.get((topic, partition), 0)
            for offset in range(first, first + count):
                record: dict[str, Any] = {"value": f"{topic}/{partition}/{offset}".encode(), **more}
                self._producer.produce(topic, partition=partition, **record)
                self._producer.poll(0)
            self.ends[topic, partition] = first + count
        assert self._producer.flush(30) == 0
