"""Who owns what is decided and given out before anybody looks for places for copies, which takes far longer."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from assigner.core.group import GroupState
from assigner.model.records import GroupOptions
from assigner.strategies import sticky_balanced
from assigner.strategies.standbys.placement import place_standbys
from assigner.strategy import IntArray, Problem, Solution
from tests.support.cluster import Cluster

OPTIONS = GroupOptions(debounce=0.1, standby_count=1)
PATIENCE = 20.0
"""Seconds after which a placement goes on by itself: a service that waits for it does not hang, and is found out."""
pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(options=OPTIONS)]


class SlowPlacement:
    """Placing copies takes until the test says so."""

    def __init__(self) -> None:
        self._place = place_standbys
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.begun = 0
        self.lost_patience = False

    def __call__(self, problem: Problem, owner: IntArray) -> IntArray:
        if problem.standby_count:
            self.begun += 1
            self.lost_patience |= not self.may_go_on.wait(PATIENCE)
        return self._place(problem, owner)


@pytest.fixture
def placement(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowPlacement]:
    slow = SlowPlacement()
    monkeypatch.setattr(sticky_balanced, "place_standbys", slow)
    yield slow
    slow.may_go_on.set()


def owned_by(state: GroupState, *names: str) -> bool:
    return sum(len(state.owned.get(name, ())) for name in names) == state.partitions() and not state.handoffs


def copied_among(state: GroupState, *names: str) -> bool:
    """Everything has a copy, and these have equally many."""
    copies = Counter(name for record in state.standbys.values() for name in record.record.holders)
    return dict(copies) == {name: state.partitions() // len(names) for name in names}


async def three(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=12)
    await cluster.start_instance()
    for name in "abc":
        await cluster.join(name)
    await cluster.until("settled", lambda s: owned_by(s, *"abc") and copied_among(s, *"abc"), within=100)


async def test_orphans_have_an_owner_while_copies_are_still_being_placed(
    any_cluster: Cluster, placement: SlowPlacement
) -> None:
    await three(any_cluster)
    begun = placement.begun
    placement.may_go_on.clear()
    await any_cluster.consumers["c"].deregister(gates_closed=True)
    state = await any_cluster.until("owned by the others", lambda s: owned_by(s, "a", "b"), within=100)
    assert not placement.lost_patience
    assert not copied_among(state, "a", "b")
    placement.may_go_on.set()
    await any_cluster.until("copied by the others", lambda s: copied_among(s, "a", "b"), within=100)
    assert placement.begun > begun


async def test_the_next_orphans_do_not_wait_for_copies_of_the_plan_before(
    any_cluster: Cluster, placement: SlowPlacement
) -> None:
    await three(any_cluster)
    placement.may_go_on.clear()
    await any_cluster.consumers["c"].deregister(gates_closed=True)
    await any_cluster.until("owned by the others", lambda s: owned_by(s, "a", "b"), within=100)
    await any_cluster.consumers["b"].deregister(gates_closed=True)
    await any_cluster.until("owned by the last", lambda s: owned_by(s, "a"), within=100)
    assert not placement.lost_patience
    placement.may_go_on.set()
    await any_cluster.join("d")
    await any_cluster.until("copied by both", lambda s: owned_by(s, "a", "d") and copied_among(s, "a", "d"), within=100)


class BothAtOnce:
    """A strategy of somebody else, which knows only `assign`."""

    name = "sticky_balanced"

    def assign(self, problem: Problem) -> Solution:
        return sticky_balanced.strategy.assign(problem)


async def test_a_strategy_may_compute_owners_and_standbys_at_once(
    any_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assigner.leader.coordinator.prepare", lambda name: BothAtOnce())
    await three(any_cluster)
    await any_cluster.consumers["c"].deregister(gates_closed=True)
    await any_cluster.until("even", lambda s: owned_by(s, "a", "b") and copied_among(s, "a", "b"), within=100)
