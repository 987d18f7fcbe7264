"""Looks up registrations, and says for whom a call may act.

A session belongs to who opened it, so a call acts for the session it names. One that names none acts for a client that
knows no sessions, whose registration the server gave one; never for anybody else, and never in an exclusive group,
where a single word for another ("I have released it", "my gates are closed") would give two owners to a partition.
"""

from __future__ import annotations

from assigner.errors import FailedPrecondition, NotRegistered
from assigner.members.streams import superseded
from assigner.model.names import session_digest
from assigner.model.records import ANY_SESSION, Consumer, HandoffMode, Stored, stored
from assigner.storage.mirror import GroupMirror
from assigner.store import Found, Store


async def look_up(store: Store, mirror: GroupMirror, name: str, *, fresh: bool) -> Stored[Consumer] | None:
    """The registration, from the mirror or straight from the store. An unreadable one is an error: it is not ours to
    overwrite."""
    if not fresh and name not in mirror.state.unreadable_consumers:
        return mirror.state.consumers.get(name)
    result = await store.get(mirror.state.keys.consumer(name))
    return stored(Consumer, result.entry) if isinstance(result, Found) else None


async def registered(store: Store, mirror: GroupMirror, name: str, session: str) -> Stored[Consumer]:
    """The registration that a call with this session acts for. A mirror that lags is not believed."""
    if session == ANY_SESSION and mirror.state.options.handoff_mode is HandoffMode.EXCLUSIVE:
        raise FailedPrecondition(
            f"group {mirror.group!r} hands partitions over exclusively, which needs clients with sessions; "
            f"name the session of {name!r} in the call"
        )
    found: Stored[Consumer] | None = None
    for fresh in (False, True):
        found = await look_up(store, mirror, name, fresh=fresh)
        if found and may_act(found.record, session):
            return found
    if found and session == ANY_SESSION:
        raise FailedPrecondition(
            f"consumer {name!r} of group {mirror.group!r} registered with a session of its own; name that session in "
            "the call"
        )
    check_not_displaced(found, session, mirror.group)
    raise NotRegistered(
        f"consumer {name!r} is not registered in group {mirror.group!r}"
        + (f" with session {session_digest(session)}" if session else "")
        + "; register first"
    )


async def anybody(store: Store, mirror: GroupMirror, name: str) -> Stored[Consumer]:
    """The registration of that name, for who may act for any: an operator."""
    for fresh in (False, True):
        found = await look_up(store, mirror, name, fresh=fresh)
        if found:
            return found
    raise NotRegistered(f"consumer {name!r} is not registered in group {mirror.group!r}")


def may_act(consumer: Consumer, session: str) -> bool:
    """Whether a call with this session is the consumer's own."""
    return consumer.session == session or (session == ANY_SESSION and consumer.minted)


def check_not_displaced(current: Stored[Consumer] | None, session: str, group: str) -> None:
    """A session that lost its name stays the loser, or two processes would take turns for ever."""
    if current and any(displaced.session == session for displaced in current.record.displaced):
        raise superseded(group, current.record)
