"""From what a plan says of standbys to the records: what is written, when, and what is never taken away too early."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assigner.core.planning.request import OwnerTarget, Request
from assigner.core.standby_copies import copy_is_elsewhere, holders, holds_copy, is_standby
from assigner.core.standbys import StandbyTarget, targets
from assigner.core.writes import Purpose
from assigner.model.records import (
    Handoff,
    Standbys,
    Status,
    Step,
    TopicConfig,
    decode,
)
from assigner.store import Absent, Delete, ModRevisionIs, Put
from assigner.strategy import NONE, Members, Problem, Solution, Topics
from assigner.strategy.explanation import Explanation
from tests.support.core.coordination_scene import KEYS, TTL, Scene, about_standbys, tp

# --- what a solution changes -------------------------------------------------------------------------------------


def solved(scene: Scene, owner: list[int], copies: list[list[int]], members: str = "abc") -> tuple[Request, Solution]:
    count = len(members)
    problem = Problem(
        Members(
            capacity=np.ones(count),
            rack=np.full(count, NONE, np.int32),
            subscription=np.ones((count, 1), np.bool_),
            hold=np.zeros(count, np.bool_),
            cap=np.full(count, NONE, np.int32),
        ),
        Topics(partitions=np.asarray([len(owner)], np.int32)),
        owner=np.full(len(owner), NONE, np.int32),
        pinned=np.zeros(len(owner), np.bool_),
        standby_count=1,
    )
    where = tuple(tp(number) for number in range(len(owner)))
    owners = np.asarray(owner, np.int32)
    table = np.asarray(copies, np.int32) if copies else np.empty((0, 0), np.int32)
    return Request("s", problem, tuple(members), where, ()), Solution(owners, table, Explanation(problem, owners, 0))


def changes(scene: Scene, owner: list[int], copies: list[list[int]]) -> dict[int, tuple[str, tuple[str, ...]]]:
    found = targets(*solved(scene, owner, copies), scene.state)
    return {one.tp.partition: (one.owner, one.holders) for one in found}


def test_what_has_no_record_is_wanted() -> None:
    scene = Scene(3)
    assert changes(scene, [0, 1, NONE], [[1], [2], [NONE]]) == {0: ("a", ("b",)), 1: ("b", ("c",))}


def test_what_is_on_record_is_not_wanted_again_whatever_its_order() -> None:
    scene = Scene(2)
    scene.copy(0, "c", "b")
    assert changes(scene, [0, 0], [[1, 2], [NONE, NONE]]) == {}


def test_a_record_that_names_others_is_replaced_and_one_that_nobody_needs_is_emptied() -> None:
    scene = Scene(2)
    scene.copy(0, "dead")
    scene.copy(1, "b")
    assert changes(scene, [0, 0], [[1], [NONE]]) == {0: ("a", ("b",)), 1: ("a", ())}


def test_a_strategy_that_knows_no_standbys_wants_none() -> None:
    scene = Scene(2)
    assert changes(scene, [0, 0], []) == {}
    scene.copy(1, "b")
    assert changes(scene, [0, 0], []) == {1: ("a", ())}


def test_the_owner_and_repeated_names_are_no_holders() -> None:
    scene = Scene(1)
    assert changes(scene, [0], [[0, 1, 1, NONE]]) == {0: ("a", ("b",))}


def test_copies_of_an_earlier_topic_do_not_count() -> None:
    scene = Scene(1, topic_id="new")
    scene.copy(0, "b", topic_id="old")
    assert holders(scene.state, tp(0)) == ()
    assert changes(scene, [0], [[1]]) == {0: ("a", ("b",))}


def test_a_topic_whose_identity_becomes_known_keeps_its_copies() -> None:
    scene = Scene(1, topic_id="known")
    scene.copy(0, "b")
    assert changes(scene, [0], [[1]]) == {}


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_after_the_targets_are_written_there_is_nothing_left_to_change(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    scene = Scene(count)
    some = st.lists(st.sampled_from("abcd"), max_size=3, unique=True)
    for number in range(count):
        if names := data.draw(some):
            scene.copy(number, *names)
    owner = data.draw(st.lists(st.integers(NONE, 2), min_size=count, max_size=count))
    copies = data.draw(st.lists(st.lists(st.integers(NONE, 2), min_size=2, max_size=2), min_size=count, max_size=count))
    wanted = changes(scene, owner, copies)
    for number, (_, names_wanted) in wanted.items():
        if names_wanted:
            scene.copy(number, *names_wanted)
        else:
            scene.delete(KEYS.standby(tp(number)))
    assert changes(scene, owner, copies) == {}


# --- who holds a copy --------------------------------------------------------------------------------------------


def test_an_owner_is_no_standby_even_if_it_is_on_record() -> None:
    scene = Scene(1)
    scene.own(0, "a")
    scene.copy(0, "a", "b")
    assert holds_copy(scene.state, tp(0), "a")
    assert not is_standby(scene.state, tp(0), "a")
    assert is_standby(scene.state, tp(0), "b")


def test_a_copy_is_elsewhere_only_if_its_holder_is_there_and_not_the_owner() -> None:
    scene = Scene(1, names="ab")
    scene.own(0, "a")
    scene.copy(0, "a", "gone")
    assert not copy_is_elsewhere(scene.state, tp(0), "c")
    scene.copy(0, "a", "b")
    assert copy_is_elsewhere(scene.state, tp(0), "c")
    assert not copy_is_elsewhere(scene.state, tp(0), "b")


# --- writing -----------------------------------------------------------------------------------------------------


def test_a_record_compares_what_it_replaces_and_nothing_else() -> None:
    scene = Scene()
    for number in range(2):
        scene.own(number, "a")
    scene.copy(1, "c")
    seen = scene.revision
    scene.plan({0: ("a", "b"), 1: ("a", "b")})
    first, second = about_standbys(scene.decide())
    assert first.compares == (Absent(KEYS.standby(tp(0))),)
    assert second.compares == (ModRevisionIs(KEYS.standby(tp(1)), seen),)
    assert not first.partitions
    (put,) = first.operations
    assert isinstance(put, Put)
    assert decode(Standbys, put.value)[0].holders == ("b",)


def test_fields_of_others_survive_a_rewrite() -> None:
    scene = Scene()
    scene.own(0, "a")
    raw = b'{"topic": "t", "partition": 0, "holders": ["c"], "theirs": 5}'
    scene.put(KEYS.standby(tp(0)), Standbys(topic="", partition=0), raw)
    scene.plan({0: ("a", "b")})
    scene.settle()
    assert scene.records() == {0: ("b",)}
    assert scene.state.standbys[tp(0)].extra == {"theirs": 5}


def test_a_record_without_holders_is_deleted() -> None:
    scene = Scene()
    scene.own(0, "a")
    scene.copy(0, "b")
    scene.plan({0: ("a", "")})
    (write,) = scene.settle()
    assert write.operations == (Delete(KEYS.standby(tp(0))),)


def test_while_a_partition_is_on_its_way_holders_are_only_added() -> None:
    scene = Scene()
    scene.own(0, "a")
    scene.copy(0, "b")
    scene.handoff(0, "a", "b")
    scene.plan({0: ("b", "ac")})
    scene.settle()
    assert scene.records() == {0: ("a", "b", "c")}
    scene.own(0, "b")
    scene.handoff(0, "a", "b", Step.COMPLETE)
    scene.settle()
    assert scene.records() == {0: ("a", "b", "c")}, "the old owner has not released yet"
    scene.delete(KEYS.handoff(tp(0)))
    scene.settle()
    assert scene.records() == {0: ("a", "c")}


def test_the_old_owner_is_on_record_together_with_the_handoff() -> None:
    scene = Scene()
    scene.own(0, "a")
    scene.copy(0, "b")
    scene.plan({0: ("b", "a")}, moves={0: "b"})
    said = scene.decide()
    assert [write.purpose for write in said.writes] == [Purpose.HANDOFF, Purpose.STANDBYS]


def test_a_partition_given_to_a_holder_at_once_has_its_record_written_once() -> None:
    scene = Scene(names="bc")
    scene.now = 2 * TTL
    scene.own(0, "gone")
    scene.copy(0, "b")
    core = scene.lead()
    scene.now += 2 * TTL
    scene.decide()
    core.solved([OwnerTarget(tp(0), "b")], [StandbyTarget(tp(0), "b", ("c",))])
    (write,) = scene.settle()
    assert scene.records() == {0: ("c",)}
    assert len(write.operations) == 1


def test_a_partition_that_ends_up_elsewhere_waits_for_the_next_plan() -> None:
    scene = Scene()
    scene.own(0, "a")
    scene.copy(0, "b")
    scene.handoff(0, "a", "b")
    scene.plan({0: ("b", "c")})
    scene.settle()
    scene.delete(KEYS.handoff(tp(0)))
    scene.settle()
    assert scene.records() == {0: ("b", "c")}
    assert scene.core
    assert scene.core.statistics()["standbys"] == 1
    scene.plan({0: ("a", "b")})
    scene.settle()
    assert scene.records() == {0: ("b",)}
    assert scene.core.statistics()["standbys"] == 0


def test_a_write_in_flight_is_not_repeated() -> None:
    scene = Scene()
    scene.own(0, "a")
    scene.plan({0: ("a", "b")})
    (write,) = about_standbys(scene.decide())
    assert scene.core
    assert not scene.core.settled
    scene.own(0, "a")
    assert not about_standbys(scene.decide())
    scene.commit(write)
    assert scene.core.settled


def test_a_refused_write_asks_for_another_plan() -> None:
    scene = Scene()
    scene.own(0, "a")
    scene.plan({0: ("a", "b")})
    (write,) = about_standbys(scene.decide())
    assert scene.core
    scene.core.refused(write, scene.now)
    scene.now += 1
    assert scene.decide().solve


def test_a_decision_writes_no_more_than_its_budget() -> None:
    scene = Scene(1000)
    for number in range(1000):
        scene.own(number, "a")
    scene.plan(dict.fromkeys(range(1000), ("a", "b")))
    said = scene.decide(budget=50)
    assert len(said.writes) == 50
    assert said.more


def test_standbys_raise_no_generation() -> None:
    scene = Scene()
    scene.own(0, "a")
    scene.plan({0: ("a", "b")})
    scene.settle()
    assert scene.state.plan.generation == 0


@pytest.mark.parametrize("what", ["standby", "assignment", "consumer", "topic"])
def test_what_can_not_be_read_is_left_alone(what: str) -> None:
    scene = Scene()
    scene.own(0, "a")
    scene.copy(0, "c")
    key = {
        "standby": KEYS.standby(tp(0)),
        "assignment": KEYS.assignment(tp(0)),
        "consumer": KEYS.consumer("c"),
        "topic": KEYS.topic("t"),
    }[what]
    scene.plan({0: ("a", "b")})
    scene.put(key, Standbys(topic="", partition=0), b"no JSON")
    assert scene.settle() == []


def test_a_new_leader_that_waits_for_a_consumer_leaves_all_copies_where_they_are() -> None:
    scene = Scene(names="ab")
    scene.own(0, "a")
    scene.copy(0, "away")
    scene.plan({0: ("a", "b")})
    assert scene.settle() == []
    scene.now += TTL
    assert scene.decide().solve, "it looks again when it has waited long enough"
    assert scene.core
    scene.core.solved([], [StandbyTarget(tp(0), "a", ("b",))])
    scene.settle()
    assert scene.records() == {0: ("b",)}


def test_a_holder_that_went_while_the_leader_looked_on_is_not_waited_for() -> None:
    scene = Scene(names="ab")
    scene.own(0, "a")
    scene.copy(0, "c")
    scene.lead()
    scene.join("c")
    scene.delete(KEYS.consumer("c"))
    scene.plan({0: ("a", "b")})
    scene.settle()
    assert scene.records() == {0: ("b",)}


# --- marks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "warm"), [("b", True), ("c", False)])
def test_a_handoff_to_a_holder_is_marked_warm(target: str, warm: bool) -> None:
    scene = Scene()
    scene.own(0, "a")
    scene.copy(0, "b")
    scene.plan({}, moves={0: target})
    (write,) = [write for write in scene.decide().writes if write.purpose is Purpose.HANDOFF]
    (put,) = [operation for operation in write.operations if isinstance(operation, Put)]
    assert decode(Handoff, put.value)[0].warm is warm


@pytest.mark.parametrize(("target", "warm", "cold"), [("b", True, False), ("c", False, True)])
def test_a_move_records_whether_the_new_owner_held_a_copy(target: str, warm: bool, cold: bool) -> None:
    scene = Scene(names="bc")
    scene.own(0, "gone")
    scene.copy(0, "b")
    scene.lead()
    scene.now += 2 * TTL
    scene.decide()
    assert scene.core
    scene.core.solved([OwnerTarget(tp(0), target)])
    (move,) = [move for write in scene.decide().writes for move in write.moves]
    assert (move.new, move.warm, move.cold) == (target, warm, cold)


def test_where_there_is_no_copy_a_move_is_neither_warm_nor_cold() -> None:
    scene = Scene(names="bc")
    scene.plan({}, moves={0: "b"})
    (move,) = [move for write in scene.decide().writes for move in write.moves]
    assert not move.warm
    assert not move.cold


def test_a_target_that_could_not_warm_is_followed_by_a_holder() -> None:
    scene = Scene(names="abcd")
    scene.own(0, "a")
    scene.copy(0, "d")
    scene.handoff(0, "a", "b", Step.FAILED)
    scene.lead()
    (write,) = [write for write in scene.decide().writes if write.purpose is Purpose.HANDOFF]
    (put,) = [operation for operation in write.operations if isinstance(operation, Put)]
    record = decode(Handoff, put.value)[0]
    assert (record.new_owner, record.warm) == ("d", True)


# --- what is gone ------------------------------------------------------------------------------------------------


def test_a_partition_past_the_count_loses_its_record_with_its_assignment() -> None:
    scene = Scene(2)
    for number in range(2):
        scene.own(number, "a")
        scene.copy(number, "b")
    scene.lead()
    scene.put(KEYS.topic("t"), TopicConfig(topic="t", partition_count=1))
    scene.settle()
    assert scene.records() == {0: ("b",)}
    assert set(scene.state.assignments) == {tp(0)}


def test_a_record_past_the_count_goes_although_nobody_owns_the_partition() -> None:
    scene = Scene(1)
    scene.copy(5, "b")
    scene.lead()
    scene.settle()
    assert scene.records() == {}


def test_the_records_of_a_topic_that_is_gone_go() -> None:
    scene = Scene(1)
    scene.own(0, "a")
    scene.copy(0, "b")
    scene.lead()
    scene.delete(KEYS.topic("t"))
    scene.settle()
    assert scene.records() == {}
    assert not scene.state.assignments


def test_a_topic_made_anew_drops_its_copies_with_its_offsets() -> None:
    scene = Scene(1, topic_id="new")
    scene.own(0, "a", topic_id="old")
    scene.copy(0, "b", topic_id="old")
    scene.lead()
    (write,) = [write for write in scene.decide().writes if write.purpose is Purpose.BUMP_EPOCH]
    assert Delete(KEYS.standby(tp(0))) in write.operations


def test_a_draining_holder_is_no_member_of_the_next_problem() -> None:
    scene = Scene(1, names="ab")
    scene.own(0, "a")
    scene.join("c", status=Status.DRAINING)
    scene.copy(0, "c")
    scene.lead()
    asked = scene.decide().solve
    assert asked
    assert asked.members == ("a", "b")
    assert not (asked.problem.standbys != NONE).any()
