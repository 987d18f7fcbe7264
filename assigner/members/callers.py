"""Looks up the registration that a call acts for, in the mirror first, and in the store before it is refused.

`assigner.core.sessions` decides which consumer a call may act for. Refusals are never based on the mirror alone,
because it may lag behind what the caller was sent by another instance.
"""

from __future__ import annotations

from assigner.core import sessions
from assigner.model.records import Consumer, Stored, stored
from assigner.storage.mirror import GroupMirror
from assigner.store import Found, Store


async def look_up(store: Store, mirror: GroupMirror, name: str, *, fresh: bool) -> Stored[Consumer] | None:
    """Look up a registration in the mirror, or in the store if `fresh`. Raises `UnreadableRecord`: a registration that
    can't be read may not be overwritten."""
    if not fresh and name not in mirror.state.unreadable_consumers:
        return mirror.state.consumers.get(name)
    result = await store.get(mirror.state.keys.consumer(name))
    return stored(Consumer, result.entry) if isinstance(result, Found) else None


async def authorized(store: Store, mirror: GroupMirror, name: str, session: str, principal: str) -> Stored[Consumer]:
    """Return the registration that a call of this identity with this session acts for. Raises as `sessions.authorize`
    does."""
    await check_principal(store, mirror, name, principal)
    sessions.check_call_mode(mirror.state.options, mirror.group, name, session)
    found = await look_up(store, mirror, name, fresh=False)
    if found and sessions.may_act(found.record, session) and sessions.may_use(found.record, principal):
        return found
    return sessions.authorize(await look_up(store, mirror, name, fresh=True), mirror.group, name, session, principal)


async def check_principal(store: Store, mirror: GroupMirror, name: str, principal: str) -> None:
    """Raise `PermissionDenied` if the name is registered by another identity, as far as it can be read."""
    found = mirror.state.consumers.get(name)
    if found and not sessions.may_use(found.record, principal):
        sessions.check_principal(await look_up(store, mirror, name, fresh=True), mirror.group, principal)


async def registered(store: Store, mirror: GroupMirror, name: str) -> Stored[Consumer]:
    """Return the registration of that name, of any session, for an operator. Raises `NotRegistered`."""
    found = await look_up(store, mirror, name, fresh=False)
    return found or sessions.check_registered(await look_up(store, mirror, name, fresh=True), mirror.group, name)
