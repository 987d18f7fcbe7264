"""Runs one registration at one instance: reads its stream, renews its session and sends acks, until one of them fails.

It knows one address, decides nothing about the session, and returns how the registration ended.
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
"""Acks in one call."""
LINGER = 0.003
"""Seconds that an ack waits for others to be sent with it."""
MISSED_RENEWALS = 2
"""Failed renewals in a row after which another instance is tried."""

_log = get_logger(__name__)


class Drained(msgspec.Struct, frozen=True):
    """The service ended the stream without an error: the consumer is drained."""


class Broken(msgspec.Struct, frozen=True):
    """The connection or the instance failed; the session may still be alive."""

    reason: str


class RegistrationRejected(msgspec.Struct, frozen=True):
    """The service refused the registration, or ended it with an error."""

    error: AssignerError


End = Drained | Broken | RegistrationRejected


class RegisteredStream:
    """One consumer's registration at one instance, with its stream."""

    def __init__(
        self,
        address: Address,
        identity: Identity,
        dialer: Dialer,
        clock: Clock,
        runner: Runner,
        timeout: float,
        first_message: float,
    ) -> None:
        """`timeout`: for a call; `first_message`: for the stream's first message."""
        self.address = address
        self.opened = False
        """Whether the first message has arrived."""
        self.renewals = 0
        self._identity = identity
        self._dialer = dialer
        self._clock = clock
        self._runner = runner
        self._timeout = timeout
        self._first_message = first_message
        self._tasks: TaskGroup | None = None
        self._rpc: ConsumerRpc | None = None
        self._end: End | None = None
        self._ttl = 0.0

    async def run(self, on_open: Callable[[], None]) -> End:
        channel = self._dialer.dial(self.address)
        self._rpc = ConsumerRpc(channel, self._identity, self._timeout)
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._serve_stream, self._rpc, on_open)
        finally:
            # After the group: closing in the tick of a cancel would turn it into an error.
            await close_channel(channel)
        return self._end or Broken("stopped")

    def spawn(self, task: Callable[[ConsumerRpc], Coroutine[Any, Any, None]]) -> None:
        """Run a task until the registration ends."""
        if self._tasks is not None and self._rpc is not None:
            self._tasks.start_soon(task, self._rpc)

    @property
    def rpc(self) -> ConsumerRpc | None:
        """The calls to this instance; None before the first message has arrived."""
        return self._rpc if self.opened else None

    def finish(self, end: End) -> None:
        """End the registration; the first call decides how it ended."""
        if self._end is None and self._tasks is not None:
            self._end = end
            self._tasks.cancel_scope.cancel()

    # --- the stream --------------------------------------------------------------------------------------------------

    async def _serve_stream(self, rpc: ConsumerRpc, on_open: Callable[[], None]) -> None:
        try:
            await self._read_stream(rpc, on_open)
            self.finish(Drained() if self.opened else Broken("the stream ended before its first message"))
        except (Unavailable, InvalidInput, LimitReached) as error:
            # A malformed or oversized message says nothing about the session. But before the first message,
            # InvalidInput is the service's status for the registration.
            refused = not self.opened and isinstance(error, InvalidInput)
            self.finish(RegistrationRejected(error) if refused else Broken(str(error)))
        except AssignerError as error:
            self.finish(RegistrationRejected(error))

    async def _read_stream(self, rpc: ConsumerRpc, on_open: Callable[[], None]) -> None:
        assembly = Assembly()
        async with aclosing(rpc.register()) as stream:
            with anyio.move_on_after(self._first_message) as timeout:
                async for message in stream:
                    # A burst is read without ever waiting; renewals must be sent in between.
                    await anyio.lowlevel.checkpoint()
                    commands = assembly.add(message)
                    if commands is None:
                        continue
                    self._runner.apply(commands)
                    if not self.opened:
                        timeout.deadline = float("inf")
                        self._open(commands.opening.ttl if commands.opening is not None else 0.0)
                        on_open()
                return
            raise Disconnected(f"no first message within {self._first_message:.1f} s")

    def _open(self, ttl: float) -> None:
        self.opened = True
        self._ttl = ttl
        self.spawn(self._renew)
        self.spawn(self._send_ready)
        self.spawn(self._send_released)

    # --- renewals ----------------------------------------------------------------------------------------------------

    async def _renew(self, rpc: ConsumerRpc) -> None:
        missed = 0
        while True:
            sent_at = self._clock.now()
            try:
                ttl = await rpc.renew(self._renewal_timeout())
            except Disconnected as error:
                return self.finish(Broken(str(error)))
            except Unavailable as error:
                missed += 1
                _log.warning("session_renewal_failed", address=str(self.address), error=str(error), failures=missed)
                if missed >= MISSED_RENEWALS:
                    return self.finish(Broken(str(error)))
                await anyio.sleep(self._renewal_timeout() / 4)
                continue
            except AssignerError as error:
                return self.finish(RegistrationRejected(error))
            missed = 0
            self.renewals += 1
            self._ttl = ttl
            self._runner.renewed(sent_at, ttl)
            await anyio.sleep(max(0.0, ttl / 3 - (self._clock.now() - sent_at)))

    def _renewal_timeout(self) -> float:
        """Compute the timeout of one renewal: short enough that a third of the TTL leaves room for another instance."""
        return min(self._timeout, max(0.25, self._ttl / 12)) if self._ttl else self._timeout

    # --- acks -----------------------------------------------------------------------------------------------------

    async def _send_ready(self, rpc: ConsumerRpc) -> None:
        await self._send_acks(rpc, AckKind.READY)

    async def _send_released(self, rpc: ConsumerRpc) -> None:
        await self._send_acks(rpc, AckKind.RELEASED)

    async def _send_acks(self, rpc: ConsumerRpc, kind: AckKind) -> None:
        pauses = Backoff(f"{self._identity.session}/{kind.value}", first=0.05, most=2.0)
        state = self._runner.state
        while True:
            await self._runner.changes.until(lambda: bool(state.pending_acks(kind, 1)))
            await anyio.sleep(LINGER)
            try:
                await self._send_batch(rpc, kind, state.pending_acks(kind, BATCH))
            except Disconnected as error:
                return self.finish(Broken(str(error)))
            except Unavailable as error:
                _log.warning("ack_failed", kind=kind.value, error=str(error))
                await pauses.pause()
                continue
            except AssignerError as error:
                return self.finish(RegistrationRejected(error))
            pauses.reset()

    async def _send_batch(self, rpc: ConsumerRpc, kind: AckKind, acks: list[Ack]) -> None:
        if not acks:
            return
        call = rpc.ready if kind is AckKind.READY else rpc.released
        try:
            reasons = await call(acks)
        except (Unavailable, NotRegistered, Superseded, Evicted):
            raise
        except AssignerError as error:
            if len(acks) == 1:
                self._rejected(kind, acks[0], str(error))
                return
            # One of the acks makes the whole call fail; find it, so that it delays no other.
            middle = len(acks) // 2
            await self._send_batch(rpc, kind, acks[:middle])
            await self._send_batch(rpc, kind, acks[middle:])
            return
        self._runner.acknowledged(kind, [one for one in acks if one.tp not in reasons], frozenset())
        for refused in [one for one in acks if one.tp in reasons]:
            if len(acks) == 1:
                self._rejected(kind, refused, reasons[refused.tp])
            else:
                # Sent alone it gets a status, which distinguishes a permanent refusal from a temporary one.
                await self._send_batch(rpc, kind, [refused])

    def _rejected(self, kind: AckKind, ack: Ack, reason: str) -> None:
        _log.warning("ack_rejected", kind=kind.value, partition=str(ack.tp), reason=reason)
        self._runner.acknowledged(kind, [ack], frozenset({ack.tp}))
