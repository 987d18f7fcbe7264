"""The conditions of a group: problems that it can't repair by itself."""

from __future__ import annotations

from assigner.core.conditions import MOST, OversizedWrites, conditions
from assigner.core.writes import Purpose, Write
from assigner.model.keys import TopicPartition
from tests.support.core.plan_scene import Scene


def write(*topics: str, number: int = 0) -> Write:
    return Write(Purpose.FLIP, (), (), tuple(TopicPartition(topic, number) for topic in topics))


def test_a_set_whose_topics_differ_is_a_condition() -> None:
    scene = Scene(copartitioned=[["a", "b"]])
    scene.topic("a", 4)
    scene.topic("b", 4)
    assert conditions(scene.state) == ()
    scene.topic("b", 6)
    (found,) = conditions(scene.state)
    assert found.kind == "set_uneven"
    assert "4 to 6 partitions" in found.message


def test_topics_that_kafka_does_not_have_are_a_condition() -> None:
    scene = Scene()
    scene.topic("t", 1)
    assert conditions(scene.state) == ()
    for number in range(8):
        scene.topic(f"gone-{number}", 1, missing=True)
    (found,) = conditions(scene.state)
    assert found.kind == "topic_missing"
    assert "'gone-4' and 3 more" in found.message


def test_of_many_conditions_of_a_kind_the_rest_is_counted() -> None:
    sets = [[f"a{number:02}", f"b{number:02}"] for number in range(MOST + 5)]
    scene = Scene(copartitioned=sets)
    for one, other in sets:
        scene.topic(one, 1)
        scene.topic(other, 2)
    told = conditions(scene.state)
    assert len(told) == MOST + 1
    assert told[-1].message == "and 5 more like these"


def test_a_set_is_one_condition_however_many_of_its_partitions_are_stuck() -> None:
    oversized = OversizedWrites()
    for number in range(1000):
        oversized.add(write("a", "b", number=number), "142 operations; the store takes 128")
    (found,) = oversized.conditions()
    assert "co-partition set of 'a' (2 topics)" in found.message
    oversized.committed(write("c"))
    assert len(oversized) == 1
    oversized.committed(write("b", "a"))
    assert not oversized.conditions()


def test_what_is_forgotten_names_the_partitions_that_were_held_back() -> None:
    oversized = OversizedWrites()
    oversized.add(write("a"), "too large")
    oversized.add(write("b", number=3), "too large")
    assert oversized.forget() == {TopicPartition("a", 0), TopicPartition("b", 3)}
    assert not oversized.conditions()
    assert not oversized.forget()
