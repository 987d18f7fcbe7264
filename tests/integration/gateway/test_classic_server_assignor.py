"""Unmodified cooperative clients whose partitions the service assigns: nobody stops working on what it keeps."""

from __future__ import annotations

import uuid
from pathlib import Path

from tests.integration.gateway.test_kafka_4_members import PARTITIONS, PATIENCE, Feed
from tests.support.gateway.classic_service import classic_services
from tests.support.kafka_groups.checks import check
from tests.support.kafka_groups.events import Kind
from tests.support.kafka_groups.ledger import gather
from tests.support.kafka_groups.members import GroupMember, Members, until
from tests.support.servers.kafka import KafkaBroker

SESSION = 20.0
LIBRDKAFKA = {"set.partition.assignment.strategy": "cooperative-sticky"}
JAVA = {"set.partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"}


def _gave_up(member: GroupMember) -> set[str]:
    """The partitions that it ever had to give up."""
    given_up = (Kind.REVOKED, Kind.LOST)
    return {partition for event in member.events() if event.event in given_up for partition in event.partitions}


def _processed(members: list[GroupMember]) -> int:
    return sum(one.processed() for one in members)


def test_cooperative_clients_of_two_libraries_move_only_what_has_to_move(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, PARTITIONS)
    feed = Feed(kafka_broker, topic)
    with classic_services(kafka_broker.bootstrap) as services:
        members = Members(tmp_path, "shipping", topic, session=SESSION)
        try:
            one = members.confluent("one", services.bootstrap, "classic", **LIBRDKAFKA)
            until(lambda: len(one.owned()) == PARTITIONS, PATIENCE, "the first member assigns itself everything")
            services.set_options("shipping", {"assignor": "server"})
            feed.send(300)
            two = members.java("two", services.bootstrap, "classic", **JAVA)
            until(lambda: len(one.owned()) == len(two.owned()) == 3, PATIENCE, "two share them")
            feed.send(300)
            kept = one.owned()
            three = members.confluent("three", services.bootstrap, "classic", **LIBRDKAFKA)
            everyone = [one, two, three]
            until(lambda: all(len(each.owned()) == 2 for each in everyone), PATIENCE, "three share them")
            feed.send(300)
            until(lambda: _processed(everyone) >= len(feed.produced), PATIENCE, "everything is processed")
            said = {name: member.events() for name, member in members.all.items()}
            given_up = {each.name: _gave_up(each) for each in everyone}
            assert one.owned() < kept
        finally:
            members.close()
    # 6 to 3 and 3, then to 2 and 2 and 2: five partitions have to move, and no other one is taken from anybody.
    assert {name: len(found) for name, found in given_up.items()} == {"one": 4, "two": 1, "three": 0}
    findings = check(gather(frozenset(feed.produced), said))
    assert not findings.faults
    assert (findings.processed, len(findings.duplicates)) == (900, 0)
