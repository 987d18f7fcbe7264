"""Which topics move as one, and that the strategy gets the same sets."""

from __future__ import annotations

from assigner.core.planning.copartitions import CopartitionUnits, companions_by_topic, copartition_sets, largest_set
from assigner.model.keys import TopicPartition
from assigner.model.records import Status
from assigner.store import Limits
from assigner.strategies.copartitioned import sets
from assigner.strategy import NONE
from tests.support.core.plan_scene import Scene


def test_named_sets_move_as_one_as_far_as_their_topics_go_together() -> None:
    scene = Scene(copartitioned=[["b", "a"], ["c", "d"], ["e", "nowhere"]])
    for name, count in (("a", 2), ("b", 2), ("c", 2), ("d", 3), ("e", 2)):
        scene.topic(name, count)
    assert copartition_sets(scene.state) == [("a", "b"), ("c", "d")]
    scene.consumer("x", "a", "d")
    scene.owned("x", 2, topic="d")
    problem = scene.request().problem
    assert problem.topics.copartition is not None
    assert problem.topics.copartition.tolist() == [0, 0, 1, 1, NONE, NONE]
    assert problem.topics.partitions.tolist() == [2, 2, 2, 2, 1, 2]
    assert problem.members.subscription.tolist() == [[True, False, False, True, True, False]]
    assert problem.owner.tolist() == [NONE] * 8 + [0] + [NONE] * 2
    units = CopartitionUnits(scene.state)
    assert [units.of(TopicPartition("d", number)) for number in range(3)] == ["c", "c", ""]


def test_sets_are_cut_where_a_transaction_ends() -> None:
    scene = Scene(copartitioned=[list("abcdefg")])
    scene.state.limits = Limits(operations=10)
    assert largest_set(scene.state.limits) == 3
    for name in "abcdefghijk":
        scene.topic(name, 2)
    assert copartition_sets(scene.state) == [("a", "b", "c"), ("d", "e", "f")]
    scene.options(strategy="copartitioned", copartitioned=[["a", "b"]])
    assert copartition_sets(scene.state) == [("a", "b"), ("c", "d", "e"), ("f", "g", "h"), ("i", "j", "k")]


def alike_scene() -> Scene:
    scene = Scene(strategy="copartitioned", copartitioned=[["a", "b"]])
    for name, count in (("a", 4), ("b", 4), ("c", 4), ("d", 4), ("e", 4), ("f", 2), ("g", 2)):
        scene.topic(name, count)
    return scene


def test_the_strategy_copartitioned_also_joins_topics_with_equal_counts_and_subscribers() -> None:
    scene = alike_scene()
    scene.consumer("x")
    scene.consumer("y", "a", "b", "c", "d", "f")
    scene.consumer("z", "c", "d", "e")
    assert copartition_sets(scene.state) == [("a", "b"), ("c", "d")]
    scene.gone("y")
    assert copartition_sets(scene.state) == [("a", "b"), ("c", "d", "e"), ("f", "g")]
    scene.gone("z")
    assert copartition_sets(scene.state) == [("a", "b"), ("c", "d", "e"), ("f", "g")]


def test_other_strategies_join_only_what_was_named() -> None:
    scene = alike_scene()
    scene.options(strategy="sticky_balanced", copartitioned=[["a", "b"]])
    assert companions_by_topic(scene.state) == {"a": ("a", "b"), "b": ("a", "b")}


def test_what_moves_as_one_follows_the_subscriptions() -> None:
    scene = alike_scene()
    units = CopartitionUnits(scene.state)
    scene.consumer("z", "c", "d")
    units.consumers_changed()
    assert [units.of(TopicPartition(topic, 0)) for topic in "abcdefg"] == ["a", "a", "c", "c", "", "f", "f"]
    scene.gone("z")
    units.consumers_changed()
    assert [units.of(TopicPartition(topic, 0)) for topic in "abcdefg"] == ["a", "a", "c", "c", "c", "f", "f"]


def test_the_strategy_joins_no_others_than_those_that_move_as_one() -> None:
    """Even where the members of the plan alone would look alike, because who tells topics apart is leaving."""
    scene = alike_scene()
    scene.consumer("x")
    scene.consumer("leaving", "c", "f", status=Status.DRAINING)
    problem = scene.request().problem
    assert copartition_sets(scene.state) == [("a", "b"), ("d", "e")]
    told, joined = problem.topics.copartition, sets(problem)
    assert told is not None
    assert told.tolist() == joined.tolist()
    assert len(set(joined.tolist())) == 5
    assert (joined[0], joined[3]) == (joined[1], joined[4])
