"""When things are due: the schedule, the deadlines of handoffs, the debounce of plans."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from assigner.core.group import GroupState
from assigner.core.handoff.lifecycle import Deadlines
from assigner.core.work_queue import Schedule, WorkQueue
from assigner.model.keys import Keys, TopicPartition
from assigner.model.records import Cause, GroupOptions, Step

TP = TopicPartition("t", 0)


def test_what_is_due_comes_once_in_order() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.set("late", 3.0)
    schedule.set("soon", 1.0)
    assert schedule.next() == 1.0
    assert schedule.pop_due(0.5) == []
    assert schedule.pop_due(5.0) == ["soon", "late"]
    assert schedule.pop_due(5.0) == []
    assert schedule.next() is None


def test_a_later_time_replaces_an_earlier_one_and_sooner_never_postpones() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.set("x", 1.0)
    schedule.set("x", 3.0)
    assert schedule.pop_due(2.0) == []
    schedule.sooner("x", 9.0)
    assert schedule.next() == 3.0
    schedule.sooner("x", 2.5)
    assert schedule.pop_due(2.5) == ["x"]


def test_what_was_cleared_never_comes() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.set("x", 1.0)
    schedule.clear("x")
    assert "x" not in schedule
    assert schedule.next() is None
    assert schedule.pop_due(9.0) == []


@given(st.lists(st.tuples(st.sampled_from(["set", "sooner", "clear", "pop"]), st.integers(0, 4), st.integers(0, 20))))
def test_a_schedule_is_a_map_of_due_times(course: list[tuple[str, int, int]]) -> None:
    schedule: Schedule[int] = Schedule()
    model: dict[int, float] = {}
    for what, key, at in course:
        match what:
            case "set":
                schedule.set(key, at)
                model[key] = at
            case "sooner":
                schedule.sooner(key, at)
                model[key] = min(at, model.get(key, at))
            case "clear":
                schedule.clear(key)
                model.pop(key, None)
            case "pop":
                due = {k for k, t in model.items() if t <= at}
                assert set(schedule.pop_due(at)) == due
                model = {k: t for k, t in model.items() if k not in due}
        assert len(schedule) == len(model)
        assert schedule.next() == min(model.values(), default=None)
        assert all(schedule.passed(k, t) for k, t in model.items())


def test_a_deadline_counts_from_when_the_step_was_first_seen() -> None:
    deadlines = Deadlines()
    deadlines.arm(TP, "h", Step.WARMING, 10.0, now=0.0)
    deadlines.arm(TP, "h", Step.WARMING, 10.0, now=8.0)
    assert deadlines.next() == 10.0
    assert deadlines.pop_due(10.0) == [TP]
    assert deadlines.overdue(TP)


def test_another_step_or_another_handoff_starts_the_clock_again() -> None:
    deadlines = Deadlines()
    deadlines.arm(TP, "h", Step.WARMING, 10.0, now=0.0)
    deadlines.pop_due(10.0)
    deadlines.arm(TP, "h", Step.RELEASING, 5.0, now=11.0)
    assert not deadlines.overdue(TP)
    assert deadlines.next() == 16.0
    deadlines.arm(TP, "h2", Step.RELEASING, 5.0, now=15.0)
    assert deadlines.next() == 20.0


def test_a_step_without_a_limit_is_never_overdue_and_an_ended_handoff_is_forgotten() -> None:
    deadlines = Deadlines()
    deadlines.arm(TP, "h", Step.WARMING, 10.0, now=0.0)
    deadlines.arm(TP, "h", Step.READY, None, now=1.0)
    assert deadlines.pop_due(1e9) == []
    deadlines.arm(TP, "h", Step.WARMING, 10.0, now=2.0)
    deadlines.disarm(TP)
    assert deadlines.pop_due(1e9) == []
    assert not deadlines.overdue(TP)


def work_queue() -> WorkQueue:
    keys = Keys("/r/", default_group="g", default_prefix="").group("g")
    plans = WorkQueue(GroupState(keys, GroupOptions(debounce=2.0)), now=0.0)
    plans.plan_due = None
    return plans


def test_the_debounce_window_is_opened_once_and_not_extended() -> None:
    plans = work_queue()
    plans.want_plan(Cause.JOINED, 10.0)
    plans.want_plan(Cause.LEFT, 11.5)
    assert plans.next_wake(plans=True) == 12.0
    plans.want_plan(Cause.OPERATOR, 11.5, delay=0.0)
    assert plans.next_wake(plans=True) == 11.5
    assert plans.next_wake(plans=False) is None
    assert plans.take_plan(12.0) == {Cause.JOINED, Cause.LEFT, Cause.OPERATOR}


def test_the_causes_of_a_plan_that_is_repeated_are_wanted_again() -> None:
    plans = work_queue()
    plans.want_plan(Cause.JOINED, 10.0)
    causes = plans.take_plan(12.0)
    assert plans.next_wake(plans=True) is None
    plans.want_plan(Cause.LEFT, 13.0)
    plans.want_plan_again(causes, 14.0, 0.5)
    assert plans.next_wake(plans=True) == 14.5
    assert plans.take_plan(15.0) == {Cause.JOINED, Cause.LEFT}
    assert not plans.take_plan(16.0), "they were taken"


def test_a_partition_in_cooldown_is_examined_when_it_is_over() -> None:
    plans = work_queue()
    plans.cooldowns.set(TP, 5.0)
    assert plans.is_cooling_down(TP, 4.9)
    assert not plans.is_cooling_down(TP, 5.0)
    plans.wake(5.0)
    assert list(plans.dirty) == [TP]
    assert plans.next_wake(plans=True) == 7.0


def test_what_is_enqueued_twice_is_examined_once() -> None:
    plans = work_queue()
    other = TopicPartition("t", 1)
    plans.enqueue([TP, other])
    plans.enqueue([TP])
    assert [plans.pop(), plans.pop()] == [TP, other]
    assert not plans.dirty
