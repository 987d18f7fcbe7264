"""Unmodified clients of three libraries in one classic group, on a real broker, behind a gateway that leads nothing."""

from __future__ import annotations

import uuid
from pathlib import Path

from assigner.model.kafka_groups import ClassicState
from tests.integration.gateway.test_kafka_4_members import PARTITIONS, PATIENCE, Feed
from tests.support.gateway.classic_service import classic_services
from tests.support.kafka_groups.checks import check
from tests.support.kafka_groups.events import Kind
from tests.support.kafka_groups.ledger import gather
from tests.support.kafka_groups.members import GroupMember, Members, until
from tests.support.servers.kafka import KafkaBroker

SESSION = 20.0


def _assignments(member: GroupMember) -> int:
    return sum(event.event is Kind.ASSIGNED for event in member.events())


def test_three_libraries_share_a_group_whose_coordinator_is_stopped_and_each_record_is_processed_once(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, PARTITIONS)
    feed = Feed(kafka_broker, topic)
    with classic_services(kafka_broker.bootstrap) as services:
        members = Members(tmp_path, "billing", topic, session=SESSION)
        try:
            strategy = {"set.partition.assignment.strategy": "range"}
            one = members.confluent("one", services.bootstrap, "classic", **strategy)
            until(lambda: len(one.owned()) == PARTITIONS, PATIENCE, "the first member has everything")
            feed.send(300)
            two = members.aiokafka("two", services.bootstrap)
            three = members.kafka_python("three", services.bootstrap)
            everyone = [one, two, three]
            until(lambda: all(len(each.owned()) == 2 for each in everyone), PATIENCE, "three members share them")
            until(lambda: services.describe("billing").state is ClassicState.STABLE, PATIENCE, "the group is stable")
            feed.send(300)
            before = [_assignments(each) for each in everyone]
            stopped = services.stop_leader("billing")
            until(lambda: services.leader("billing") not in ("", stopped), PATIENCE, "another one leads")
            feed.send(300)
            until(lambda: _processed(everyone) >= len(feed.produced), PATIENCE, "all is processed at the new leader")
            assert [_assignments(each) for each in everyone] == before, "the change of leader was no rebalance"
            two.leave()
            until(lambda: len(one.owned()) == len(three.owned()) == 3, PATIENCE, "the two that are left share them")
            feed.send(300)
            until(lambda: _processed(everyone) >= len(feed.produced), PATIENCE, "everything is processed")
            said = {name: member.events() for name, member in members.all.items()}
        finally:
            members.close()
    findings = check(gather(frozenset(feed.produced), said))
    assert not findings.faults
    assert (findings.processed, len(findings.duplicates)) == (1200, 0)


def _processed(members: list[GroupMember]) -> int:
    return sum(one.processed() for one in members)
