"""Positions as values: what the checkpoint holds, what a batch reads, how far the next one goes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assigner.client.offsets import CommittedOffset
from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition
from assigner.spark.member.claims import Claim, claim_of, held_by
from assigner.spark.positions import (
    HeldPartition,
    Holdings,
    OffsetRange,
    Owner,
    Position,
    Positions,
    advanced,
    packed,
    ranges_between,
    read_positions,
    replayed,
    split,
    with_holdings,
)

OWNER = Owner("billing", "etl-1")
P0, P1, P2 = (TopicPartition("a-b.c", partition) for partition in range(3))


def at(of: dict[TopicPartition, Position] | None = None) -> Positions:
    return Positions(OWNER, of or {})


def holding(*, gone: frozenset[TopicPartition] = frozenset(), **held: HeldPartition) -> Holdings:
    return Holdings({{"p0": P0, "p1": P1, "p2": P2}[name]: one for name, one in held.items()}, gone)


# --- the checkpoint ----------------------------------------------------------------------------------------------


def test_positions_survive_the_checkpoint_as_they_are() -> None:
    positions = at({P1: Position(7, 100, 250), P0: Position(3, 0, 10)})
    text = json.dumps(positions.to_json())
    assert text == (
        '{"a-b.c-0": {"e": 3, "b": 0, "o": 10}, "a-b.c-1": {"e": 7, "b": 100, "o": 250}, '
        '"~": {"group": "billing", "member": "etl-1"}}'
    )
    assert read_positions(json.loads(text), OWNER) == positions


def test_the_order_in_which_partitions_came_does_not_show() -> None:
    one, other = at({P0: Position(1, 0, 0), P1: Position(1, 0, 0)}), at({P1: Position(1, 0, 0), P0: Position(1, 0, 0)})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


@pytest.mark.parametrize(
    ("stored", "complaint"),
    [
        ({}, "not written by assigned_kafka"),
        ({"orders": {"0": 5}}, "not written by assigned_kafka"),
        ({"~": {"group": "other", "member": "etl-1"}}, "belongs to group 'other', but option group is 'billing'"),
        ({"~": {"group": "billing", "member": "x"}}, "belongs to member 'x', but option member is 'etl-1'"),
        ({"~": {"group": "billing", "member": "etl-1"}, "orders": {"e": 1}}, "names no partition"),
        ({"~": {"group": "billing", "member": "etl-1"}, "orders-1": {"e": 1}}, "no position"),
    ],
)
def test_a_checkpoint_that_is_not_ours_is_refused(stored: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        read_positions(stored, OWNER)


# --- what a batch reads ------------------------------------------------------------------------------------------


def test_a_batch_reads_on_under_the_same_epoch_and_from_the_base_under_another() -> None:
    start = at({P0: Position(1, 0, 10), P1: Position(1, 0, 10), P2: Position(1, 0, 10)})
    end = at({P0: Position(1, 0, 15), P1: Position(2, 7, 15)})
    assert ranges_between(start, end) == [OffsetRange(P0, 1, 10, 15), OffsetRange(P1, 2, 7, 15)]


def test_an_empty_range_is_not_planned() -> None:
    assert ranges_between(at(), at({P0: Position(1, 5, 5)})) == []


def test_ranges_are_cut_for_parallel_work() -> None:
    ranges = [OffsetRange(P0, 1, 0, 90), OffsetRange(P1, 1, 0, 10)]
    assert split(ranges, at_least=2, at_most_rows=None) == ranges
    assert len(split(ranges, at_least=10, at_most_rows=None)) == 10
    assert max(one.rows for one in split(ranges, at_least=0, at_most_rows=25)) <= 25


def test_short_ranges_share_a_task_and_long_ones_have_their_own() -> None:
    short = [OffsetRange(TopicPartition("t", n), 1, 0, 4) for n in range(5)]
    long = OffsetRange(P0, 1, 0, 50)
    assert [len(task) for task in packed(short, 10)] == [2, 2, 1]
    assert packed([*short[:2], long, short[2]], 10) == [(short[0], short[1]), (long,), (short[2],)]
    assert packed([], 10) == []


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 200)), min_size=1, max_size=5),
    st.integers(0, 20),
    st.one_of(st.none(), st.integers(1, 50)),
)
def test_pieces_cover_their_ranges_exactly(
    lengths: list[tuple[int, int]], at_least: int, at_most_rows: int | None
) -> None:
    ranges = [OffsetRange(TopicPartition("t", n), 1, first, first + rows) for n, (first, rows) in enumerate(lengths)]
    offsets = [(one.tp, n) for one in ranges for n in range(one.first, one.end)]
    pieces = split(ranges, at_least=at_least, at_most_rows=at_most_rows)
    assert [(one.tp, n) for one in pieces for n in range(one.first, one.end)] == offsets
    assert all(one.rows > 0 for one in pieces)


# --- how far the next batch goes ---------------------------------------------------------------------------------


def test_released_partitions_are_left_out_and_new_ones_begin_at_their_committed_offset() -> None:
    start = at({P0: Position(1, 0, 10), P1: Position(1, 0, 10)})
    now = with_holdings(start, holding(p0=HeldPartition(1, 1, 0), p2=HeldPartition(4, 4, 33), gone=frozenset({P1})))
    assert now.of == {P0: Position(1, 0, 10), P2: Position(4, 33, 33)}


def test_a_partition_of_unknown_owner_stays_as_it_is() -> None:
    start = at({P0: Position(1, 0, 10)})
    now = with_holdings(start, holding())
    assert now == start
    assert advanced(now, {}, {P0: 99}, None) == start


def test_after_a_restart_what_was_finished_counts_if_nobody_else_was_at_work() -> None:
    start = at({P0: Position(5, 0, 10)})
    assert with_holdings(start, holding(p0=HeldPartition(6, 5, 4))).of == {P0: Position(6, 10, 10, kept=True)}
    assert with_holdings(start, holding(p0=HeldPartition(7, 6, 4))).of == {P0: Position(7, 4, 4)}


def test_what_others_finished_meanwhile_counts_more() -> None:
    start = at({P0: Position(5, 0, 10)})
    assert with_holdings(start, holding(p0=HeldPartition(6, 5, 40))).of == {P0: Position(6, 40, 40, kept=True)}


def test_a_partition_to_be_released_is_read_no_further_and_marked() -> None:
    start = at({P0: Position(5, 0, 10), P1: Position(5, 0, 10)})
    holdings = Holdings({P0: HeldPartition(5, 5, 0), P1: HeldPartition(5, 5, 0)}, leaving=frozenset({P0}))
    end = advanced(with_holdings(start, holdings), holdings.held, {P0: 99, P1: 99}, None)
    assert end.of == {P0: Position(5, 0, 10, released=True), P1: Position(5, 0, 99)}
    assert read_positions(json.loads(json.dumps(end.to_json())), OWNER) == end


def test_what_was_given_away_does_not_count_when_it_stays_after_all() -> None:
    start = at({P0: Position(5, 0, 10, released=True)})
    assert with_holdings(start, holding(p0=HeldPartition(5, 5, 8))).of == {P0: Position(5, 8, 8)}
    assert with_holdings(start, holding(p0=HeldPartition(6, 5, 8))).of == {P0: Position(6, 8, 8)}


def test_a_batch_of_an_earlier_process_is_read_again_only_where_nobody_took_over() -> None:
    start = at({P0: Position(5, 0, 10), P1: Position(5, 0, 10), P2: Position(5, 0, 10)})
    end = at({P0: Position(5, 0, 20), P1: Position(5, 0, 20), P2: Position(5, 0, 20)})
    holdings = holding(p0=HeldPartition(6, 5, 10), p1=HeldPartition(7, 7, 20), gone=frozenset({P2}))
    assert replayed(start, end, holdings) == [OffsetRange(P0, 6, 10, 20)]


def test_a_batch_is_shared_by_what_waits_where_and_forgets_nobody() -> None:
    now = at({P0: Position(1, 0, 0), P1: Position(1, 0, 0), P2: Position(1, 0, 0)})
    held = dict.fromkeys(now.of, HeldPartition(1, 1, 0))
    end = advanced(now, held, {P0: 1000, P1: 100, P2: 1}, 110)
    assert {tp: position.end for tp, position in end.of.items()} == {P0: 99, P1: 9, P2: 1}


@settings(max_examples=60)
@given(
    st.lists(st.dictionaries(st.sampled_from([P0, P1, P2]), st.integers(0, 30)), min_size=1, max_size=8),
    st.integers(1, 40),
)
def test_batches_read_every_offset_once(growth: list[dict[TopicPartition, int]], max_rows: int) -> None:
    held = {tp: HeldPartition(1, 1, 5) for tp in (P0, P1, P2)}
    ends = dict.fromkeys(held, 5)
    start, seen = at(), []
    for step in [*growth, *[{}] * 200]:
        ends = {tp: end + step.get(tp, 0) for tp, end in ends.items()}
        end = advanced(with_holdings(start, Holdings(held)), held, ends, max_rows)
        seen += [(one.tp, n) for one in ranges_between(start, end) for n in range(one.first, one.end)]
        start = end
    assert len(seen) == len(set(seen))
    assert set(seen) == {(tp, n) for tp, end in ends.items() for n in range(5, end)}


# --- claims ------------------------------------------------------------------------------------------------------


def record(offset: int, epoch: int, metadata: str) -> CommittedOffset:
    return CommittedOffset(offset, epoch, metadata, -1, 0)


def test_a_claim_is_carried_on_by_the_next_process_of_the_same_member() -> None:
    found = record(10, 5, Claim("m", 3).text())
    assert held_by("m", 6, found, 0) == HeldPartition(6, 3, 10)


@pytest.mark.parametrize(
    "found",
    [
        record(10, 5, Claim("other", 3).text()),
        record(10, 4, Claim("m", 3).text()),
        record(10, 0, ""),
        record(10, 5, "written by hand"),
        record(10, 5, '{"member": 7}'),
    ],
)
def test_a_claim_ends_where_another_member_may_have_been_at_work(found: CommittedOffset) -> None:
    assert held_by("m", 6, found, 0) == HeldPartition(6, 6, 10)


def test_without_a_committed_offset_the_option_decides() -> None:
    assert held_by("m", 6, None, 77) == HeldPartition(6, 6, 77)


def test_a_claim_can_be_read_back() -> None:
    assert claim_of(Claim("größe", 3).text()) == Claim("größe", 3)
