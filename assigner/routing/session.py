"""Keeps a router registered, at one address after another, until it leaves or fails permanently.

A lost connection changes nothing for requests: the next registration resumes the same session, and the table stays in
use as long as the lease holds. When the service does not know the session any more, requests wait until the router is
registered again and has another table.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from assigner.client.addresses import AddressTurns
from assigner.client.channel import Address, Dialer, Unavailable, close_channel
from assigner.client.registration import Broken, RegistrationRejected
from assigner.client.session import DEREGISTER_TIMEOUT, Timing
from assigner.errors import AssignerError, NotRegistered, Superseded
from assigner.logs import get_logger
from assigner.routing.registration import Lapsed, RegisteredRouter, RouterEnd, RouterState
from assigner.routing.rpc import RouterIdentity, RouterRpc

_log = get_logger(__name__)


class RouterSession:
    def __init__(
        self, addresses: Sequence[Address], identity: RouterIdentity, dialer: Dialer, state: RouterState, timing: Timing
    ) -> None:
        self.identity = identity
        self.registration: RegisteredRouter | None = None
        self.registrations = 0
        self.turns = AddressTurns(
            addresses,
            f"{identity.group}/{identity.name}/{identity.session}",
            identity.session,
            first_pause=timing.first_pause,
            longest_pause=timing.longest_pause,
        )
        self._dialer = dialer
        self._state = state
        self._timing = timing
        self._scope = anyio.CancelScope()

    @property
    def is_connected(self) -> bool:
        return self.registration is not None and self.registration.opened

    @property
    def registered(self) -> bool:
        """Whether any registration received its first message."""
        return self.registrations > 0

    async def run(self) -> None:
        """Stay registered until `stop`. Raises an error that no retry can cure."""
        with self._scope:
            while True:
                await self._recover_from(await self._register())

    def stop(self) -> None:
        self._scope.cancel()

    # --- one registration after another ------------------------------------------------------------------------------

    async def _register(self) -> RouterEnd:
        address = self.turns.next()
        registration = self.registration = RegisteredRouter(
            address,
            self.identity,
            self._dialer,
            self._state,
            self._timing.call_timeout,
            self.turns.first_message_timeout(
                self._timing.call_timeout, self._state.permit.deadline - self._state.clock.now()
            ),
        )
        try:
            return await registration.run(self._opened)
        finally:
            self.registration = None
            self._state.changes.notify()
            if registration.renewals:
                self.turns.succeeded()

    def _opened(self) -> None:
        self.registrations += 1
        identity = self.identity
        _log.info("router_registered", group=identity.group, router=identity.name, address=str(self.turns.current))
        self._state.changes.notify()

    async def _recover_from(self, end: RouterEnd) -> None:
        match end:
            case Lapsed():
                # The instance is fine; so is any other one. Requests wait for the table, so there is no pause.
                self._note_failure("the lease was over for a while; another table is needed")
                return
            case Broken(reason=reason):
                self._note_failure(reason)
            case RegistrationRejected(error=Superseded() as error):
                raise error
            case RegistrationRejected(error=NotRegistered() as error) if self.registered:
                self._state.permit.end(self._state.clock.now())
                self._note_failure(f"session lost: {error}")
            case RegistrationRejected(error=error):
                if not self.registered:
                    raise error
                self._note_failure(f"refused: {error}")
        await self.turns.pause()

    def _note_failure(self, reason: str) -> None:
        if self.turns.failed(reason):
            event = "contact_lost" if self.registered else "contact_failed"
            _log.warning(
                event,
                group=self.identity.group,
                router=self.identity.name,
                address=str(self.turns.current),
                reason=reason,
                tries=self.turns.tries,
            )
        self._state.changes.notify()

    # --- leaving -----------------------------------------------------------------------------------------------------

    async def deregister(self) -> None:
        """Deregister, best effort, after nothing is in flight any more, so that no move waits for the lease to end."""
        with anyio.move_on_after(DEREGISTER_TIMEOUT, shield=True):
            for address in self.turns.all_from_current():
                if await self._deregister_at(address):
                    return

    async def _deregister_at(self, address: Address) -> bool:
        channel = self._dialer.dial(address)
        try:
            await RouterRpc(channel, self.identity, DEREGISTER_TIMEOUT / 2).deregister()
        except Unavailable as error:
            _log.debug("deregistration_failed", address=str(address), error=str(error))
            return False
        except AssignerError as error:
            # The service does not know the session any more: there is nothing left to deregister.
            _log.debug("deregistration_skipped", error=str(error))
        finally:
            await close_channel(channel)
        return True
