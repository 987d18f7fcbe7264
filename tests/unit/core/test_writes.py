"""How writes are packed into transactions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from assigner.core.writes import Purpose, Write, pack
from assigner.store import Absent, Compare, CreateRevisionIs, Delete, Limits, ModRevisionIs, Operation, Put

LIMITS = Limits(operations=8, value_bytes=100)
FENCE = CreateRevisionIs("/leader", 7)


def write(*operations: Operation, compares: tuple[Compare, ...] = ()) -> Write:
    return Write(Purpose.ASSIGN, compares, operations)


def put(number: int, size: int = 1) -> Write:
    key = f"/k/{number}"
    return write(Put(key, b"x" * size), compares=(Absent(key),))


def test_as_many_writes_share_a_transaction_as_it_takes_operations() -> None:
    packed = pack([put(number) for number in range(20)], LIMITS)
    assert len(packed.writes) == 8
    assert len(packed.operations) == len(packed.compares) == 8


def test_the_fence_takes_a_place_among_the_compares() -> None:
    packed = pack([put(number) for number in range(20)], LIMITS, FENCE)
    assert packed.compares[0] == FENCE
    assert len(packed.writes) == 7


def test_a_compare_that_several_writes_share_counts_once() -> None:
    shared = ModRevisionIs("/consumer", 3)
    writes = [write(Put(f"/k/{n}", b""), compares=(shared, Absent(f"/k/{n}"))) for n in range(20)]
    packed = pack(writes, LIMITS)
    assert packed.compares.count(shared) == 1
    assert len(packed.writes) == 7


def test_values_count_too() -> None:
    assert len(pack([put(number, size=40) for number in range(20)], LIMITS).writes) == 2


def test_a_write_that_is_too_large_by_itself_goes_alone() -> None:
    """The store refuses it then, and only it."""
    large = write(*(Put(f"/k/{number}", b"x" * 50) for number in range(9)))
    assert pack([large, put(99)], LIMITS).writes == (large,)


def test_a_key_is_written_once_per_transaction() -> None:
    first, again = put(1), write(Delete("/k/1"))
    assert pack([first, again], LIMITS).writes == (first,)


def test_a_write_decided_on_what_an_earlier_one_replaces_waits() -> None:
    first = put(1)
    second = write(Put("/k/2", b""), compares=(ModRevisionIs("/k/1", 5),))
    assert pack([first, second, put(3)], LIMITS).writes == (first,)


@st.composite
def some_writes(draw: st.DrawFn) -> list[Write]:
    found = []
    for _ in range(draw(st.integers(1, 12))):
        keys = draw(st.lists(st.integers(0, 15), min_size=1, max_size=4, unique=True))
        compared = draw(st.lists(st.integers(0, 15), max_size=4, unique=True))
        found.append(
            write(
                *(Put(f"/k/{key}", b"x" * draw(st.integers(0, 30))) for key in keys),
                compares=tuple(ModRevisionIs(f"/k/{key}", draw(st.integers(1, 3))) for key in compared),
            )
        )
    return found


@given(some_writes())
def test_what_is_packed_is_a_prefix_within_the_limits_and_whole(writes: list[Write]) -> None:
    packed = pack(writes, LIMITS, FENCE)
    count = len(packed.writes)
    assert count >= 1
    assert packed.writes == tuple(writes[:count])
    assert packed.operations == tuple(op for write in packed.writes for op in write.operations)
    assert set(packed.compares) == {FENCE, *(compare for write in packed.writes for compare in write.compares)}
    assert len(set(packed.compares)) == len(packed.compares)
    if count > 1:
        assert len(packed.operations) <= LIMITS.operations
        assert len(packed.compares) <= LIMITS.operations
        assert sum(len(op.value) for op in packed.operations if isinstance(op, Put)) <= LIMITS.value_bytes
        keys = [op.key for op in packed.operations]
        assert len(set(keys)) == len(keys)
