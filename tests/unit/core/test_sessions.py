"""The rules of sessions, one by one: join, resume, takeover, who may act for whom, and when a session is over."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from assigner.api import Registration
from assigner.core import sessions
from assigner.core.group import GroupState
from assigner.core.sessions import RegistrationTerms
from assigner.errors import Evicted, FailedPrecondition, NotRegistered, PermissionDenied, SessionHeld, Superseded
from assigner.model.keys import Keys, TopicPartition
from assigner.model.names import session_digest
from assigner.model.records import (
    ANY_SESSION,
    Assignment,
    Consumer,
    Displaced,
    GroupOptions,
    HandoffMode,
    Status,
    Stored,
    TopicConfig,
    encode,
)
from assigner.store import NO_LEASE, Entry, PutEvent

KEYS = Keys("/r/", default_group="g", default_prefix="").group("g")
LEASE = 99
OVERLAP = GroupOptions()
EXCLUSIVE = GroupOptions(handoff_mode=HandoffMode.EXCLUSIVE)


def registration(**fields: Any) -> Registration:
    return Registration(**{"group": "g", "name": "c", "session": "s1", **fields})


def terms(session: str = "s1", *, now: int = 200, **fields: Any) -> RegistrationTerms:
    asked = registration(**{"session": session, **fields})
    return RegistrationTerms(registration=asked, session=session or "minted-1", instance="i2", ttl=30.0, now=now)


def on_record(session: str = "s1", lease: int = LEASE, **fields: Any) -> Stored[Consumer]:
    fields = {"registered_at": 100, "instance": "i1", **fields}
    record = Consumer(consumer_name="c", session=session, **fields)
    return Stored(record, KEYS.consumer("c"), 7, 5, lease)


# --- registering -------------------------------------------------------------------------------------------------


def test_a_consumer_joins_with_what_it_registered() -> None:
    asked = terms(capacity=2.0, rack="r", topics=("b", "a", "b"), address="host:1", renews=True, generation="blue")
    assert sessions.register(None, asked) == Consumer(
        consumer_name="c",
        status=Status.READY,
        registered_at=200,
        generation="blue",
        session="s1",
        capacity=2.0,
        rack="r",
        topics=("a", "b"),
        address="host:1",
        instance="i2",
        ttl=30.0,
        renews=True,
    )


def test_a_session_that_the_server_made_up_is_marked_as_such() -> None:
    joined = sessions.register(None, terms(""))
    assert (joined.session, joined.minted) == ("minted-1", True)
    assert not sessions.register(None, terms("s1")).minted


def test_a_resumed_session_keeps_its_age_and_moves_to_the_new_instance() -> None:
    resumed = sessions.register(on_record(rack="old"), terms(rack="new"))
    assert (resumed.registered_at, resumed.instance, resumed.rack) == (100, "i2", "new")


@pytest.mark.parametrize("status", list(Status))
def test_a_resumed_session_goes_on_draining_if_it_was(status: Status) -> None:
    assert sessions.register(on_record(status=status), terms()).status is status


def test_a_takeover_starts_anew_and_remembers_whom_it_displaced() -> None:
    taken = sessions.register(on_record("s0", status=Status.DRAINING), terms("s1"))
    assert (taken.status, taken.registered_at) == (Status.READY, 200)
    assert taken.displaced == (Displaced("s0", LEASE),)


def test_a_session_that_had_stepped_out_is_remembered_as_one_that_nobody_waits_for() -> None:
    taken = sessions.register(on_record("s0", away=True), terms("s1"))
    assert taken.displaced == (Displaced("s0", LEASE, closed=True),)
    assert not taken.away
    assert sessions.left_behind(on_record("s0", away=True), taken) == LEASE
    assert sessions.left_behind(on_record("s0"), taken) == NO_LEASE
    assert sessions.left_behind(on_record("s1", away=True), taken) == NO_LEASE
    assert sessions.left_behind(None, taken) == NO_LEASE


def test_a_session_that_comes_back_by_itself_is_not_away_any_more() -> None:
    assert not sessions.register(on_record(away=True), terms()).away


@pytest.mark.parametrize(
    ("current", "held"),
    [
        (None, False),
        (on_record("s1"), False),
        (on_record("s0"), True),
        (on_record("s0", away=True), False),
        (on_record("s0", evicted="was slow"), False),
        (on_record("s0", status=Status.DRAINING), True),
    ],
)
def test_a_name_is_held_by_a_session_that_has_not_stepped_out(current: Stored[Consumer] | None, held: bool) -> None:
    sessions.check_not_held(current, "s1", registration())
    if not held:
        sessions.check_not_held(current, "s1", registration(takeover=False))
        return
    with pytest.raises(SessionHeld, match="use another name") as refusal:
        sessions.check_not_held(current, "s1", registration(takeover=False))
    assert "s0" not in str(refusal.value)


def test_a_takeover_from_a_registration_without_a_lease_has_nobody_to_wait_for() -> None:
    assert sessions.register(on_record("s0", NO_LEASE), terms("s1")).displaced == ()


def test_takeovers_add_up_in_their_order() -> None:
    second = on_record("s1", displaced=(Displaced("s0", 98),))
    assert sessions.register(second, terms("s2")).displaced == (Displaced("s0", 98), Displaced("s1", LEASE))


def test_a_resumed_session_remembers_whom_it_displaced() -> None:
    before = on_record("s1", displaced=(Displaced("s0", 98),))
    assert sessions.register(before, terms("s1")).displaced == (Displaced("s0", 98),)


def test_no_session_is_displaced_by_itself() -> None:
    before = on_record("s2", displaced=(Displaced("s1", 98), Displaced("s0", 97)))
    assert sessions.register(before, terms("s1")).displaced == (Displaced("s0", 97), Displaced("s2", LEASE))


def test_a_takeover_does_not_inherit_an_eviction() -> None:
    sessions.check_may_register(on_record("s0", evicted="did not release"), "s1", "g", "")
    assert sessions.register(on_record("s0", evicted="did not release"), terms("s1")).evicted == ""


@pytest.mark.parametrize("session", ["s1", "s2"])
def test_anyone_may_resume_or_take_over(session: str) -> None:
    sessions.check_may_register(None, session, "g", "")
    sessions.check_may_register(on_record("s1"), session, "g", "")


def test_a_displaced_session_may_not_register_again() -> None:
    current = on_record("s1", address="host:1", displaced=(Displaced("s0", 98),))
    with pytest.raises(Superseded, match=f"at host:1.*'c' in group 'g'.*{session_digest('s1')}"):
        sessions.check_may_register(current, "s0", "g", "")


def test_an_evicted_session_may_not_register_again() -> None:
    with pytest.raises(Evicted, match="it did not release; register anew"):
        sessions.check_may_register(on_record("s1", evicted="did not release"), "s1", "g", "")


@pytest.mark.parametrize(
    ("current", "lease"),
    [
        (on_record("s1"), LEASE),
        (on_record("s1", status=Status.DRAINING), LEASE),
        (on_record("s0"), NO_LEASE),
        (on_record("s1", evicted="did not release"), NO_LEASE),
        (on_record("s1", NO_LEASE), NO_LEASE),
        (None, NO_LEASE),
    ],
    ids=["its own", "draining", "of another session", "evicted", "without a lease", "nobody registered"],
)
def test_only_a_session_on_record_resumes_its_lease(current: Stored[Consumer] | None, lease: int) -> None:
    assert sessions.lease_to_resume(current, "s1") == lease


@pytest.mark.parametrize(
    ("session", "renews", "keeps"), [("s1", True, True), ("s1", False, False), ("", True, False), ("", False, False)]
)
def test_exclusive_groups_take_only_clients_that_renew_a_session_of_their_own(
    session: str, renews: bool, keeps: bool
) -> None:
    asked = registration(session=session, renews=renews)
    assert sessions.keeps_a_session(asked) is keeps
    sessions.check_mode(OVERLAP, asked)
    if keeps:
        sessions.check_mode(EXCLUSIVE, asked)
    else:
        with pytest.raises(FailedPrecondition, match=r"'g' hands partitions over exclusively.*calls Renew"):
            sessions.check_mode(EXCLUSIVE, asked)


# --- acting for a session ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "minted", "may"),
    [("s1", False, True), ("s2", False, False), (ANY_SESSION, False, False), (ANY_SESSION, True, True)],
    ids=["its own", "another", "none named", "none named, of a client that names none"],
)
def test_a_call_acts_for_the_session_it_names(session: str, minted: bool, may: bool) -> None:
    assert sessions.may_act(on_record("s1", minted=minted).record, session) is may


def test_a_call_without_a_session_may_act_for_a_registration_that_knows_none() -> None:
    assert sessions.may_act(on_record(ANY_SESSION).record, ANY_SESSION)


def test_a_call_of_the_session_on_record_is_authorized() -> None:
    current = on_record("s1")
    assert sessions.authorize(current, "g", "c", "s1", "") is current


def test_an_evicted_session_is_still_itself() -> None:
    current = on_record("s1", evicted="did not release")
    assert sessions.authorize(current, "g", "c", "s1", "") is current


def test_a_call_of_a_displaced_session_names_the_newer_one() -> None:
    with pytest.raises(Superseded, match=session_digest("s1")):
        sessions.authorize(on_record("s1", displaced=(Displaced("s0", 98),)), "g", "c", "s0", "")


@pytest.mark.parametrize("current", [None, on_record("s1")], ids=["nobody registered", "another session did"])
def test_a_call_of_an_unknown_session_has_to_register_first(current: Stored[Consumer] | None) -> None:
    with pytest.raises(NotRegistered, match=f"with session {session_digest('s9')}; register first"):
        sessions.authorize(current, "g", "c", "s9", "")


def test_a_call_without_a_session_has_to_name_it_if_there_is_one() -> None:
    with pytest.raises(FailedPrecondition, match="name that session"):
        sessions.authorize(on_record("s1"), "g", "c", ANY_SESSION, "")
    with pytest.raises(NotRegistered, match="in group 'g'; register first"):
        sessions.authorize(None, "g", "c", ANY_SESSION, "")


def test_an_operator_acts_for_whatever_session_is_registered() -> None:
    current = on_record("s1")
    assert sessions.check_registered(current, "g", "c") is current
    with pytest.raises(NotRegistered, match="'c' is not registered in group 'g'"):
        sessions.check_registered(None, "g", "c")


def test_exclusive_groups_take_only_calls_that_name_a_session() -> None:
    sessions.check_call_mode(OVERLAP, "g", "c", ANY_SESSION)
    sessions.check_call_mode(EXCLUSIVE, "g", "c", "s1")
    with pytest.raises(FailedPrecondition, match="name the session of 'c'"):
        sessions.check_call_mode(EXCLUSIVE, "g", "c", ANY_SESSION)


def test_a_stream_is_only_for_the_session_on_record() -> None:
    sessions.check_on_record(None, "s1", "g")
    sessions.check_on_record(on_record("s1"), "s1", "g")
    with pytest.raises(Superseded):
        sessions.check_on_record(on_record("s2"), "s1", "g")


# --- identities --------------------------------------------------------------------------------------------------

OWN, ANOTHER, NOBODY = "acme/worker", "evil/worker", ""


def test_a_session_is_bound_to_the_identity_that_registers_it() -> None:
    assert sessions.register(None, terms(principal=OWN)).principal == OWN
    assert sessions.register(on_record("s0", principal=OWN), terms("s1", principal=OWN)).principal == OWN


@pytest.mark.parametrize("session", ["s1", "s2", ANY_SESSION])
@pytest.mark.parametrize("principal", [ANOTHER, NOBODY])
@pytest.mark.parametrize("record", [{}, {"minted": True}, {"evicted": "slow"}, {"status": Status.DRAINING}], ids=str)
def test_no_other_identity_registers_or_acts_for_a_session_whether_or_not_it_knows_it(
    record: dict[str, Any], principal: str, session: str
) -> None:
    current = on_record("s1", principal=OWN, **record)
    with pytest.raises(PermissionDenied, match="another identity"):
        sessions.check_may_register(current, session, "g", principal)
    with pytest.raises(PermissionDenied, match="another identity"):
        sessions.authorize(current, "g", "c", session, principal)


def test_a_denial_does_not_name_the_identity_or_the_session_of_the_other() -> None:
    with pytest.raises(PermissionDenied) as caught:
        sessions.authorize(on_record("the-session", principal=OWN), "g", "c", "s9", ANOTHER)
    assert OWN not in str(caught.value)
    assert "the-session" not in str(caught.value)


def test_the_identity_alone_is_not_enough_to_act_for_a_session() -> None:
    with pytest.raises(NotRegistered):
        sessions.authorize(on_record("s1", principal=OWN), "g", "c", "s2", OWN)


def test_the_identity_of_a_session_may_resume_it_and_may_take_over_its_name() -> None:
    for session in ("s1", "s2"):
        sessions.check_may_register(on_record("s1", principal=OWN), session, "g", OWN)


def test_a_session_from_before_identities_is_bound_when_it_resumes() -> None:
    before = on_record("s1")
    sessions.check_may_register(before, "s1", "g", OWN)
    assert sessions.authorize(before, "g", "c", "s1", OWN) is before
    assert sessions.register(before, terms("s1", principal=OWN)).principal == OWN


# --- leaving -----------------------------------------------------------------------------------------------------


def group(*consumers: Stored[Consumer], owner: str = "") -> GroupState:
    """Partition t-0 is `owner`'s, if there is one."""
    state = GroupState(KEYS)
    records: list[tuple[str, msgspec.Struct]] = [
        (KEYS.topic("t"), TopicConfig(topic="t", partition_count=1)),
        *((KEYS.consumer(one.record.consumer_name), one.record) for one in consumers),
    ]
    if owner:
        assignment = Assignment(topic="t", partition=0, owner=owner, session="s1", epoch=1)
        records.append((KEYS.assignment(TopicPartition("t", 0)), assignment))
    for number, (key, record) in enumerate(records, 1):
        state.apply(PutEvent(Entry(key, encode(record), number, number, 1)))
    return state


def other(**fields: Any) -> Stored[Consumer]:
    return Stored(Consumer(consumer_name="other", session="x", **fields), KEYS.consumer("other"), 8, 8, 1)


def test_draining_changes_nothing_but_the_status() -> None:
    before = on_record("s1", rack="r", displaced=(Displaced("s0", 98),)).record
    assert sessions.drain(before) == msgspec.structs.replace(before, status=Status.DRAINING)
    assert sessions.drain(sessions.drain(before)) == sessions.drain(before)


def test_a_leaving_consumer_waits_for_another_to_take_what_it_has() -> None:
    assert sessions.has_to_wait(group(on_record(), other(), owner="c"), "c")


@pytest.mark.parametrize(
    "state",
    [
        group(on_record(), other()),
        group(on_record(), owner="c"),
        group(on_record(), other(status=Status.DRAINING), owner="c"),
        group(on_record(), other(evicted="did not release"), owner="c"),
    ],
    ids=["it has nothing", "it is alone", "the other leaves too", "the other is evicted"],
)
def test_a_leaving_consumer_does_not_wait_in_vain(state: GroupState) -> None:
    assert not sessions.has_to_wait(state, "c")


def test_a_displaced_session_may_end_its_own_lease_and_no_other() -> None:
    current = on_record("s2", displaced=(Displaced("s0", 97), Displaced("s1", 98)))
    assert sessions.displaced_lease(current, "s1") == 98
    assert sessions.displaced_lease(current, "s2") == NO_LEASE
    assert sessions.displaced_lease(current, "s9") == NO_LEASE
    assert sessions.displaced_lease(current, ANY_SESSION) == NO_LEASE
    assert sessions.displaced_lease(None, "s1") == NO_LEASE


# --- the end of a session ----------------------------------------------------------------------------------------


def test_a_session_on_record_goes_on() -> None:
    assert sessions.ended(group(on_record("s1")), "c", "s1") is None


def test_a_draining_session_goes_on() -> None:
    assert sessions.ended(group(on_record("s1", status=Status.DRAINING)), "c", "s1") is None


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (group(), NotRegistered),
        (group(on_record("s2")), Superseded),
        (group(on_record("s2", evicted="did not release")), Superseded),
        (group(on_record("s1", evicted="did not release")), Evicted),
    ],
    ids=["not on record", "taken over", "taken over by one that was evicted", "evicted"],
)
def test_a_session_ends_with_its_registration(state: GroupState, error: type[Exception]) -> None:
    assert isinstance(sessions.ended(state, "c", "s1"), error)


def test_a_registration_that_can_not_be_read_ends_no_session() -> None:
    state = group()
    state.apply(PutEvent(Entry(KEYS.consumer("c"), b"{", 9, 9, 1)))
    assert sessions.ended(state, "c", "s1") is None
    assert not sessions.is_drained(state, "c")


def test_a_consumer_is_drained_once_it_has_nothing_to_hand_over() -> None:
    draining = on_record("s1", status=Status.DRAINING)
    assert sessions.is_drained(group(draining), "c")
    assert not sessions.is_drained(group(draining, owner="c"), "c")
    assert not sessions.is_drained(group(on_record("s1")), "c")
    assert not sessions.is_drained(group(), "c")
