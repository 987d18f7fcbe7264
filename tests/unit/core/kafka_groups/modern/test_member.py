"""The machine of one member, fed with heartbeats and with commands of its consumer stream."""

from __future__ import annotations

from typing import Any

import pytest

from assigner.core.kafka_groups.modern.member import Answer, ModernMember
from assigner.core.kafka_groups.modern.offsets import check_commit, check_fetch
from assigner.core.kafka_groups.modern.requests import Heartbeat
from assigner.model.commands import Ack, Commands, Release, Warm
from assigner.model.keys import TopicPartition

A, B, C, D = (TopicPartition("t", number) for number in range(4))
Tps = frozenset[TopicPartition]


def tps(*partitions: TopicPartition) -> Tps:
    return frozenset(partitions)


def poll(epoch: int, owned: Tps | None = None, **more: Any) -> Heartbeat:
    return Heartbeat(group="g", member_id="m", member_epoch=epoch, owned=owned, **more)


def full(epoch: int, owned: Tps) -> Heartbeat:
    return poll(epoch, owned, rebalance_timeout=300.0, names=("t",))


def assigned(*partitions: TopicPartition, epoch: int = 7, full: bool = False, generation: int = 3) -> Commands:
    return Commands(full=full, assigned=tuple((tp, epoch) for tp in partitions), generation=generation)


def release(*partitions: TopicPartition, handoff: str = "h", generation: int = 4) -> Commands:
    return Commands(releases=tuple(Release(tp, 7, handoff) for tp in partitions), generation=generation)


def call(member: ModernMember, request: Heartbeat) -> Answer | int:
    """One call: an answer, or the code of the refusal."""
    refused = member.heard(request)
    return refused.code if refused else member.answer(request)


def joined(*partitions: TopicPartition) -> ModernMember:
    """A member that was given these partitions, and said so."""
    member = ModernMember("m")
    member.topics = frozenset({"t"})
    member.commands(assigned(*partitions, full=True))
    answer = call(member, full(0, tps()))
    assert answer == Answer(3, tps(*partitions))
    assert call(member, poll(3, tps(*partitions))) == Answer(3)
    return member


# --- giving and taking away --------------------------------------------------------------------------------------


def test_a_newcomer_is_told_everything_under_its_first_epoch() -> None:
    joined(A, B)


def test_no_news_is_no_assignment() -> None:
    member = joined(A, B)

    assert not member.has_news
    assert call(member, poll(3)) == Answer(3)
    assert call(member, full(3, tps(A, B))) == Answer(3, tps(A, B)), "a full request is told all the same"


def test_the_epoch_rises_when_something_is_given() -> None:
    member = joined(A)
    member.commands(assigned(B))

    assert member.has_news
    assert call(member, poll(3)) == Answer(4, tps(A, B))


def test_partitions_of_topics_that_cannot_be_told_are_not() -> None:
    member = joined(A)
    member.commands(assigned(TopicPartition("without-id", 0)))

    assert not member.has_news


def test_taking_away_has_two_steps() -> None:
    member = joined(A, B)
    member.commands(release(B))
    assert member.due == []

    assert call(member, poll(3)) == Answer(3, tps(A)), "the epoch does not change"
    assert member.due == [], "it was told just now"
    assert member.commit_epoch(B, 3) == 7, "it commits before it lets go"

    member.heard(poll(3, tps(A)))
    assert member.due == [Ack(B, "h")]
    member.released(member.due)
    assert member.due == []
    assert member.commit_epoch(B, 3) is None


def test_the_ack_is_due_until_it_is_on_record() -> None:
    member = joined(A, B)
    member.commands(release(B))
    call(member, poll(3))
    member.heard(poll(3, tps(A)))

    call(member, poll(3))
    assert member.due == [Ack(B, "h")], "the store was away, and the client says it once only"


@pytest.mark.parametrize(
    "said",
    [
        pytest.param([poll(3)], id="it says nothing of what it has"),
        pytest.param([poll(3, tps(A, B))], id="it still has it"),
        pytest.param([poll(3, tps(B))], id="it has it, and lacks another"),
    ],
)
def test_who_does_not_say_so_has_not_let_go(said: list[Heartbeat]) -> None:
    member = joined(A, B)
    member.commands(release(B))
    call(member, poll(3))
    for request in said:
        member.heard(request)

    assert member.due == []


def test_owned_smaller_than_assigned_is_not_a_revocation() -> None:
    """A client that has not resolved the ids yet says first that it has nothing."""
    member = ModernMember("m")
    member.topics = frozenset({"t"})
    member.commands(assigned(A, B, full=True))
    call(member, full(0, tps()))
    assert call(member, poll(3, tps())) == Answer(3)
    assert member.due == []
    assert member.usable == tps(A, B)

    member.commands(release(B))
    assert member.due == [], "it said that it has nothing before it was asked to let go"
    assert call(member, poll(3, tps())) == Answer(3, tps(A))
    assert member.due == [], "that was in the call by which it is told"


def test_what_a_client_never_heard_of_is_let_go_at_once() -> None:
    member = joined(A)
    member.commands(assigned(B))
    member.commands(release(B))

    assert member.due == [Ack(B, "h")]
    assert not member.has_news


def test_what_was_let_go_before_it_was_asked_for_is_acked_when_it_is() -> None:
    """A topic that the member does not subscribe to any more is taken from the client at once; the Release follows."""
    member = joined(A, B)
    member.topics = frozenset()
    assert call(member, poll(3)) == Answer(3, tps())
    member.heard(poll(3, tps()))
    assert member.due == []

    member.commands(release(A))
    assert member.due == [Ack(A, "h")]


def test_a_cancelled_revocation_gives_the_partition_back_under_its_new_epoch() -> None:
    member = joined(A, B)
    member.commands(release(B))
    call(member, poll(3))
    member.commands(assigned(B, epoch=9))

    assert call(member, poll(3, tps(A))) == Answer(4, tps(A, B))
    assert member.due == []
    assert member.commit_epoch(B, 4) == 9


def test_what_was_lost_and_given_back_in_between_is_given_anew() -> None:
    member = joined(A, B)
    member.commands(Commands(unassigned=((B, 7),), generation=4))
    member.commands(assigned(B, epoch=9, generation=5))

    assert call(member, poll(3)) == Answer(5, tps(A, B))
    assert member.commit_epoch(B, 3) is None
    assert member.commit_epoch(B, 5) == 9


def test_what_is_taken_without_asking_is_told() -> None:
    member = joined(A, B)
    member.commands(Commands(unassigned=((B, 7),), generation=4))

    assert call(member, poll(3)) == Answer(3, tps(A))


def test_nothing_has_to_be_warmed() -> None:
    member = joined(A)

    assert member.commands(Commands(warms=(Warm(B, "h1"),), generation=4)) == [Ack(B, "h1")]


def test_a_new_stream_does_not_tell_the_client_anything_new() -> None:
    member = joined(A, B)
    member.commands(assigned(A, B, full=True))

    assert not member.has_news
    assert member.commit_epoch(A, 3) == 7


# --- epochs ------------------------------------------------------------------------------------------------------


def test_a_member_that_is_ahead_or_behind_is_fenced() -> None:
    member = joined(A)
    member.commands(assigned(B))
    call(member, poll(3))

    assert call(member, poll(5)) == 110, "ahead"
    assert call(member, poll(2, tps(A))) == 110, "too far behind"
    assert call(member, poll(3)) == 110, "behind, and it does not say what it has"
    assert call(member, poll(3, tps(A, D))) == 110, "behind, and it has what it was never given"


def test_a_lost_answer_is_made_good() -> None:
    member = joined(A)
    member.commands(assigned(B))
    assert call(member, poll(3)) == Answer(4, tps(A, B))

    assert call(member, full(3, tps(A))) == Answer(4, tps(A, B))
    assert call(member, poll(4, tps(A, B))) == Answer(4)


def test_a_member_that_joins_again_has_nothing_and_is_told_everything() -> None:
    member = joined(A, B)
    member.commands(release(B))
    call(member, poll(3))

    assert call(member, full(0, tps())) == Answer(4, tps(A))
    assert member.due == [Ack(B, "h")], "it dropped everything"


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    member = joined(A)
    member.commands(assigned(B))
    assert member.no_news() == Answer(3)

    assert call(member, poll(3)) == Answer(4, tps(A, B))


# --- resuming ----------------------------------------------------------------------------------------------------


def resumed(*partitions: TopicPartition) -> ModernMember:
    member = ModernMember("m", resumed=True)
    member.topics = frozenset({"t"})
    member.commands(assigned(*partitions, full=True))
    return member


def test_a_resumed_member_keeps_its_epoch_and_is_told_everything_under_it() -> None:
    member = resumed(A, B)

    assert call(member, poll(41)) == Answer(41, tps(A, B))
    assert call(member, poll(41)) == Answer(41)
    member.commands(assigned(C))
    assert call(member, poll(41)) == Answer(42, tps(A, B, C))


def test_a_commit_may_be_the_first_that_is_heard_of_a_resumed_member() -> None:
    member = resumed(A)

    assert check_commit(9, 40, member) == 0
    assert member.commit_epoch(A, 40) == 7
    assert call(member, poll(41)) == Answer(41, tps(A)), "an older commit came first"
    assert check_commit(9, 42, member) == 113, "its epoch is known now"


def test_a_resumed_member_is_asked_before_it_is_taken_to_have_let_go() -> None:
    member = resumed(A, B)
    member.commands(release(B))

    assert call(member, poll(41)) == Answer(41, tps(A))
    assert member.due == []
    member.heard(poll(41, tps(A)))
    assert member.due == [Ack(B, "h")]


def test_a_resumed_member_that_says_it_let_go_is_believed() -> None:
    """It was told so elsewhere; the answer to its ack was lost, so it says everything."""
    member = resumed(A, B)
    member.commands(release(B))
    member.heard(full(41, tps(A)))

    assert member.due == [Ack(B, "h")]


# --- offsets -----------------------------------------------------------------------------------------------------


def test_a_commit_is_accepted_from_the_epoch_on_at_which_the_partition_was_given() -> None:
    member = joined(A)
    member.commands(assigned(B))
    call(member, poll(3))

    assert member.commit_epoch(A, 3) == 7, "it crosses the answer that gave B"
    assert member.commit_epoch(A, 4) == 7
    assert member.commit_epoch(B, 4) == 7
    assert member.commit_epoch(B, 3) is None, "of an earlier life of this ownership"
    assert member.commit_epoch(A, 5) is None, "ahead"
    assert member.commit_epoch(C, 4) is None, "another's"


@pytest.mark.parametrize(
    ("version", "epoch", "known", "expected"),
    [(9, 3, True, 0), (10, 2, True, 0), (9, 4, True, 113), (8, 3, True, 35), (9, 3, False, 25)],
)
def test_what_a_commit_as_a_whole_is_answered_with(version: int, epoch: int, known: bool, expected: int) -> None:
    assert check_commit(version, epoch, joined(A) if known else None) == expected


@pytest.mark.parametrize(
    ("member_id", "epoch", "known", "expected"),
    [
        (None, -1, False, 0),
        (None, -1, True, 0),
        ("", -1, False, 0),
        ("m", 3, True, 0),
        ("m", 2, True, 113),
        ("m", 4, True, 113),
        ("m", 3, False, 25),
    ],
)
def test_who_may_fetch(member_id: str | None, epoch: int, known: bool, expected: int) -> None:
    assert check_fetch(member_id, epoch, joined(A) if known else None) == expected
