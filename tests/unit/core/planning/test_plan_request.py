"""A group's state as arrays: what a strategy gets to see, and in which order."""

from __future__ import annotations

import numpy as np
import pytest

from assigner.core.loads.weights import GroupLoads, LoadSettings
from assigner.core.planning.request import targets
from assigner.model.keys import TopicPartition
from assigner.model.records import Status, Step
from assigner.strategy import NONE, FloatArray, IntArray
from assigner.strategy.registry import load
from tests.support.core.plan_scene import Scene

# --- members and topics ------------------------------------------------------------------------------------------


def test_members_and_topics_come_in_name_order_whatever_order_they_were_written_in() -> None:
    scene = Scene()
    scene.consumer("b", "u", capacity=2.0)
    scene.consumer("a")
    scene.topic("u", 1)
    scene.topic("t", 2)
    scene.owned("b", 0, topic="u")
    request = scene.request()
    assert request.members == ("a", "b")
    assert request.partitions == tuple(TopicPartition(*at) for at in [("t", 0), ("t", 1), ("u", 0)])
    problem = request.problem
    assert problem.members.capacity.tolist() == [1.0, 2.0]
    assert problem.members.subscription.tolist() == [[True, True], [False, True]]
    assert problem.topics.partitions.tolist() == [2, 1]
    assert problem.owner.tolist() == [NONE, NONE, 1]
    assert not problem.pinned.any()


def test_the_arrays_do_not_depend_on_the_size_of_the_slices() -> None:
    scene = Scene(rollout="v2")
    for name, generation in (("a", "v1"), ("b", "v1"), ("c", "v2")):
        scene.consumer(name, generation=generation, rack=f"rack-{name}")
    scene.topic("t", 7, (("rack-a", "rack-b"),) * 4)
    scene.owned("a", 0, 1, 2)
    scene.copies(2, "c", "b")
    whole, *others = (scene.request(at_once=size).problem for size in (100, 1, 2, 3, 7))
    for other in others:
        assert (other.owner == whole.owner).all()
        assert (other.pinned == whole.pinned).all()
        assert (other.standbys == whole.standbys).all()
        assert [a.tolist() for a in racks_of(other.topics.replica_racks)] == [
            a.tolist() for a in racks_of(whole.topics.replica_racks)
        ]


def test_draining_and_evicted_consumers_are_no_members_and_what_they_have_is_to_be_given_away() -> None:
    scene = Scene()
    scene.topic("t", 3)
    scene.consumer("a")
    scene.consumer("b", status=Status.DRAINING)
    scene.consumer("c", evicted="too slow")
    scene.owned("a", 0)
    scene.owned("b", 1)
    scene.owned("c", 2)
    request = scene.request()
    assert request.members == ("a",)
    assert request.problem.owner.tolist() == [0, NONE, NONE]


def test_an_owner_of_unknown_liveness_is_a_member_on_hold_that_keeps_what_it_has() -> None:
    scene = Scene()
    scene.topic("t", 2)
    scene.consumer("a", rack="r")
    scene.owned("away", 0)
    request = scene.request(now=10.0)
    assert request.members == ("a", "away")
    assert request.problem.members.hold.tolist() == [False, True]
    assert request.problem.members.rack.tolist() == [0, NONE]
    assert request.problem.owner.tolist() == [1, NONE]
    assert request.problem.pinned.tolist() == [True, False]
    assert scene.request(now=40.0).members == ("a",)


def test_what_is_in_flight_is_pinned_to_its_target() -> None:
    scene = Scene()
    scene.topic("t", 3)
    scene.consumer("a")
    scene.consumer("b")
    scene.owned("a", 0, 1)
    scene.owned("b", 2)
    scene.handoff(1, "a", "b")
    scene.handoff(2, "a", "b", Step.COMPLETE)
    problem = scene.request().problem
    assert problem.owner.tolist() == [0, 1, 1]
    assert problem.pinned.tolist() == [False, True, True]


def test_what_lost_its_target_is_asked_about_even_if_it_stays() -> None:
    scene = Scene()
    scene.topic("t", 1)
    scene.consumer("a")
    scene.owned("a", 0)
    scene.handoff(0, "a", "gone")
    request = scene.request()
    assert request.lost == (TopicPartition("t", 0),)
    solution = load("sticky_balanced").assign(request.problem)
    assert [(target.tp.partition, target.owner) for target in targets(request, solution)] == [(0, "a")]


# --- racks -------------------------------------------------------------------------------------------------------


def racks_of(arrays: tuple[IntArray, IntArray] | None) -> tuple[IntArray, IntArray]:
    assert arrays is not None
    return arrays


def test_racks_of_members_and_of_replicas_share_their_numbers() -> None:
    scene = Scene()
    scene.consumer("a", rack="r2")
    scene.consumer("b", rack="r9")
    scene.consumer("c")
    scene.topic("t", 3, (("r1", "r2"), (), ("r2", "r3")))
    scene.topic("u", 1)
    problem = scene.request().problem
    starts, racks = racks_of(problem.topics.replica_racks)
    assert problem.members.rack.tolist() == [1, 3, NONE]
    assert starts.tolist() == [0, 2, 2, 4, 4]
    assert racks.tolist() == [0, 1, 1, 2]
    assert starts.dtype == racks.dtype == np.int32


def test_without_any_known_rack_there_are_no_racks_of_replicas() -> None:
    scene = Scene()
    scene.consumer("a", rack="r1")
    scene.topic("t", 2)
    scene.topic("u", 2, ((), ()))
    problem = scene.request().problem
    assert problem.topics.replica_racks is None
    assert problem.members.rack.tolist() == [0]


def test_racks_for_fewer_or_more_partitions_than_there_are_are_taken_as_far_as_they_go() -> None:
    scene = Scene()
    scene.consumer("a")
    scene.topic("t", 3, (("r1",),))
    scene.topic("u", 1, (("r2",), ("r3",)))
    starts, racks = racks_of(scene.request().problem.topics.replica_racks)
    assert starts.tolist() == [0, 1, 1, 1, 2]
    assert racks.tolist() == [0, 1]


def test_racks_named_twice_or_not_at_all_count_once_or_not_at_all() -> None:
    scene = Scene()
    scene.consumer("a")
    scene.topic("t", 2, (("r2", "r1", "", "r2"), ("",)))
    starts, racks = racks_of(scene.request().problem.topics.replica_racks)
    assert starts.tolist() == [0, 2, 2]
    assert racks.tolist() == [0, 1]


# --- standbys ----------------------------------------------------------------------------------------------------


def test_standbys_are_those_holders_that_are_members() -> None:
    scene = Scene(standby_count=2)
    for name in ("a", "b", "c"):
        scene.consumer(name)
    scene.consumer("leaving", status=Status.DRAINING)
    scene.topic("t", 4)
    scene.copies(0, "b")
    scene.copies(1, "leaving", "gone", "c", "a", "c")
    scene.copies(3, "a")
    scene.owned("a", 3)
    problem = scene.request().problem
    assert problem.standbys.tolist() == [[1, NONE], [2, 0], [NONE, NONE], [NONE, NONE]]
    assert problem.standbys.dtype == np.int32
    assert problem.standby_count == 2


def test_without_copies_there_are_no_columns_of_standbys() -> None:
    scene = Scene(standby_count=2)
    scene.consumer("a")
    scene.topic("t", 4)
    assert scene.request().problem.standbys.shape == (4, 0)


# --- loads -------------------------------------------------------------------------------------------------------


class FixedLoads(GroupLoads):
    """Loads with fixed weights."""

    def __init__(self, weights: list[float] | None, busy: dict[str, float]) -> None:
        super().__init__(LoadSettings())
        self._fixed_weights = weights
        self._fixed_busy = busy
        self.asked: list[tuple[str, int]] = []

    def weights(self, topics: object, now_wall: float) -> FloatArray | None:
        self.asked = list(topics)  # type: ignore[call-overload]
        return None if self._fixed_weights is None else np.asarray(self._fixed_weights)

    def busy(self, consumer: str, now_wall: float) -> float:
        return self._fixed_busy.get(consumer, float("nan"))


def loaded_scene(**options: object) -> Scene:
    scene = Scene(**options)
    scene.topic("u", 1)
    scene.topic("t", 2)
    scene.consumer("b")
    scene.consumer("a")
    return scene


def test_loads_are_passed_on_where_the_group_asks_for_them() -> None:
    loads = FixedLoads([1.0, 2.0, 3.0], {"b": 0.5})
    problem = loaded_scene(use_loads=True).request(loads=loads).problem
    assert loads.asked == [("t", 2), ("u", 1)]
    assert problem.topics.weight is not None
    assert problem.members.load is not None
    assert problem.topics.weight.tolist() == [1.0, 2.0, 3.0]
    assert np.isnan(problem.members.load).tolist() == [True, False]


def test_an_owner_of_unknown_liveness_has_no_known_load() -> None:
    scene = loaded_scene(use_loads=True)
    scene.owned("away", 0)
    problem = scene.request(loads=FixedLoads(None, {"a": 1.0}), now=1.0).problem
    assert problem.members.load is not None
    assert np.isnan(problem.members.load).tolist() == [False, True, True]


@pytest.mark.parametrize("wanted", [True, False])
def test_without_known_or_wanted_loads_all_are_equal(wanted: bool) -> None:
    loads = FixedLoads(None, {}) if wanted else FixedLoads([1.0, 2.0, 3.0], {"a": 1.0})
    problem = loaded_scene(use_loads=wanted).request(loads=loads).problem
    assert problem.topics.weight is None
    assert problem.members.load is None


# --- rollouts ----------------------------------------------------------------------------------------------------


def rolling_scene(**options: object) -> Scene:
    scene = Scene(rollout="v2", **options)
    scene.topic("t", 8)
    for name in ("a", "b"):
        scene.consumer(name, generation="v1")
    scene.owned("a", 0, 1, 2)
    scene.owned("b", 3, 4, 5)
    return scene


def test_a_rollout_holds_the_old_caps_the_new_and_pins_what_is_owned() -> None:
    scene = rolling_scene()
    scene.consumer("c", generation="v2")
    scene.owned("away", 7)
    request = scene.request(now=10.0)
    problem = request.problem
    assert request.members == ("a", "b", "c", "away")
    assert problem.members.hold.tolist() == [True, True, False, True]
    assert problem.members.cap.tolist() == [NONE, NONE, 4, NONE]
    assert problem.pinned.tolist() == [True] * 6 + [False, True]
    assert request.rollout is not None
    # The one in doubt is on hold too, and not for the rollout's sake: it never yields.
    assert request.rollout.hold.tolist() == [True, True, False, False]


def test_a_cap_is_never_below_what_a_member_has() -> None:
    scene = rolling_scene(rollout_cap=1)
    scene.consumer("c", generation="v2")
    scene.consumer("d", generation="v2")
    scene.owned("c", 6, 7)
    assert scene.request().problem.members.cap.tolist() == [NONE, NONE, 2, 1]


def test_the_fleet_that_is_leaving_counts_for_the_share() -> None:
    scene = rolling_scene()
    scene.consumer("c", generation="v2")
    scene.consumer("d", generation="v1", status=Status.DRAINING)
    scene.consumer("e", generation="v1", status=Status.DRAINING)
    assert scene.request().problem.members.cap.tolist() == [NONE, NONE, 2]


@pytest.mark.parametrize(("option", "generation"), [("", "v2"), ("v2", "v1"), ("v3", "v2"), ("auto", "v1")])
def test_without_a_rollout_no_member_is_constrained(option: str, generation: str) -> None:
    scene = rolling_scene()
    scene.options(rollout=option)
    scene.consumer("c", generation=generation)
    request = scene.request()
    assert request.rollout is None
    assert not request.problem.members.hold.any()
    assert not request.problem.pinned.any()
    assert (request.problem.members.cap == NONE).all()


# --- subscriptions -------------------------------------------------------------------------------------------------

STRATEGIES = ("copartitioned", "jump_hash", "range", "rendezvous", "spread_first", "sticky_balanced")


def test_no_topics_is_every_topic_unless_the_list_is_said_to_be_complete() -> None:
    scene = Scene()
    for topic in "tu":
        scene.topic(topic, 2)
    scene.consumer("a")
    scene.consumer("b", explicit_topics=True)
    scene.consumer("c", "u", explicit_topics=True)
    assert scene.request().problem.members.subscription.tolist() == [[True, True], [False, False], [False, True]]


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("weighted", [False, True])
def test_every_strategy_gives_nothing_to_a_member_that_wants_no_topic(name: str, weighted: bool) -> None:
    scene = Scene(strategy=name, use_loads=weighted, standby_count=1)
    scene.topic("t", 7)
    scene.topic("u", 3)
    scene.consumer("a")
    scene.consumer("b", explicit_topics=True)
    scene.consumer("c", "t")
    scene.owned("b", 0, 1, 2)
    request = scene.request()
    solution = load(name).assign(request.problem)
    assert set(solution.owner.tolist()) == {0, 2}
    assert 1 not in solution.standbys


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_leaves_all_unowned_where_nobody_wants_anything(name: str) -> None:
    scene = Scene(strategy=name)
    scene.topic("t", 3)
    scene.consumer("a", explicit_topics=True)
    scene.owned("a", 0)
    request = scene.request()
    solution = load(name).assign(request.problem)
    assert set(solution.owner.tolist()) == {NONE}
    assert [(target.tp.partition, target.owner) for target in targets(request, solution)] == [(0, "")]


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_leaves_a_consumer_that_stepped_out_what_it_has(name: str) -> None:
    scene = Scene(strategy=name)
    scene.topic("t", 6)
    scene.consumer("a", away=True)
    scene.consumer("b")
    scene.owned("a", 0, 1, 2, 3)
    request = scene.request()
    assert load(name).assign(request.problem).owner.tolist() == [0, 0, 0, 0, 1, 1]


def test_a_rollout_does_not_free_a_consumer_that_stepped_out() -> None:
    scene = Scene(rollout="v2")
    scene.topic("t", 2)
    scene.consumer("a", generation="v1", away=True)
    scene.consumer("b", generation="v1")
    scene.consumer("c", generation="v2")
    request = scene.request()
    assert request.problem.members.hold.tolist() == [True, True, False]
    assert request.rollout is not None
    assert request.rollout.hold.tolist() == [False, True, False]
