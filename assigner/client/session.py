"""Keeps the consumer registered: from address to address, from session to session, until there is a reason to stop.

A lost connection changes nothing for the handler: the next link resumes the same session, and the gates stay open as
long as the lease holds. A session that the service ended is given up at once; what follows depends on why it ended.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from enum import Enum

import anyio
import msgspec

from assigner.aio.backoff import Backoff
from assigner.client.channel import Address, Dialer, Disconnected, Unavailable, close_channel
from assigner.client.registration import Broken, Drained, End, Registration, RegistrationRejected
from assigner.client.rpc import ConsumerRpc, Identity, load_messages
from assigner.client.runner import Runner
from assigner.clock import Clock
from assigner.errors import AssignerError, Evicted, NotRegistered, Superseded
from assigner.logs import get_logger
from assigner.model.keys import TopicPartition
from assigner.proto.kafka_assigner import v1

FAREWELL_SECONDS = 5.0
"""For saying goodbye. The lease ends by itself if nobody is there to hear it."""
SHORTEST_PATIENCE = 0.25
"""Seconds that any registration has: less would only make work for instances that are busy."""

_log = get_logger(__name__)


class Ending(str, Enum):
    """How a consumer's time ended, errors aside."""

    LEFT = "left"
    DRAINED = "drained"


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. The defaults suit a TTL of 10 to 60 s."""

    call_timeout: float = 10.0
    """For one call, and for a registration's first message; for that one less while it could cost the lease."""
    keepalive: float = 5.0
    """Between the pings that tell a hung instance from a quiet one."""
    keepalive_timeout: float = 5.0
    first_pause: float = 0.1
    longest_pause: float = 5.0
    """Between tries to connect: doubled each time, with jitter."""
    close_timeout: float | None = 30.0
    """For handlers and work under way when the consumer closes. None: as long as they take."""
    drain_timeout: float | None = 30.0
    """The same when it drains and nobody is there to hand over to."""


def new_session() -> str:
    return secrets.token_hex(16)


class Session:
    def __init__(
        self,
        addresses: Sequence[Address],
        who: Identity,
        dialer: Dialer,
        clock: Clock,
        work: Runner,
        timing: Timing,
        *,
        rejoin: bool,
    ) -> None:
        self.who = who
        self.registered = False
        """Whether there ever was a first message."""
        self.link: Registration | None = None
        self.links = 0
        self.last_failure = ""
        self.failed_tries = 0
        """How often contact was lost or not made."""
        self._tries = 0
        """Of them in a row."""
        self._tried = addresses[0]
        self._addresses = addresses
        self._dialer = dialer
        self._clock = clock
        self._work = work
        self._timing = timing
        self._rejoin = rejoin
        self._draining = False
        self._scope = anyio.CancelScope()
        self._ending = Ending.LEFT
        self._pauses = Backoff(
            f"{who.group}/{who.name}/{who.session}", first=timing.first_pause, most=timing.longest_pause
        )
        # Each session starts somewhere else, so that consumers spread over the instances.
        self._turn = int.from_bytes(who.session.encode(), "big") % len(addresses)
        self._untried = len(addresses)

    @property
    def is_connected(self) -> bool:
        return self.link is not None and self.link.opened

    async def run(self) -> Ending:
        """Returns when the consumer left or was drained. Raises why it can't go on."""
        with self._scope:
            while True:
                end = await self._link_up()
                if isinstance(end, Drained):
                    return Ending.DRAINED
                await self._carry_on_after(end)
        return self._ending

    def stop(self, ending: Ending = Ending.LEFT) -> None:
        self._ending = ending
        self._scope.cancel()

    # --- one link after another ------------------------------------------------------------------------------------

    async def _link_up(self) -> End:
        address = self._tried = self._addresses[self._turn]
        self._turn = (self._turn + 1) % len(self._addresses)
        link = Registration(
            address,
            self.who,
            self._dialer,
            self._clock,
            self._work,
            self._timing.call_timeout,
            self._patience(),
        )
        self.link = link
        try:
            return await link.run(self._opened)
        finally:
            self.link = None
            self._work.changes.notify()
            if link.renewals:
                self._tries = 0
                self._pauses.reset()
                self._untried = len(self._addresses)

    def _patience(self) -> float:
        """For a stream's first message. While the lease holds, an instance that hangs must not use up what is left of
        it: each address that was not tried since gets its share, and so does the renewal that comes after."""
        most = self._timing.call_timeout
        left = self._work.state.lease.deadline - self._clock.now()
        if left <= 0:
            return most
        return min(most, max(SHORTEST_PATIENCE, left / (max(self._untried, 1) + 1)))

    def _opened(self) -> None:
        link = self.link
        if link is None:
            return
        _log.info("session_opened", group=self.who.group, consumer=self.who.name, address=str(link.address))
        self.registered = True
        self.links += 1
        if self._draining:
            # The instance may be another one than the one that was asked first.
            link.spawn(self._ask_to_leave)
        self._work.changes.notify()

    async def _carry_on_after(self, end: Broken | RegistrationRejected) -> None:
        match end:
            case Broken(reason=reason):
                self._note(reason)
            case RegistrationRejected(error=Superseded() as error):
                raise error
            case RegistrationRejected(error=Evicted() as error):
                await self._start_over(error)
            case RegistrationRejected(error=NotRegistered() as error) if self.registered:
                self._work.session_lost(str(error))
                self._note(f"session lost: {error}")
            case RegistrationRejected(error=error):
                if not self.registered:
                    raise error
                self._note(f"refused: {error}")
        await self._pause()

    def _note(self, reason: str) -> None:
        self.last_failure = f"{self._tried}: {reason}"
        self.failed_tries += 1
        self._tries += 1
        if self._tries & (self._tries - 1) == 0:
            # The 1st, 2nd, 4th, 8th ... in a row: an outage of an hour is a handful of lines.
            event = "contact_lost" if self.registered else "contact_failed"
            _log.warning(
                event,
                group=self.who.group,
                consumer=self.who.name,
                address=str(self._tried),
                reason=reason,
                tries=self._tries,
            )
        self._work.changes.notify()

    async def _pause(self) -> None:
        self._untried -= 1
        if self._untried > 0:
            # An address that was not tried yet may be a live one: what counts now is the lease.
            await anyio.sleep(self._timing.first_pause / 10)
        else:
            await self._pauses.pause()

    async def _start_over(self, error: Evicted) -> None:
        """Give the old session up in good order, then join anew."""
        self._work.session_lost(f"evicted: {error}")
        self._note(f"evicted: {error}")
        if not self._rejoin:
            raise error
        if await self._work.at_rest(self._timing.close_timeout):
            await self.farewell()
        self.who = msgspec.structs.replace(self.who, session=new_session())

    # --- beside that -------------------------------------------------------------------------------------------------

    async def report_load(self, loads: Mapping[TopicPartition, float], node: float | None) -> float:
        pause = 0.0
        for topics, of_node in load_messages(loads, node):
            pause = max(pause, await self.contact().report_load(topics, of_node))
        return pause

    def contact(self) -> ConsumerRpc:
        """For calls beside those that keep the consumer registered. Raises `Unavailable` while there is none."""
        contact = self.link.contact if self.link is not None else None
        if contact is None:
            raise Unavailable("there is no contact to the service now; try again later")
        return contact

    # --- leaving -----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        self._draining = True
        if self.link is not None and self.link.opened:
            self.link.spawn(self._ask_to_leave)

    async def _ask_to_leave(self, contact: ConsumerRpc) -> None:
        while True:
            try:
                action = await contact.deregister(gates_closed=False)
            except Disconnected:
                # The next link asks again.
                return
            except Unavailable:
                await anyio.sleep(self._timing.first_pause)
                continue
            except AssignerError as error:
                _log.info("drain_skipped", error=str(error))
                action = v1.DeregisterAction.SHUTDOWN_NOW
            break
        if action != v1.DeregisterAction.WAIT_FOR_DRAIN:
            self._work.let_go("draining")
            await self._work.at_rest(self._timing.drain_timeout)
            self.stop(Ending.DRAINED)

    async def farewell(self) -> None:
        """Report that every gate is shut, so that nobody has to wait for the lease to end. Best effort."""
        with anyio.move_on_after(FAREWELL_SECONDS, shield=True):
            for turn in range(len(self._addresses)):
                address = self._addresses[(self._turn - 1 + turn) % len(self._addresses)]
                if await self._say_goodbye(address):
                    return

    async def _say_goodbye(self, address: Address) -> bool:
        channel = self._dialer.dial(address)
        try:
            contact = ConsumerRpc(channel, self.who, FAREWELL_SECONDS / 2)
            await contact.deregister(gates_closed=True)
        except Unavailable as error:
            _log.debug("deregistration_failed", address=str(address), error=str(error))
            return False
        except AssignerError as error:
            # The service does not know the session any more, which is what was wanted.
            _log.debug("deregistration_skipped", error=str(error))
        finally:
            await close_channel(channel)
        return True
