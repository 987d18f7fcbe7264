"""One registration at one instance: its stream, its renewals and its answers, until one of them fails.

A link knows nothing of other addresses and decides nothing about the session: it says how it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
from anyio.abc import TaskGroup

from assigner.aio.backoff import Backoff
from assigner.client.assignment_decoding import Assembly
from assigner.client.channel import Address, Dialer, Disconnected, Unavailable, close_channel
from assigner.client.rpc import ConsumerRpc, Identity
from assigner.client.runner import Runner
from assigner.clock import Clock
from assigner.core.client.messages import AckKind
from assigner.errors import AssignerError, Evicted, InvalidInput, LimitReached, NotRegistered, Superseded
from assigner.logs import get_logger
from assigner.model.commands import Ack

BATCH = 500
"""Answers in one call."""
LINGER = 0.003
"""Seconds an answer waits for others to go with it."""
MISSED_RENEWALS = 2
"""After so many in a row another instance is tried."""

_log = get_logger(__name__)


class Drained(msgspec.Struct, frozen=True):
    """The service closed the stream in good order: nothing is left to do here."""


class Broken(msgspec.Struct, frozen=True):
    """Contact was lost; the session may well live on."""

    reason: str


class RegistrationRejected(msgspec.Struct, frozen=True):
    """The service does not want this registration, or not any more."""

    error: AssignerError


End = Drained | Broken | RegistrationRejected


class Registration:
    def __init__(
        self,
        address: Address,
        who: Identity,
        dialer: Dialer,
        clock: Clock,
        work: Runner,
        timeout: float,
        first_message: float,
    ) -> None:
        """`timeout`: for a call; `first_message`: for the stream's first message."""
        self.address = address
        self.opened = False
        """The first message was there."""
        self.renewals = 0
        self._who = who
        self._dialer = dialer
        self._clock = clock
        self._work = work
        self._timeout = timeout
        self._first_message = first_message
        self._tasks: TaskGroup | None = None
        self._contact: ConsumerRpc | None = None
        self._end: End | None = None
        self._ttl = 0.0

    async def run(self, on_open: Callable[[], None]) -> End:
        channel = self._dialer.dial(self.address)
        self._contact = ConsumerRpc(channel, self._who, self._timeout)
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._listen, self._contact, on_open)
        finally:
            # After the group: closing in the tick of a cancel would turn it into an error.
            await close_channel(channel)
        return self._end or Broken("stopped")

    def spawn(self, task: Callable[[ConsumerRpc], Coroutine[Any, Any, None]]) -> None:
        """Run a task for as long as the link lasts."""
        if self._tasks is not None and self._contact is not None:
            self._tasks.start_soon(task, self._contact)

    @property
    def contact(self) -> ConsumerRpc | None:
        """For calls beside those of the link itself; None before the first message was there."""
        return self._contact if self.opened else None

    def finish(self, end: End) -> None:
        if self._end is None and self._tasks is not None:
            self._end = end
            self._tasks.cancel_scope.cancel()

    # --- the stream --------------------------------------------------------------------------------------------------

    async def _listen(self, contact: ConsumerRpc, on_open: Callable[[], None]) -> None:
        try:
            await self._follow(contact, on_open)
            self.finish(Drained() if self.opened else Broken("the stream ended before its first message"))
        except (Unavailable, InvalidInput, LimitReached) as error:
            # A malformed or oversized message says nothing about us, unless it is the answer to our registration.
            refused = not self.opened and isinstance(error, InvalidInput)
            self.finish(RegistrationRejected(error) if refused else Broken(str(error)))
        except AssignerError as error:
            self.finish(RegistrationRejected(error))

    async def _follow(self, contact: ConsumerRpc, on_open: Callable[[], None]) -> None:
        assembly = Assembly()
        async with aclosing(contact.register()) as stream:
            with anyio.move_on_after(self._first_message) as patience:
                async for message in stream:
                    # A burst is read without ever waiting; the renewals must have their turn in between.
                    await anyio.lowlevel.checkpoint()
                    commands = assembly.add(message)
                    if commands is None:
                        continue
                    self._work.heard(commands)
                    if not self.opened:
                        patience.deadline = float("inf")
                        self._open(commands.opening.ttl if commands.opening is not None else 0.0)
                        on_open()
                return
            raise Disconnected(f"no first message within {self._first_message:.1f} s")

    def _open(self, ttl: float) -> None:
        self.opened = True
        self._ttl = ttl
        self.spawn(self._renew)
        self.spawn(self._answer_ready)
        self.spawn(self._answer_released)

    # --- renewals ----------------------------------------------------------------------------------------------------

    async def _renew(self, contact: ConsumerRpc) -> None:
        missed = 0
        while True:
            sent_at = self._clock.now()
            try:
                ttl = await contact.renew(self._patience())
            except Disconnected as error:
                return self.finish(Broken(str(error)))
            except Unavailable as error:
                missed += 1
                _log.warning("session_renewal_failed", address=str(self.address), error=str(error), failures=missed)
                if missed >= MISSED_RENEWALS:
                    return self.finish(Broken(str(error)))
                await anyio.sleep(self._patience() / 4)
                continue
            except AssignerError as error:
                return self.finish(RegistrationRejected(error))
            missed = 0
            self.renewals += 1
            self._ttl = ttl
            self._work.renewed(sent_at, ttl)
            await anyio.sleep(max(0.0, ttl / 3 - (self._clock.now() - sent_at)))

    def _patience(self) -> float:
        """For one renewal: short enough that a third of the TTL leaves room for another instance."""
        return min(self._timeout, max(0.25, self._ttl / 12)) if self._ttl else self._timeout

    # --- answers -----------------------------------------------------------------------------------------------------

    async def _answer_ready(self, contact: ConsumerRpc) -> None:
        await self._answer(contact, AckKind.READY)

    async def _answer_released(self, contact: ConsumerRpc) -> None:
        await self._answer(contact, AckKind.RELEASED)

    async def _answer(self, contact: ConsumerRpc, kind: AckKind) -> None:
        pauses = Backoff(f"{self._who.session}/{kind.value}", first=0.05, most=2.0)
        state = self._work.state
        while True:
            await self._work.changes.until(lambda: bool(state.answers(kind, 1)))
            await anyio.sleep(LINGER)
            try:
                await self._send(contact, kind, state.answers(kind, BATCH))
            except Disconnected as error:
                return self.finish(Broken(str(error)))
            except Unavailable as error:
                _log.warning("ack_failed", kind=kind.value, error=str(error))
                await pauses.pause()
                continue
            except AssignerError as error:
                return self.finish(RegistrationRejected(error))
            pauses.reset()

    async def _send(self, contact: ConsumerRpc, kind: AckKind, answers: list[Ack]) -> None:
        if not answers:
            return
        call = contact.ready if kind is AckKind.READY else contact.released
        try:
            reasons = await call(answers)
        except (Unavailable, NotRegistered, Superseded, Evicted):
            raise
        except AssignerError as error:
            if len(answers) == 1:
                self._refused(kind, answers[0], str(error))
                return
            # One answer spoils the call; find it, so that it delays no other.
            middle = len(answers) // 2
            await self._send(contact, kind, answers[:middle])
            await self._send(contact, kind, answers[middle:])
            return
        self._work.acknowledged(kind, [one for one in answers if one.tp not in reasons], frozenset())
        for refused in [one for one in answers if one.tp in reasons]:
            if len(answers) == 1:
                self._refused(kind, refused, reasons[refused.tp])
            else:
                # Alone it gets a status, which tells a refusal for good from one that will pass.
                await self._send(contact, kind, [refused])

    def _refused(self, kind: AckKind, answer: Ack, reason: str) -> None:
        _log.warning("ack_rejected", kind=kind.value, partition=str(answer.tp), reason=reason)
        self._work.acknowledged(kind, [answer], frozenset({answer.tp}))
