"""Switch off rules about sessions and leases: who is registered, who is alive, and whose lease counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from assigner.api import Registration
from assigner.backends.election.instance_lease import Hold, InstanceLease
from assigner.core import sessions
from assigner.core.liveness import SessionLiveness, SessionState
from assigner.core.routers import sessions as router_sessions
from assigner.members.registration import MemberService
from assigner.members.streams import ConsumerStream
from assigner.model.records import GroupOptions
from assigner.storage.mirror import GroupMirror
from assigner.store import NO_LEASE, Absent, Compare, Put, Renewed
from tests.chaos.ablation.mutations import Patch


def registrations_do_not_look_for_their_group(patch: Patch) -> None:
    original = MemberService._enter

    async def changed(self: MemberService, mirror: GroupMirror, registration: Registration, entered: Compare) -> Any:
        return await original(self, mirror, registration, Absent("nothing is ever put here"))

    patch.setattr(MemberService, "_enter", changed)


def the_server_names_sessions(patch: Patch) -> None:
    original = MemberService._enter

    async def changed(self: MemberService, mirror: GroupMirror, registration: Registration, entered: Compare) -> Any:
        return await original(self, mirror, msgspec.structs.replace(registration, session=""), entered)

    patch.setattr(MemberService, "_enter", changed)


def any_session_will_do(patch: Patch) -> None:
    patch.setattr(sessions, "may_act", lambda consumer, session: True)


def sessions_are_not_bound_to_identities(patch: Patch) -> None:
    patch.setattr(sessions, "may_use", lambda consumer, principal: True)


def calls_do_not_look_at_identities(patch: Patch) -> None:
    original = sessions.authorize

    def changed(current: Any, group: str, name: str, session: str, principal: str) -> Any:
        return original(current, group, name, session, current.record.principal if current else principal)

    async def unchecked(*_: object) -> None:
        """Let every identity through."""

    patch.setattr(sessions, "authorize", changed)
    patch.setattr("assigner.members.callers.check_principal", unchecked)


def routers_are_not_bound_to_identities(patch: Patch) -> None:
    patch.setattr(router_sessions, "may_use", lambda router, principal: True)


def any_session_takes_the_stream(patch: Patch) -> None:
    patch.setattr(sessions, "check_on_record", lambda current, session, group: None)


def exclusive_takes_clients_without_a_session(patch: Patch) -> None:
    original = sessions.check_mode

    def changed(options: GroupOptions, registration: Registration) -> None:
        original(options, msgspec.structs.replace(registration, session="any"))

    patch.setattr(sessions, "check_mode", changed)


def exclusive_takes_everybody(patch: Patch) -> None:
    patch.setattr(sessions, "check_mode", lambda options, registration: None)


def renew_is_answered_without_asking(patch: Patch) -> None:
    async def changed(self: MemberService, group: str, name: str, session: str, *, principal: str = "") -> float:
        return self._leases.ttl

    patch.setattr(MemberService, "renew", changed)


def an_open_stream_renews(patch: Patch) -> None:
    original = MemberService.register

    async def changed(self: MemberService, registration: Registration, heard: Callable[[], float]) -> ConsumerStream:
        return await original(self, msgspec.structs.replace(registration, renews=False), self._clock.now)

    patch.setattr(MemberService, "register", changed)


def draining_drops_the_lease(patch: Patch) -> None:
    def changed(key: str, value: bytes, lease: int = NO_LEASE) -> Put:
        return Put(key, value, NO_LEASE if b'"Draining"' in value else lease)

    patch.setattr("assigner.storage.update.Put", changed)


def leaving_revokes_at_once(patch: Patch) -> None:
    original = MemberService.deregister

    async def changed(self: MemberService, group: str, name: str, session: str, **how: Any) -> bool:
        return await original(self, group, name, session, **{**how, "gates_closed": True})

    patch.setattr(MemberService, "deregister", changed)


def owners_are_names(patch: Patch) -> None:
    original = SessionLiveness.session_state

    def changed(self: SessionLiveness, name: str, session: str, now: float) -> SessionState:
        return SessionState.ALIVE if name in self._state.consumers else original(self, name, session, now)

    patch.setattr(SessionLiveness, "session_state", changed)


def the_absent_are_dead_at_once(patch: Patch) -> None:
    patch.setattr(SessionLiveness, "grace_period_ends", property(lambda self: self._term_started))


def the_absent_are_never_dead(patch: Patch) -> None:
    patch.setattr(SessionLiveness, "grace_period_ends", property(lambda self: float("inf")))


def exclusive_does_not_wait_for_the_lease(patch: Patch) -> None:
    patch.setattr(SessionLiveness, "_lease_is_over", lambda self, name, session, now: True)


def balance_waits_for_nobody(patch: Patch) -> None:
    patch.setattr(SessionLiveness, "after_an_outage", lambda self, now: False)


def leases_are_trusted_for_ever(patch: Patch) -> None:
    patch.setattr(Hold, "held", lambda self: self.reason is None)
    patch.setattr(Hold, "left", lambda self: float("inf"))


def a_lease_that_is_gone_counts_as_renewed(patch: Patch) -> None:
    original = InstanceLease._renew_once

    async def changed(self: InstanceLease, hold: Hold) -> bool:
        answer = await self._store.keep_alive(hold.lease)
        if isinstance(answer, Renewed):
            return await original(self, hold)
        hold.renewed(self._clock.now(), hold.ttl)
        return True

    patch.setattr(InstanceLease, "_renew_once", changed)
