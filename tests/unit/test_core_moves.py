"""The queue of moves that have not begun."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from assigner.core.moves import Move, MoveQueue
from assigner.keys import TopicPartition
from assigner.records import Cause


def move(target: str, number: int, size: int = 1) -> Move:
    return Move(tuple(TopicPartition(f"t{n}", number) for n in range(size)), target, Cause.JOINED)


def test_targets_take_turns() -> None:
    queue = MoveQueue()
    for number in range(3):
        queue.add(move("a", number))
        queue.add(move("b", 10 + number))
    taken = list(queue.take(lambda _: 100, 4))
    assert [m.target for m in taken] == ["a", "b", "a", "b"]
    assert len(queue) == 2


def test_a_target_without_room_keeps_nobody_waiting() -> None:
    queue = MoveQueue()
    for number in range(3):
        queue.add(move("full", number))
        queue.add(move("free", 10 + number))
    taken = list(queue.take(lambda name: 0 if name == "full" else 100, 10))
    assert [m.target for m in taken] == ["free"] * 3
    assert len(queue) == 3


def test_partitions_that_move_as_one_need_room_for_all_of_them() -> None:
    queue = MoveQueue()
    queue.add(move("a", 0, size=3))
    assert list(queue.take(lambda _: 2, 10)) == []
    assert len(list(queue.take(lambda _: 3, 10))) == 1


def test_a_cleared_queue_is_empty() -> None:
    queue = MoveQueue()
    queue.add(move("a", 0))
    queue.clear()
    assert not len(queue)
    assert list(queue.take(lambda _: 9, 9)) == []


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), max_size=30),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 6)),
    st.integers(0, 10),
)
def test_nothing_is_lost_or_taken_beyond_the_room(
    wanted: list[tuple[str, int]], room: dict[str, int], total: int
) -> None:
    queue = MoveQueue()
    for number, (target, size) in enumerate(wanted):
        queue.add(move(target, number, size))
    taken = list(queue.take(lambda name: room.get(name, 0), total))
    begun = Counter[str]()
    for one in taken:
        begun[one.target] += len(one.tps)
    assert all(begun[name] <= room.get(name, 0) for name in begun)
    # One unit may begin while a single place is left in all; it is never torn apart.
    assert sum(begun.values()) <= total + 2
    rest = list(queue.take(lambda _: 10**6, 10**6))
    assert len(queue) == 0
    assert Counter(m.tps for m in taken + rest) == Counter(
        move(target, number, size).tps for number, (target, size) in enumerate(wanted)
    )
    for target in "abc":
        order = [m.tps[0].partition for m in taken + rest if m.target == target]
        assert order == sorted(order)
