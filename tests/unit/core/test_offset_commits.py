"""Which commits count, and how those of many consumers are gathered into transactions."""

from __future__ import annotations

from collections import Counter
from typing import cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assigner.api import CommitRefusal, OffsetCommit, RefusedCommit
from assigner.core.offset_commits import Admitted, CommitQueue, Committer, FencedCommit, PendingCommit, admit
from assigner.errors import LimitReached
from assigner.model.keys import TopicPartition
from assigner.model.records import Assignment, Offset, Stored, decode, encode
from assigner.store import Absent, CreateRevisionIs, Entry, Found, Limits, Missing, ModRevisionIs

A = Committer("g", "a", "s")


def held(owner: str = "a", session: str = "s", epoch: int = 3) -> Stored[Assignment]:
    record = Assignment(topic="t", partition=0, owner=owner, session=session, epoch=epoch, topic_id="id")
    return Stored(record, "key", 17, 1)


def wish(partition: int = 0, offset: int = 5, epoch: int = 3, metadata: str = "") -> OffsetCommit:
    return OffsetCommit(TopicPartition("t", partition), epoch, offset, metadata=metadata)


def pending(partition: int = 0, offset: int = 5, metadata: str = "") -> PendingCommit:
    commit = wish(partition, offset, metadata=metadata)
    return PendingCommit(f"/offsets/{partition}", f"/assignments/{partition}", A, commit, Admitted(17, "id"), 99.9)


# --- which count -------------------------------------------------------------------------------------------------


def test_the_owner_is_admitted_under_its_epoch_by_the_record_as_it_is() -> None:
    assert admit(A, wish(), held(), exists=True) == Admitted(17, "id")


@pytest.mark.parametrize(
    "assignment", [held(owner="b"), held(session="another"), held(epoch=4), held(epoch=2), held("b", "s2", 9)]
)
def test_a_refusal_names_the_owner_and_its_epoch(assignment: Stored[Assignment]) -> None:
    record = assignment.record
    assert admit(A, wish(), assignment, exists=True) == RefusedCommit(
        wish().tp, CommitRefusal.FENCED, record.epoch, record.owner
    )


def test_who_names_no_session_is_nobody_who_has_one() -> None:
    nameless = Committer("g", "a")
    assert not isinstance(admit(nameless, wish(), held(session="minted"), exists=True), Admitted)
    assert isinstance(admit(nameless, wish(), held(session=""), exists=True), Admitted)


def test_an_owner_written_before_sessions_and_epochs_were_known_may_commit_as_it_is_known() -> None:
    old = held(session="", epoch=0)
    assert isinstance(admit(Committer("g", "a"), wish(epoch=0), old, exists=True), Admitted)


@pytest.mark.parametrize(
    ("bound_to", "who", "admitted"),
    [
        ("acme/a", "acme/a", True),
        ("acme/a", "evil/a", False),
        ("acme/a", "", False),
        (msgspec.UNSET, "acme/a", True),
        (msgspec.UNSET, "", True),
    ],
)
def test_rule_17_only_the_identity_that_the_owner_was_bound_to_commits_for_its_session(
    bound_to: str | msgspec.UnsetType, who: str, admitted: bool
) -> None:
    owner = held()
    bound = msgspec.structs.replace(owner, record=msgspec.structs.replace(owner.record, principal=bound_to))
    committer = msgspec.structs.replace(A, principal=who)
    assert isinstance(admit(committer, wish(), bound, exists=True), Admitted) is admitted


def test_an_assignment_of_an_unknown_identity_is_as_long_as_before_there_were_any() -> None:
    assert b"principal" not in encode(held().record)


def test_without_an_owner_it_depends_on_whether_there_is_such_a_partition() -> None:
    assert admit(A, wish(), None, exists=True) == RefusedCommit(wish().tp, CommitRefusal.FENCED)
    assert admit(A, wish(), None, exists=False) == RefusedCommit(wish().tp, CommitRefusal.UNKNOWN_PARTITION)


def test_what_is_written_is_the_offset_with_the_epoch_and_the_topics_identity() -> None:
    one = pending(metadata="m")
    expected = Offset(offset=5, epoch=3, metadata="m", committed_at=99, topic_id="id")
    assert decode(Offset, one.put.value)[0] == expected
    assert one.fence.revision == 17
    one.revision = 18
    assert one.fence.revision == 18


# --- the queue ---------------------------------------------------------------------------------------------------


def test_a_transaction_takes_as_many_as_the_store_allows_the_first_ones_first() -> None:
    queue = CommitQueue()
    commits = [pending(number) for number in range(10)]
    queue.add(commits)
    # Each commit has two compares.
    limits = Limits(operations=8)
    assert [queue.take(limits) for _ in range(4)] == [commits[:4], commits[4:8], commits[8:], []]


def test_a_transaction_holds_no_more_bytes_than_the_store_allows_and_at_least_one_commit() -> None:
    queue = CommitQueue()
    commits = [pending(number, metadata="x" * 600) for number in range(4)]
    queue.add(commits)
    assert queue.take(Limits(value_bytes=1_500)) == commits[:2]
    assert queue.take(Limits(value_bytes=10)) == commits[2:3]
    assert queue.take(Limits()) == commits[3:]


def test_commits_of_one_partition_are_in_flight_one_at_a_time_and_in_order() -> None:
    queue = CommitQueue()
    first, second, third, other = pending(0, 1), pending(0, 2), pending(0, 3), pending(1)
    queue.add([first, second])
    queue.add([other, third])
    assert queue.take(Limits()) == [first, other]
    assert queue.take(Limits()) == []
    queue.ended(first)
    assert queue.take(Limits()) == [second]
    queue.ended(other)
    queue.ended(second)
    assert queue.take(Limits()) == [third]
    queue.ended(third)
    assert len(queue) == 0


def test_one_that_was_taken_back_is_left_out_and_holds_up_nobody() -> None:
    queue = CommitQueue()
    gone, behind = pending(0, 1), pending(0, 2)
    queue.add([gone, behind])
    gone.withdrawn = True
    assert queue.take(Limits()) == [behind]
    queue.ended(behind)
    assert len(queue) == 0


def test_more_than_the_queue_holds_are_refused_together() -> None:
    queue = CommitQueue(most=3)
    queue.add([pending(0), pending(1)])
    with pytest.raises(LimitReached, match=r"2 offsets are waiting .* takes 3; commit again later"):
        queue.add([pending(2), pending(3)])
    assert len(queue) == 2
    queue.add([pending(2)])
    for one in queue.take(Limits()):
        queue.ended(one)
    queue.add([pending(number) for number in range(3)])
    assert len(queue) == 3


Steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 5), min_size=1, max_size=6)),
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("withdraw"), st.integers(0, 9)),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(steps=Steps)
def test_whatever_happens_each_commit_is_handed_out_once_in_the_order_of_its_partition(
    steps: list[tuple[str, object]],
) -> None:
    queue = CommitQueue()
    added: list[PendingCommit] = []
    taken: list[PendingCommit] = []
    in_flight: list[PendingCommit] = []

    def take(operations: int) -> list[PendingCommit]:
        batch = cast(list[PendingCommit], queue.take(Limits(operations=operations)))
        assert len({one.key for one in [*batch, *in_flight]}) == len(batch) + len(in_flight)
        taken.extend(batch)
        in_flight.extend(batch)
        return batch

    for what, argument in steps:
        match what, argument:
            case "add", list(partitions):
                fresh = [pending(partition, len(added) + number) for number, partition in enumerate(partitions)]
                added += fresh
                queue.add(fresh)
            case "take", int(operations):
                take(operations)
            case "end", int(number) if in_flight:
                queue.ended(in_flight.pop(number % len(in_flight)))
            case "withdraw", int(number) if added:
                added[number % len(added)].withdrawn = True
    while in_flight or take(128):
        queue.ended(in_flight.pop())
    assert len(queue) == 0
    assert set(Counter(map(id, taken)).values()) <= {1}
    assert {id(one) for one in added if not one.withdrawn} <= {id(one) for one in taken}
    for key in {one.key for one in taken}:
        offsets = [one.commit.offset for one in taken if one.key == key]
        assert offsets == sorted(offsets)


# --- commits that fences admit -----------------------------------------------------------------------------------

TERM, RECORD = CreateRevisionIs("/leader", 3), ModRevisionIs("/state", 8)


def fenced(partition: int = 0, group: str = "g") -> FencedCommit:
    fences = (TERM, RECORD) if group == "g" else (TERM, ModRevisionIs(f"/state/{group}", 8))
    return FencedCommit(f"/offsets/{group}/{partition}", wish(partition).tp, Offset(offset=5), fences, 0.0)


def at(created: int, modified: int) -> Found:
    return Found(99, Entry("key", b"", created, modified, 1))


def test_commits_with_the_same_fences_share_them_in_a_transaction() -> None:
    queue = CommitQueue()
    queue.add([fenced(number) for number in range(20)])
    assert len(queue.take(Limits(operations=10))) == 8

    queue = CommitQueue()
    queue.add([fenced(0, group=str(number)) for number in range(20)])
    assert len(queue.take(Limits(operations=10))) == 3


def test_a_fenced_commit_is_admitted_as_long_as_all_its_fences_hold() -> None:
    assert fenced().decide_again([at(3, 5), at(1, 8)]) is None
    refusal = RefusedCommit(wish().tp, CommitRefusal.FENCED)
    assert fenced().decide_again([at(4, 4), at(1, 8)]) == refusal
    assert fenced().decide_again([at(3, 5), at(1, 9)]) == refusal
    assert fenced().decide_again([Missing(99), at(1, 8)]) == refusal


def test_a_fence_may_be_that_there_is_no_record() -> None:
    commit = FencedCommit("/offsets/0", wish().tp, Offset(offset=5), (Absent("/state"),), 0.0)
    assert commit.decide_again([Missing(99)]) is None
    assert commit.decide_again([at(1, 8)]) is not None
