"""The index from a session to its registration says what the registrations say, whatever happened to them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from assigner.core.group import GroupState
from assigner.model.keys import Keys
from assigner.model.records import Consumer, Displaced, encode
from assigner.store import DeleteEvent, Entry, PutEvent

KEYS = Keys("/r/", default_group="g", default_prefix="").group("g")


def entry(name: str, value: bytes, revision: int) -> Entry:
    return Entry(KEYS.consumer(name), value, revision, revision, 1, 9)


def registration(name: str, session: str, revision: int, *, evicted: str = "", displaced: str = "") -> Entry:
    lost = (Displaced(displaced, 8),) if displaced else ()
    record = Consumer(consumer_name=name, session=session, evicted=evicted, displaced=lost)
    return entry(name, encode(record), revision)


def name_of(state: GroupState, session: str) -> str | None:
    found = state.consumer_of_session(session)
    return found.record.consumer_name if found else None


def test_a_session_is_found_under_its_name_until_it_loses_it() -> None:
    state = GroupState(KEYS)
    assert name_of(state, "s1") is None
    state.apply(PutEvent(registration("a", "s1", 1)))
    assert name_of(state, "s1") == "a"
    state.apply(PutEvent(registration("a", "s2", 2, displaced="s1")))
    assert (name_of(state, "s1"), name_of(state, "s2")) == (None, "a")
    state.apply(PutEvent(registration("a", "s2", 3, evicted="was slow")))
    assert name_of(state, "s2") is None
    state.apply(DeleteEvent(KEYS.consumer("a"), 4))
    state.apply(PutEvent(registration("b", "s2", 5)))
    assert name_of(state, "s2") == "b"


def test_no_session_is_nobodys_and_what_cant_be_read_is_nobody() -> None:
    state = GroupState(KEYS)
    state.apply(PutEvent(registration("a", "", 1)))
    assert name_of(state, "") is None
    state.apply(PutEvent(registration("b", "s1", 2)))
    state.apply(PutEvent(entry("b", b"?", 3)))
    assert name_of(state, "s1") is None


NAMES, SESSIONS = "abc", ["", "s1", "s2", "s3"]
puts = st.tuples(st.sampled_from(NAMES), st.sampled_from([*SESSIONS, None, "?"]), st.booleans())


@given(st.lists(st.lists(puts, max_size=6), max_size=4))
def test_it_follows_every_course_of_events_and_listings(course: list[list[tuple[str, str | None, bool]]]) -> None:
    state, revision = GroupState(KEYS), 0
    stored: dict[str, Entry] = {}
    for number, events in enumerate(course):
        for name, session, evicted in events:
            revision += 1
            if session is None:
                stored.pop(name, None)
            elif session == "?":
                stored[name] = entry(name, b"?", revision)
            else:
                stored[name] = registration(name, session, revision, evicted="was slow" if evicted else "")
            if number % 2:
                # Seen one by one; else by the next listing.
                kept = stored.get(name)
                state.apply(PutEvent(kept) if kept else DeleteEvent(KEYS.consumer(name), revision))
        for event in state.replace(stored.values()):
            state.apply(event)
        for session in SESSIONS:
            found = name_of(state, session)
            could = {name for name, held in state.consumers.items() if held.record.session == session and session}
            assert found in could if found else all(state.consumers[name].record.evicted for name in could)
    for name in NAMES:
        state.apply(DeleteEvent(KEYS.consumer(name), revision + 1))
    assert not state._names
