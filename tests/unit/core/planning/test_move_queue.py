"""The queue of moves that have not begun."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from assigner.core.planning.execution import MoveQueue, QueuedMove
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause


def move(target: str, number: int, size: int = 1) -> QueuedMove:
    return QueuedMove(tuple(TopicPartition(f"t{n}", number) for n in range(size)), target, Cause.JOINED)


def test_targets_take_turns() -> None:
    queue = MoveQueue()
    for number in range(3):
        queue.add(move("a", number))
        queue.add(move("b", 10 + number))
    taken = list(queue.take(lambda _: 0, 100, 4))
    assert [m.target for m in taken] == ["a", "b", "a", "b"]
    assert len(queue) == 2


def test_a_target_without_room_keeps_nobody_waiting() -> None:
    queue = MoveQueue()
    for number in range(3):
        queue.add(move("full", number))
        queue.add(move("free", 10 + number))
    taken = list(queue.take(lambda name: 3 if name == "full" else 0, 3, 10))
    assert [m.target for m in taken] == ["free"] * 3
    assert len(queue) == 3


def test_partitions_that_move_as_one_need_room_for_all_of_them() -> None:
    queue = MoveQueue()
    queue.add(move("a", 0, size=3))
    assert list(queue.take(lambda _: 1, 3, 10)) == []
    assert len(list(queue.take(lambda _: 1, 4, 10))) == 1


def test_what_moves_as_one_begins_whatever_its_size_where_nothing_else_is_warmed() -> None:
    queue = MoveQueue()
    queue.add(move("a", 0, size=3))
    queue.add(move("a", 1, size=3))
    assert list(queue.take(lambda _: 1, 2, 10)) == []
    assert [one.tps[0].partition for one in queue.take(lambda _: 0, 2, 10)] == [0]
    assert [one.tps[0].partition for one in queue.take(lambda _: 0, 2, 10)] == [1]


def test_a_cleared_queue_is_empty() -> None:
    queue = MoveQueue()
    queue.add(move("a", 0))
    queue.clear()
    assert not len(queue)
    assert list(queue.take(lambda _: 0, 9, 9)) == []


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), max_size=30),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 6)),
    st.integers(1, 6),
    st.integers(0, 10),
)
def test_nothing_is_lost_or_taken_beyond_the_room(
    wanted: list[tuple[str, int]], warming: dict[str, int], most: int, total: int
) -> None:
    queue = MoveQueue()
    for number, (target, size) in enumerate(wanted):
        queue.add(move(target, number, size))
    taken = list(queue.take(lambda name: warming.get(name, 0), most, total))
    begun = Counter[str]()
    for one in taken:
        busy = begun[one.target] + warming.get(one.target, 0)
        assert not busy or busy + len(one.tps) <= most
        begun[one.target] += len(one.tps)
    # One unit may begin while a single place is left in all; it is never torn apart.
    assert sum(begun.values()) <= total + 2
    rest = list(queue.take(lambda _: 0, 10**6, 10**6))
    assert len(queue) == 0
    assert Counter(m.tps for m in taken + rest) == Counter(
        move(target, number, size).tps for number, (target, size) in enumerate(wanted)
    )
    for target in "abc":
        order = [m.tps[0].partition for m in taken + rest if m.target == target]
        assert order == sorted(order)
