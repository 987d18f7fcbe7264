"""Keeps a router registered, at one address after another, until it leaves or fails permanently.

A lost connection changes nothing for requests: the next registration resumes the same session, and the table stays in
use as long as the lease holds. When the service does not know the session any more, requests wait until the router is
registered again and has another table.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from assigner.aio.backoff import Backoff
from assigner.client.channel import Address, Dialer, Unavailable, close_channel
from assigner.client.registration import Broken, RegistrationRejected
from assigner.client.session import DEREGISTER_TIMEOUT, SHORTEST_TIMEOUT, Timing
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
        self.last_failure = ""
        self.failed_tries = 0
        """How often a connection failed or was lost."""
        self._tries = 0
        """Failed tries in a row."""
        self._address = addresses[0]
        self._addresses = addresses
        self._dialer = dialer
        self._state = state
        self._timing = timing
        self._scope = anyio.CancelScope()
        self._pauses = Backoff(
            f"{identity.group}/{identity.name}/{identity.session}", first=timing.first_pause, most=timing.longest_pause
        )
        # Each session starts somewhere else, so that routers spread over the instances.
        self._turn = int.from_bytes(identity.session.encode(), "big") % len(addresses)
        self._untried = len(addresses)

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
        address = self._address = self._addresses[self._turn]
        self._turn = (self._turn + 1) % len(self._addresses)
        registration = self.registration = RegisteredRouter(
            address,
            self.identity,
            self._dialer,
            self._state,
            self._timing.call_timeout,
            self._first_message_timeout(),
        )
        try:
            return await registration.run(self._opened)
        finally:
            self.registration = None
            self._state.changes.notify()
            if registration.renewals:
                self._tries = 0
                self._pauses.reset()
                self._untried = len(self._addresses)

    def _first_message_timeout(self) -> float:
        """Seconds for a stream's first message. While the lease holds, an instance that hangs must not use up the rest
        of it: every untried address gets an equal part, and so does the renewal that follows."""
        most = self._timing.call_timeout
        left = self._state.permit.deadline - self._state.clock.now()
        if left <= 0:
            return most
        return min(most, max(SHORTEST_TIMEOUT, left / (max(self._untried, 1) + 1)))

    def _opened(self) -> None:
        self.registrations += 1
        identity = self.identity
        _log.info("router_registered", group=identity.group, router=identity.name, address=str(self._address))
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
        await self._pause()

    def _note_failure(self, reason: str) -> None:
        self.last_failure = f"{self._address}: {reason}"
        self.failed_tries += 1
        self._tries += 1
        if self._tries & (self._tries - 1) == 0:
            # The 1st, 2nd, 4th, 8th ... in a row: an outage of an hour is a handful of lines.
            event = "contact_lost" if self.registered else "contact_failed"
            _log.warning(
                event,
                group=self.identity.group,
                router=self.identity.name,
                address=str(self._address),
                reason=reason,
                tries=self._tries,
            )
        self._state.changes.notify()

    async def _pause(self) -> None:
        self._untried -= 1
        if self._untried > 0:
            # An untried address may be alive, and the lease is running out: do not pause.
            await anyio.sleep(self._timing.first_pause / 10)
        else:
            await self._pauses.pause()

    # --- leaving -----------------------------------------------------------------------------------------------------

    async def deregister(self) -> None:
        """Deregister, best effort, after nothing is in flight any more, so that no move waits for the lease to end."""
        with anyio.move_on_after(DEREGISTER_TIMEOUT, shield=True):
            for turn in range(len(self._addresses)):
                address = self._addresses[(self._turn - 1 + turn) % len(self._addresses)]
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
