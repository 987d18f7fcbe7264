"""One group of clients of several kinds, as processes around a gateway and a real broker: who processes what.

The short form of `python -m tests.kafka_groups.mixed`: members join, one is killed, one leaves. Whoever is slow here
only makes it longer: a share of the course is over when what it waits for has happened.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka_groups.mixed import FINISHED_WITHIN, GROUP, MixedGroup
from tests.support.kafka_groups.checks import check, table
from tests.support.kafka_groups.course import Course, Stream
from tests.support.kafka_groups.members import Members, java_missing
from tests.support.kafka_groups.scene import TOPIC, Place, Scene
from tests.support.servers.kafka import KafkaUnavailableError, ensure_kafka

pytestmark = [pytest.mark.kafka, pytest.mark.processes, pytest.mark.slow, pytest.mark.xdist_group("mixed-group")]

PARTITIONS = 8
SECONDS = 12.0
SESSION = 10.0
"""Longer than a live member is silent on a busy machine: one that is missed makes duplicates."""


@pytest.fixture(autouse=True)
def kafka_and_java() -> None:
    try:
        ensure_kafka()
    except KafkaUnavailableError as failure:
        pytest.skip(str(failure))
    if (missing := java_missing()) is not None:
        pytest.skip(missing)


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_every_record_is_processed_once_but_for_the_one_in_a_killed_members_hands(
    protocol: str, tmp_path: Path
) -> None:
    with Scene(Place.MEMORY, tmp_path, PARTITIONS, consumer_ttl=SESSION) as scene:
        members = Members(tmp_path / "members", GROUP, TOPIC, session=SESSION)
        stream = Stream(scene.broker.bootstrap, TOPIC, PARTITIONS, rate=80.0)
        with Course(stream, members) as course:
            MixedGroup(scene, course, SECONDS, protocol, with_spark=False).run()
            ledger = course.finish(FINISHED_WITHIN)
        findings = check(ledger)
        told = "\n".join([*course.story, table(findings), *course.complaints(), scene.logs()])
    assert findings.faults == [], told
    assert findings.produced > 0
    assert {move.target for move in findings.moves} > {"confluent-2", "java-1"}, told
