"""Unmodified Kafka 4 clients and a gRPC consumer in one exclusive group, on a real broker: every record once."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from tests.support.gateway.modern_service import modern_service
from tests.support.kafka_groups.checks import check
from tests.support.kafka_groups.ledger import Record, gather
from tests.support.kafka_groups.members import GroupMember, Members, until
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.mock_kafka import LOGGED

PARTITIONS = 6
TTL = 15.0
PATIENCE = 60.0


class Feed:
    """Produces to the broker itself, and knows what is there."""

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        self._producer: Any = Producer({"bootstrap.servers": broker.bootstrap, **LOGGED})
        self._topic = topic
        self.produced: set[Record] = set()

    def send(self, count: int) -> None:
        for number in range(count):
            self._producer.produce(self._topic, b"x", partition=number % PARTITIONS, on_delivery=self._sent)
        assert self._producer.flush(PATIENCE) == 0

    def _sent(self, error: Any, message: Any) -> None:
        assert error is None
        self.produced.add(Record(f"{message.topic()}/{message.partition()}", message.offset()))


def test_members_of_both_kinds_join_and_leave_and_each_record_is_processed_once(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, PARTITIONS)
    feed = Feed(kafka_broker, topic)
    with modern_service(kafka_broker.bootstrap, ttl=TTL, interval=1.0) as service:
        members = Members(tmp_path, "billing", topic, session=TTL)
        try:
            one = members.confluent("one", service.bootstrap)
            until(lambda: len(one.owned()) == PARTITIONS, PATIENCE, "the first member has everything")
            feed.send(300)
            grpc = members.assigner("grpc", kafka_broker.bootstrap, [service.assigner.address])
            until(lambda: len(one.owned()) == len(grpc.owned()) == 3, PATIENCE, "two members share the partitions")
            feed.send(300)
            two = members.confluent("two", service.bootstrap)
            everyone = [one, two, grpc]
            until(lambda: all(len(each.owned()) == 2 for each in everyone), PATIENCE, "three members share them")
            feed.send(300)
            one.leave()
            until(lambda: len(two.owned()) == len(grpc.owned()) == 3, PATIENCE, "the two that are left share them")
            feed.send(300)
            grpc.leave()
            until(lambda: len(two.owned()) == PARTITIONS, PATIENCE, "one is left")
            feed.send(300)
            until(lambda: _processed(everyone) >= len(feed.produced), PATIENCE, "everything is processed")
            said = {name: member.events() for name, member in members.all.items()}
        finally:
            members.close()
    findings = check(gather(frozenset(feed.produced), said))
    assert not findings.faults
    assert (findings.processed, len(findings.duplicates)) == (1500, 0)


def _processed(members: list[GroupMember]) -> int:
    return sum(one.processed() for one in members)
