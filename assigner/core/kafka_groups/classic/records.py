"""Splits a classic group into records that fit into the store, and puts it together again.

A small group is one record. The members of a larger one are in blocks, each written once under a number of its own and
never changed. The group's record names its blocks and is the commit point: it is written after them, and those it does
not name any more are deleted after it. So a reader that takes the record and its blocks from one snapshot sees one
generation, and an interrupted write leaves nothing but blocks that nobody names.

Blocks that did not change are kept: a static member's new process costs one block of a group of thousands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from assigner.errors import UnreadableRecord
from assigner.model.kafka_groups import ClassicGroupRecord, ClassicMemberRecord, ClassicMembersRecord

BLOCK = 262_144
"""Bytes of a block, or of the members in a group's record. Only a member that is larger makes a larger block."""

Members = tuple[ClassicMemberRecord, ...]


class Packed(msgspec.Struct, frozen=True):
    """What to write, in this order: the blocks, the state, and then to delete."""

    state: ClassicGroupRecord
    blocks: tuple[tuple[int, ClassicMembersRecord], ...]
    """The new ones, by number."""
    obsolete: tuple[int, ...]
    layout: Layout
    """What is stored then."""


class Layout(msgspec.Struct, frozen=True):
    """What is stored of a group."""

    state: ClassicGroupRecord | None = None
    blocks: tuple[tuple[int, Members], ...] = ()
    """The members of each block that the state names, in its order."""


def pack(record: ClassicGroupRecord, stored: Layout, wall: int) -> Packed:
    """Split a record with all members. `wall`: the time in milliseconds."""
    before = stored.state or ClassicGroupRecord()
    state = msgspec.structs.replace(record, since=_since(record, stored, wall), next_block=before.next_block)
    parts = _parts(record.members)
    if len(parts) < 2:
        obsolete = tuple(number for number, _ in stored.blocks)
        return Packed(state, (), obsolete, Layout(state))
    known = {members: number for number, members in stored.blocks}
    layout: list[tuple[int, Members]] = []
    following = before.next_block
    for members in parts:
        number = known.pop(members, following)
        following += number == following
        layout.append((number, members))
    numbers = tuple(number for number, _ in layout)
    state = msgspec.structs.replace(state, members=(), blocks=numbers, next_block=following)
    new = tuple((n, ClassicMembersRecord(members=members)) for n, members in layout if n >= before.next_block)
    return Packed(state, new, tuple(known.values()), Layout(state, tuple(layout)))


def unpack(state: ClassicGroupRecord, blocks: Mapping[int, ClassicMembersRecord]) -> tuple[ClassicGroupRecord, Layout]:
    """Put a group together. `blocks`: at least those that the state names. Raises `UnreadableRecord` if one is
    missing."""
    missing = [number for number in state.blocks if number not in blocks]
    if missing:
        raise UnreadableRecord(
            f"the group's record names block {missing[0]} of its members, and there is no such block; "
            "delete the group, and its members join again"
        )
    parts = tuple((number, blocks[number].members) for number in state.blocks)
    members = (*state.members, *(member for _, part in parts for member in part))
    return msgspec.structs.replace(state, members=members, blocks=()), Layout(state, parts)


def unnamed(state: ClassicGroupRecord | None, found: Iterable[int]) -> tuple[int, ...]:
    """The blocks that an interrupted write left behind."""
    named = set(state.blocks) if state else set()
    return tuple(sorted(number for number in found if number not in named))


def _since(record: ClassicGroupRecord, stored: Layout, wall: int) -> int:
    """Since when the group is in the generation and the state of this record."""
    before = stored.state
    same = before is not None and (before.generation, before.is_empty) == (record.generation, record.is_empty)
    return before.since if before is not None and same else wall


def _parts(members: Members) -> list[Members]:
    parts: list[list[ClassicMemberRecord]] = [[]]
    size = 0
    for member in members:
        bytes_ = size_of(member)
        if parts[-1] and size + bytes_ > BLOCK:
            parts.append([])
            size = 0
        parts[-1].append(member)
        size += bytes_
    return [tuple(part) for part in parts]


def size_of(member: ClassicMemberRecord) -> int:
    """More bytes than the member's JSON has: bytes are base64 in it, and a character may be escaped by six."""
    texts = len(member.member_id) + len(member.instance_id or "") + len(member.client_id) + len(member.client_host)
    data = len(member.assignment)
    for name, metadata in member.protocols:
        texts += len(name)
        data += len(metadata) + 9
    return 6 * texts + data * 4 // 3 + 256
