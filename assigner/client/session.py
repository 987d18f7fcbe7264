"""Keeps the consumer registered, at one address after another, until it leaves, is drained, or fails permanently.

A lost connection changes nothing for the handler: the next registration resumes the same session, and the gates stay
open as long as the lease holds. When the service has ended the session, the client drops its partitions at once; what
follows depends on why the session ended.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from enum import Enum

import anyio
import msgspec

from assigner.client.addresses import AddressTurns
from assigner.client.channel import Address, Dialer, Disconnected, Unavailable, close_channel
from assigner.client.registration import Broken, Drained, End, RegisteredStream, RegistrationRejected
from assigner.client.rpc import ConsumerRpc, Identity, load_messages
from assigner.client.runner import Runner
from assigner.clock import Clock
from assigner.errors import AssignerError, Evicted, NotRegistered, Superseded
from assigner.logs import get_logger
from assigner.model.keys import TopicPartition

DEREGISTER_TIMEOUT = 5.0
"""Seconds for deregistering on leaving. The lease expires by itself if no instance can be reached."""

_log = get_logger(__name__)


class Ending(str, Enum):
    """How a consumer ended without an error."""

    LEFT = "left"
    DRAINED = "drained"


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts and pauses of a session, in seconds. The defaults suit a TTL of 10 to 60 s."""

    call_timeout: float = 10.0
    """For one call, and for a registration's first message; for that one less while it could cost the lease."""
    keepalive: float = 5.0
    """Between the pings that detect an instance that hangs."""
    keepalive_timeout: float = 5.0
    first_pause: float = 0.1
    longest_pause: float = 5.0
    """Between tries to connect: doubled each time, with jitter."""
    close_timeout: float | None = 30.0
    """For handlers and work in progress when the consumer closes. None: no limit."""
    drain_timeout: float | None = 30.0
    """The same when it drains and there is no other consumer to hand over to."""


def new_session() -> str:
    return secrets.token_hex(16)


class Session:
    def __init__(
        self,
        addresses: Sequence[Address],
        identity: Identity,
        dialer: Dialer,
        clock: Clock,
        runner: Runner,
        timing: Timing,
        *,
        rejoin: bool,
    ) -> None:
        self.identity = identity
        self.registered = False
        """Whether any registration received its first message."""
        self.registration: RegisteredStream | None = None
        self.registrations = 0
        self.turns = AddressTurns(
            addresses,
            f"{identity.group}/{identity.name}/{identity.session}",
            identity.session,
            first_pause=timing.first_pause,
            longest_pause=timing.longest_pause,
        )
        self._dialer = dialer
        self._clock = clock
        self._runner = runner
        self._timing = timing
        self._rejoin = rejoin
        self._draining = False
        self._scope = anyio.CancelScope()
        self._ending = Ending.LEFT

    @property
    def is_connected(self) -> bool:
        return self.registration is not None and self.registration.opened

    async def run(self) -> Ending:
        """Stay registered until the consumer leaves or is drained. Raises an error that no retry can cure."""
        with self._scope:
            while True:
                end = await self._register()
                if isinstance(end, Drained):
                    return Ending.DRAINED
                await self._recover_from(end)
        return self._ending

    def stop(self, ending: Ending = Ending.LEFT) -> None:
        self._ending = ending
        self._scope.cancel()

    # --- one registration after another ------------------------------------------------------------------------------

    async def _register(self) -> End:
        address = self.turns.next()
        registration = RegisteredStream(
            address,
            self.identity,
            self._dialer,
            self._clock,
            self._runner,
            self._timing.call_timeout,
            self.turns.first_message_timeout(
                self._timing.call_timeout, self._runner.state.lease.deadline - self._clock.now()
            ),
        )
        self.registration = registration
        try:
            return await registration.run(self._opened)
        finally:
            self.registration = None
            self._runner.changes.notify()
            if registration.renewals:
                self.turns.succeeded()

    def _opened(self) -> None:
        registration = self.registration
        if registration is None:
            return
        _log.info(
            "session_opened", group=self.identity.group, consumer=self.identity.name, address=str(registration.address)
        )
        self.registered = True
        self.registrations += 1
        if self._draining:
            # The instance may differ from the one that was tried first.
            registration.spawn(self._ask_to_leave)
        self._runner.changes.notify()

    async def _recover_from(self, end: Broken | RegistrationRejected) -> None:
        match end:
            case Broken(reason=reason):
                self._note_failure(reason)
            case RegistrationRejected(error=Superseded() as error):
                raise error
            case RegistrationRejected(error=Evicted() as error):
                await self._join_anew(error)
            case RegistrationRejected(error=NotRegistered() as error) if self.registered:
                self._runner.session_lost(str(error))
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
                consumer=self.identity.name,
                address=str(self.turns.current),
                reason=reason,
                tries=self.turns.tries,
            )
        self._runner.changes.notify()

    async def _join_anew(self, error: Evicted) -> None:
        """Join with a new session after an eviction, once the handler is idle and the old session is deregistered."""
        self._runner.session_lost(f"evicted: {error}")
        self._note_failure(f"evicted: {error}")
        if not self._rejoin:
            raise error
        if await self._runner.wait_idle(self._timing.close_timeout):
            await self.deregister()
        self.identity = msgspec.structs.replace(self.identity, session=new_session())

    # --- beside that -------------------------------------------------------------------------------------------------

    async def report_load(self, loads: Mapping[TopicPartition, float], node: float | None) -> float:
        pause = 0.0
        for topics, of_node in load_messages(loads, node):
            pause = max(pause, await self.rpc().report_load(topics, of_node))
        return pause

    def rpc(self) -> ConsumerRpc:
        """Return the calls to the instance that serves the stream. Raises `Unavailable` while there is none."""
        rpc = self.registration.rpc if self.registration is not None else None
        if rpc is None:
            raise Unavailable("there is no contact to the service now; try again later")
        return rpc

    # --- leaving -----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        self._draining = True
        if self.registration is not None and self.registration.opened:
            self.registration.spawn(self._ask_to_leave)

    async def _ask_to_leave(self, rpc: ConsumerRpc) -> None:
        while True:
            try:
                waits = await rpc.deregister(gates_closed=False)
            except Disconnected:
                # The next registration asks again.
                return
            except Unavailable:
                await anyio.sleep(self._timing.first_pause)
                continue
            except AssignerError as error:
                _log.info("drain_skipped", error=str(error))
                waits = False
            break
        if not waits:
            self._runner.release_all("draining")
            await self._runner.wait_idle(self._timing.drain_timeout)
            self.stop(Ending.DRAINED)

    async def deregister(self) -> None:
        """Deregister, best effort, after every gate is shut, so that the next owners need not wait for the lease."""
        with anyio.move_on_after(DEREGISTER_TIMEOUT, shield=True):
            for address in self.turns.all_from_current():
                if await self._deregister_at(address):
                    return

    async def _deregister_at(self, address: Address) -> bool:
        channel = self._dialer.dial(address)
        try:
            rpc = ConsumerRpc(channel, self.identity, DEREGISTER_TIMEOUT / 2)
            await rpc.deregister(gates_closed=True)
        except Unavailable as error:
            _log.debug("deregistration_failed", address=str(address), error=str(error))
            return False
        except AssignerError as error:
            # The service does not know the session any more: there is nothing left to deregister.
            _log.debug("deregistration_skipped", error=str(error))
        finally:
            await close_channel(channel)
        return True
