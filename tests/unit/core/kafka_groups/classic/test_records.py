"""How a group is split into records, and what is read of an interrupted write."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assigner.core.kafka_groups.classic.records import BLOCK, Layout, pack, size_of, unnamed, unpack
from assigner.errors import UnreadableRecord
from assigner.model.kafka_groups import ClassicGroupRecord, ClassicMemberRecord, ClassicMembersRecord
from assigner.model.records import encode


def member(name: str, size: int = 0, assignment: bytes = b"") -> ClassicMemberRecord:
    return ClassicMemberRecord(
        member_id=name,
        session_timeout=10_000,
        rebalance_timeout=60_000,
        protocols=(("range", b"x" * size),),
        assignment=assignment,
    )


def group(*members: ClassicMemberRecord, generation: int = 1) -> ClassicGroupRecord:
    return ClassicGroupRecord(generation=generation, reserved=generation + 15, protocol="range", members=members)


def large(count: int = 10, size: int = 60_000) -> ClassicGroupRecord:
    return group(*(member(f"m{number}", size) for number in range(count)))


class Shelf:
    """What a store would have, by the writes that it was given."""

    def __init__(self) -> None:
        self.state: ClassicGroupRecord | None = None
        self.blocks: dict[int, ClassicMembersRecord] = {}
        self.layout = Layout()
        self.written = 0
        """Blocks."""

    def put(self, record: ClassicGroupRecord, wall: int = 0) -> None:
        packed = pack(record, self.layout, wall)
        for number, block in packed.blocks:
            assert number not in self.blocks, "a block is changed under its number"
            self.blocks[number] = block
            self.written += 1
        self.state = packed.state
        for number in packed.obsolete:
            del self.blocks[number]
        self.layout = packed.layout

    def read(self) -> ClassicGroupRecord:
        assert self.state is not None
        record, layout = unpack(self.state, self.blocks)
        assert layout == self.layout
        return record


def plain(record: ClassicGroupRecord) -> ClassicGroupRecord:
    return msgspec.structs.replace(record, since=0, next_block=0)


def test_a_small_group_is_one_record() -> None:
    shelf = Shelf()
    shelf.put(group(member("a"), member("b")))

    assert shelf.blocks == {}
    assert shelf.state is not None
    assert [one.member_id for one in shelf.state.members] == ["a", "b"]
    assert plain(shelf.read()) == group(member("a"), member("b"))


def test_the_members_of_a_large_group_are_in_blocks_that_fit() -> None:
    shelf = Shelf()
    record = large()
    shelf.put(record)

    assert len(shelf.blocks) > 2
    assert all(len(encode(block)) <= BLOCK for block in shelf.blocks.values())
    assert shelf.state is not None
    assert shelf.state.members == ()
    assert len(encode(shelf.state)) < 1_000
    assert plain(shelf.read()) == plain(record)


def test_thousands_of_members_fit() -> None:
    shelf = Shelf()
    record = group(*(member(f"consumer-orders-{n}-{'0' * 36}", 600, b"a" * 300) for n in range(5_000)))
    shelf.put(record)

    assert plain(shelf.read()) == plain(record)
    assert len(shelf.blocks) < 60
    # All of them can be named and deleted in one transaction.
    assert len(encode(shelf.state or record)) < 2_000


def test_a_change_of_one_member_writes_one_block() -> None:
    shelf = Shelf()
    record = large()
    shelf.put(record)
    before = shelf.written
    members = list(record.members)
    shelf.put(record)
    assert shelf.written == before

    members[5] = msgspec.structs.replace(members[5], assignment=b"z")
    shelf.put(msgspec.structs.replace(record, members=tuple(members)))
    assert shelf.written == before + 1


def test_a_group_that_shrinks_leaves_no_blocks() -> None:
    shelf = Shelf()
    shelf.put(large())
    shelf.put(group(member("a"), generation=2))

    assert shelf.blocks == {}
    assert plain(shelf.read()) == group(member("a"), generation=2)


def test_no_number_is_used_twice_even_after_the_group_was_small() -> None:
    shelf = Shelf()
    shelf.put(large())
    used = set(shelf.blocks)
    shelf.put(group(generation=2))
    shelf.put(large())

    assert used.isdisjoint(shelf.blocks)


def test_a_missing_block_is_reported_with_what_to_do() -> None:
    shelf = Shelf()
    shelf.put(large())
    del shelf.blocks[0]

    with pytest.raises(UnreadableRecord, match=r"block 0 .* delete the group"):
        shelf.read()


def test_a_write_that_was_interrupted_before_the_record_changes_nothing() -> None:
    shelf = Shelf()
    record = large()
    shelf.put(record)
    packed = pack(large(12, 50_000), shelf.layout, 0)
    blocks = {**shelf.blocks, **dict(packed.blocks)}
    assert shelf.state is not None

    assert plain(unpack(shelf.state, blocks)[0]) == plain(record)
    assert unnamed(shelf.state, blocks) == tuple(number for number, _ in packed.blocks)
    assert unnamed(None, blocks) == tuple(sorted(blocks))


class TestSince:
    def test_is_when_the_group_got_into_its_state(self) -> None:
        shelf = Shelf()
        shelf.put(group(member("a")), wall=100)
        shelf.put(group(generation=2), wall=200)

        assert shelf.read().since == 200

    def test_stays_while_only_other_things_change(self) -> None:
        shelf = Shelf()
        shelf.put(group(generation=2), wall=200)
        shelf.put(msgspec.structs.replace(group(generation=2), reserved=99), wall=300)

        assert shelf.read().since == 200


texts = st.text(max_size=5)


members = st.builds(
    ClassicMemberRecord,
    member_id=texts,
    instance_id=st.none() | texts,
    client_id=texts,
    client_host=texts,
    session_timeout=st.integers(0, 2**31),
    rebalance_timeout=st.integers(0, 2**31),
    protocols=st.lists(st.tuples(texts, st.binary(max_size=20)), max_size=3).map(tuple),
    assignment=st.binary(max_size=20),
)


@given(members)
def test_the_size_of_a_member_is_never_underestimated(one: ClassicMemberRecord) -> None:
    assert size_of(one) >= len(encode(one))


@settings(max_examples=40)
@given(st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 90_000)), max_size=12), min_size=1, max_size=6))
def test_whatever_is_written_in_a_row_is_what_is_read(course: list[list[tuple[int, int]]]) -> None:
    shelf = Shelf()
    for generation, members in enumerate(course):
        record = group(*(member(f"m{name}", size) for name, size in dict(members).items()), generation=generation)
        shelf.put(record)

        assert plain(shelf.read()) == record
        assert set(shelf.blocks) == set(shelf.state.blocks if shelf.state else ())
