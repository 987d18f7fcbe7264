"""The five steps of a partition that changes hands, and what is acknowledged when."""

from __future__ import annotations

from assigner.core.routing.cutover import Cutovers, CutoverStep, Drain, Flush, Stash, Stop, Switch
from assigner.core.routing.table import RowChange
from assigner.model.keys import TopicPartition
from assigner.model.routes import FreezeAck, Route

TP = TopicPartition("t", 0)
OLD = Route("a", "a:80", 5)
FROZEN = Route("a", "a:80", 5, "h1", True)
NEW = Route("b", "b:80", 6)


def frozen_by(handoff_id: str) -> Route:
    return Route("a", "a:80", 5, handoff_id, True)


class Scene:
    """Cutovers of one partition."""

    def __init__(self, route: Route | None = None) -> None:
        self.core = Cutovers()
        self.route: Route | None = None
        self.drains: list[int] = []
        if route is not None:
            self.show(route)

    def show(self, route: Route | None) -> list[CutoverStep]:
        before, self.route = self.route, route
        steps = self.core.changed(RowChange(TP, before, route))
        self.drains += [step.number for step in steps if isinstance(step, Drain)]
        return steps

    def drained(self) -> None:
        self.core.drained(TP, self.drains[-1])

    def acks(self) -> list[str]:
        """Take the pending acks, and answer them."""
        pending = self.core.pending_acks(10)
        self.core.acknowledged(pending, frozenset())
        return [ack.handoff_id for ack in pending]


def kinds(steps: list[CutoverStep]) -> list[type]:
    return [type(step) for step in steps]


def test_a_freeze_stops_stashes_and_drains_and_the_flip_switches_and_flushes() -> None:
    scene = Scene(OLD)
    assert kinds(scene.show(FROZEN)) == [Stop, Stash, Drain]
    assert scene.acks() == []
    scene.drained()
    assert scene.acks() == ["h1"]
    assert scene.show(NEW) == [Switch(TP, NEW), Flush(TP)]
    assert (scene.core.frozen, scene.core.unanswered) == (0, 0)


def test_a_partition_that_was_never_open_here_is_stashed_and_acknowledged_too() -> None:
    scene = Scene()
    assert kinds(scene.show(FROZEN)) == [Stop, Stash, Drain]
    scene.drained()
    assert scene.acks() == ["h1"]


def test_nothing_is_acknowledged_before_the_drain_has_ended_however_often_it_is_asked_for() -> None:
    scene = Scene(OLD)
    scene.show(FROZEN)
    assert scene.show(FROZEN) == []
    scene.core.reassert()
    assert scene.acks() == []


def test_an_ack_is_repeated_when_the_freeze_is_shown_again() -> None:
    scene = Scene(OLD)
    scene.show(FROZEN)
    scene.drained()
    assert scene.acks() == ["h1"]
    assert scene.acks() == []
    assert scene.show(FROZEN) == []
    assert scene.acks() == ["h1"]
    scene.core.reassert()
    assert scene.acks() == ["h1"]


def test_a_freeze_that_another_handoff_takes_over_is_acknowledged_with_its_id() -> None:
    scene = Scene(OLD)
    scene.show(FROZEN)
    assert scene.show(frozen_by("h2")) == []
    scene.drained()
    assert scene.acks() == ["h2"]
    scene.show(frozen_by("h3"))
    assert scene.acks() == ["h3"], "nothing was sent since the drain"


def test_a_drain_that_ends_after_the_thaw_acknowledges_nothing() -> None:
    scene = Scene(OLD)
    scene.show(FROZEN)
    scene.show(NEW)
    scene.drained()
    assert scene.acks() == []
    first = scene.drains[0]
    scene.show(Route("b", "b:80", 6, "h2", True))
    scene.core.drained(TP, first)
    assert scene.acks() == [], "the drain was that of the freeze before"
    scene.drained()
    assert scene.acks() == ["h2"]


def test_an_overdue_drain_is_never_acknowledged_but_that_of_the_next_handoff_is() -> None:
    scene = Scene(OLD)
    scene.show(FROZEN)
    assert scene.core.overdue(TP, scene.drains[-1])
    scene.drained()
    scene.core.reassert()
    assert scene.show(FROZEN) == []
    assert scene.acks() == []
    assert kinds(scene.show(frozen_by("h2"))) == [Drain]
    scene.drained()
    assert scene.acks() == ["h2"]
    assert not scene.core.overdue(TP, scene.drains[-1]), "it has ended in time"


def test_a_partition_without_an_owner_is_held_back_and_goes_on_with_the_next_owner() -> None:
    scene = Scene(OLD)
    assert scene.show(None) == [Stop(TP), Stash(TP)]
    assert scene.show(NEW) == [Switch(TP, NEW), Flush(TP)]


def test_a_frozen_partition_that_loses_its_owner_is_acknowledged_no_more() -> None:
    scene = Scene(OLD)
    scene.show(FROZEN)
    scene.drained()
    assert scene.show(None) == []
    assert scene.acks() == []


def test_an_address_that_changes_is_switched_to_and_a_handoff_that_begins_changes_nothing() -> None:
    scene = Scene(OLD)
    assert scene.show(Route("a", "a:80", 5, "h1")) == []
    moved = Route("a", "a:81", 5, "h1")
    assert scene.show(moved) == [Switch(TP, moved), Flush(TP)]


def test_acks_that_were_answered_are_pending_no_more_but_a_newer_one_is() -> None:
    scene = Scene(OLD)
    scene.show(FROZEN)
    scene.drained()
    (sent,) = scene.core.pending_acks(10)
    scene.show(frozen_by("h2"))
    scene.core.acknowledged([sent], frozenset({TP}))
    assert scene.core.pending_acks(10) == [FreezeAck(TP, "h2")]
    assert (scene.core.refused, scene.core.acknowledged_count) == (1, 0)


def test_as_many_acks_are_given_as_are_asked_for() -> None:
    core = Cutovers()
    for partition in range(5):
        tp = TopicPartition("t", partition)
        (*_, drain) = core.changed(RowChange(tp, None, FROZEN))
        assert isinstance(drain, Drain)
        core.drained(tp, drain.number)
    assert len(core.pending_acks(3)) == 3
    assert core.unanswered == 5


def test_a_partition_that_thaws_where_it_was_is_switched_to_its_owner_again() -> None:
    """By a successor of the handoff that has frozen nothing yet: same owner, same epoch."""
    scene = Scene(OLD)
    scene.show(FROZEN)
    thawed = Route("a", "a:80", 5, "h2")
    assert scene.show(thawed) == [Switch(TP, thawed), Flush(TP)]


def test_only_the_drain_that_is_still_needed_may_be_overdue() -> None:
    scene = Scene(OLD)
    scene.show(FROZEN)
    scene.show(None)
    scene.show(FROZEN)
    earlier, present = scene.drains
    assert not scene.core.overdue(TP, earlier)
    assert scene.core.draining == 1
    scene.core.drained(TP, earlier)
    assert (scene.core.draining, scene.acks()) == (1, [])
    scene.core.drained(TP, present)
    assert not scene.core.overdue(TP, present), "it has ended"
    assert (scene.core.draining, scene.core.overdue_count) == (0, 0)
    assert scene.acks() == ["h1"]
    assert scene.core.acknowledged_count == 1
    scene.show(NEW)
    assert not scene.core.overdue(TP, present), "nothing is frozen"
