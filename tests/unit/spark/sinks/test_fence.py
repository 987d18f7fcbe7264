"""The rule of fences: lower epochs are refused, what is written is skipped, nothing is lost or doubled."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition
from assigner.spark.sinks.columns import check_columns, data_rows, slices_of, state_rows
from assigner.spark.sinks.fence import MAX_STALE_BATCHES, Fence, OnStale, Slice, StaleRows, decide, merged, stale_policy
from tests.support.spark.sink_rows import TOPIC, rows, with_states

TP = TopicPartition(TOPIC, 0)


def part(epoch: int, first: int, end: int) -> Slice:
    return Slice(topic=TOPIC, partition=0, epoch=epoch, first=first, next_offset=end, rows=end - first)


def test_the_first_batch_is_taken_whole() -> None:
    decision = decide({}, [part(3, 10, 20)], OnStale.DROP)
    assert decision.floors == {TP: 0}
    assert decision.fences == {TP: Fence(epoch=3, next_offset=20)}


def test_what_is_written_already_is_skipped_by_the_same_and_by_the_next_owner() -> None:
    before = {TP: Fence(epoch=3, next_offset=20)}
    for epoch in (3, 4):
        decision = decide(before, [part(epoch, 15, 30)], OnStale.DROP)
        assert decision.floors == {TP: 20}
        assert decision.fences[TP] == Fence(epoch=epoch, next_offset=30)


def test_a_replay_that_reaches_less_far_does_not_lower_the_fence() -> None:
    decision = decide({TP: Fence(epoch=3, next_offset=20)}, [part(3, 5, 10)], OnStale.DROP)
    assert decision.fences[TP].next_offset == 20


def test_a_lower_epoch_is_refused_wherever_its_offsets_are() -> None:
    decision = decide({TP: Fence(epoch=4, next_offset=20)}, [part(3, 50, 60)], OnStale.DROP)
    assert decision.floors == {}
    assert [stale.rows for stale in decision.stale] == [10]
    fence = decision.fences[TP]
    assert (fence.epoch, fence.next_offset, fence.refused_rows, fence.refused_batches) == (4, 20, 10, 1)


def test_with_fail_it_fails_at_the_first_stale_row() -> None:
    with pytest.raises(StaleRows, match=r"orders/0 carry epoch 3, but epoch 4 has written.*reset the sink's fence"):
        decide({TP: Fence(epoch=4)}, [part(3, 0, 1)], OnStale.FAIL)


def test_an_owner_that_never_notices_is_dropped_for_some_batches_and_then_fails() -> None:
    fence = Fence(epoch=4, next_offset=20)
    for number in range(MAX_STALE_BATCHES):
        fence = decide({TP: fence}, [part(3, number, number + 1)], OnStale.DROP).fences[TP]
    assert fence.refused_batches == MAX_STALE_BATCHES
    with pytest.raises(StaleRows):
        decide({TP: fence}, [part(3, MAX_STALE_BATCHES, MAX_STALE_BATCHES + 1)], OnStale.DROP)


def test_a_stale_batch_that_is_replayed_over_and_over_counts_once() -> None:
    fence = Fence(epoch=4, next_offset=20)
    for _ in range(MAX_STALE_BATCHES * 2):
        fence = decide({TP: fence}, [part(3, 0, 10)], OnStale.DROP).fences[TP]
    assert fence.refused_batches == 1


def test_another_late_owner_has_a_limit_of_its_own() -> None:
    fence = Fence(epoch=9, refused_epoch=3, refused_until=100, refused_batches=MAX_STALE_BATCHES)
    fence = decide({TP: fence}, [part(4, 0, 10)], OnStale.DROP).fences[TP]
    assert (fence.refused_epoch, fence.refused_batches, fence.refused_until) == (4, 1, 10)


def test_rows_of_one_partition_from_several_tasks_are_one_slice() -> None:
    assert merged([part(3, 10, 20), part(3, 0, 5)]) == [
        Slice(topic=TOPIC, partition=0, epoch=3, first=0, next_offset=20, rows=15)
    ]


def test_slices_come_in_the_order_in_which_all_members_lock() -> None:
    where = [("b", 0), ("a", 10), ("a", 9)]
    slices = [Slice(topic=t, partition=p, epoch=1, first=0, next_offset=1, rows=1) for t, p in where]
    assert [(one.topic, one.partition) for one in merged(slices)] == [("a", 9), ("a", 10), ("b", 0)]


def test_two_epochs_of_a_partition_in_one_batch_are_an_error() -> None:
    with pytest.raises(InvalidInput, match="under epochs 3 and 4"):
        merged([part(3, 0, 1), part(4, 1, 2)])


def test_an_unknown_policy_is_named_with_the_known_ones() -> None:
    assert stale_policy("Fail") is OnStale.FAIL
    with pytest.raises(InvalidInput, match=r"onStale is 'ignore'; it may be drop or fail"):
        stale_policy("ignore")


# --- any course --------------------------------------------------------------------------------------------------

# Each step: an owner by its epoch reads so many records from where it stands, and the batch reaches the sink or not.
STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.booleans()), max_size=40)


@given(steps=STEPS)
@settings(max_examples=300, deadline=None)
def test_whatever_owners_do_every_row_is_written_once_and_in_order(steps: list[tuple[int, int, bool]]) -> None:
    """Owners 0..3 hold the partition under epochs 1..4, at any time and all at once. Each starts where the offset was
    committed when it first acts; a commit of the offset counts only from the highest epoch that acted, as the service
    sees to. A batch that does not reach the sink is tried again."""
    fence, committed, highest = Fence(), 0, 0
    written: list[int] = []
    stands: dict[int, int] = {}
    for owner, count, reaches in steps:
        epoch = owner + 1
        highest = max(highest, epoch)
        first = stands.setdefault(owner, committed)
        if not reaches or not _bears(fence, epoch):
            continue
        decision = decide({TP: fence}, [part(epoch, first, first + count)], OnStale.DROP)
        fence = decision.fences[TP]
        floor = decision.floors.get(TP)
        written += [] if floor is None else list(range(max(first, floor), first + count))
        stands[owner] = first + count
        if epoch == highest:
            committed = max(committed, first + count)
    assert written == list(range(len(written)))
    assert committed <= fence.next_offset == len(written)


def _bears(fence: Fence, epoch: int) -> bool:
    return not (fence.refused_epoch == epoch and fence.refused_batches >= MAX_STALE_BATCHES)


# --- what is read from rows ----------------------------------------------------------------------------------------


def test_slices_are_read_from_the_rows() -> None:
    slices = slices_of(rows(7, [5, 3, 9], partition=2))
    assert slices == [Slice(topic=TOPIC, partition=2, epoch=7, first=3, next_offset=10, rows=3)]
    assert slices_of(rows(7, [])) == []


@pytest.mark.parametrize("missing", ["topic", "partition", "offset", "epoch"])
def test_a_missing_column_is_named_with_the_remedy(missing: str) -> None:
    names = [name for name in ("topic", "partition", "offset", "epoch", "value") if name != missing]
    with pytest.raises(InvalidInput, match=rf"needs the column {missing} .*includeEpoch=true"):
        check_columns(names)


def test_rows_without_origin_are_refused() -> None:
    batch = rows(1, [1, 2])
    with pytest.raises(InvalidInput, match="offset is null"):
        slices_of(batch.set_column(2, "offset", pa.nulls(batch.num_rows, pa.int64())))


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="below 0"):
        slices_of(rows(-1, [1]))


def test_state_rows_are_no_data() -> None:
    batch = with_states(rows(3, [0, 1]), [(0, 3, 2, b"two")])
    assert data_rows(batch).num_rows == 2
    assert data_rows(batch).schema.names == ["topic", "partition", "offset", "epoch", "value"]
    (state,) = state_rows(batch)
    assert (state.partition, state.epoch, state.next_offset, state.state) == (0, 3, 2, b"two")
    assert state_rows(rows(3, [0])) == []


def test_a_state_raises_the_fence_though_no_row_came_of_the_records() -> None:
    (state,) = state_rows(with_states(rows(3, []), [(0, 3, 50, b"")]))
    assert decide({}, [state.extent], OnStale.DROP).fences[TP] == Fence(epoch=3, next_offset=50)
