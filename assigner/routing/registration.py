"""Runs one registration of a router at one instance: reads its stream, renews it, sends acks, until one of them fails.

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
from assigner.aio.wakeup import Wakeup
from assigner.client.channel import Address, Dialer, Disconnected, Unavailable, close_channel
from assigner.client.registration import BATCH, LINGER, MISSED_RENEWALS, Broken, RegistrationRejected
from assigner.clock import Clock
from assigner.core.routing.permit import RoutingPermit
from assigner.core.routing.table import RoutingTable
from assigner.errors import AssignerError, InvalidInput, LimitReached
from assigner.logs import get_logger
from assigner.model.keys import TopicPartition
from assigner.model.routes import FreezeAck, TableChanges
from assigner.routing.cutovers import CutoverTasks
from assigner.routing.route_decoding import decode
from assigner.routing.rpc import RouterIdentity, RouterRpc

_log = get_logger(__name__)


class Lapsed(msgspec.Struct, frozen=True):
    """The registration is renewed, but moves may have gone on without this router: it needs another whole table."""


RouterEnd = Broken | RegistrationRejected | Lapsed


class RouterState(msgspec.Struct, frozen=True):
    """What outlives a registration."""

    table: RoutingTable
    permit: RoutingPermit
    cutovers: CutoverTasks
    changes: Wakeup
    clock: Clock
    publish: Callable[[TableChanges], None]
    """Called after each part of an update."""


class RegisteredRouter:
    """One router's registration at one instance, with its stream."""

    def __init__(
        self,
        address: Address,
        identity: RouterIdentity,
        dialer: Dialer,
        state: RouterState,
        timeout: float,
        first_message: float,
    ) -> None:
        """`timeout`: for a call, and for an instance that lags behind; `first_message`: for the stream's first
        message."""
        self.address = address
        self.opened = False
        """Whether the first message has arrived."""
        self.renewals = 0
        self._identity = identity
        self._dialer = dialer
        self._state = state
        self._timeout = timeout
        self._first_message = first_message
        self._tasks: TaskGroup | None = None
        self._rpc: RouterRpc | None = None
        self._end: RouterEnd | None = None
        self._has_table = False
        self._ttl = 0.0

    async def run(self, on_open: Callable[[], None]) -> RouterEnd:
        channel = self._dialer.dial(self.address)
        self._rpc = RouterRpc(channel, self._identity, self._timeout)
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._serve_stream, self._rpc, on_open)
        finally:
            # After the group: closing in the tick of a cancel would turn it into an error.
            await close_channel(channel)
        return self._end or Broken("stopped")

    def _spawn(self, task: Callable[[RouterRpc], Coroutine[Any, Any, None]]) -> None:
        if self._tasks is not None and self._rpc is not None:
            self._tasks.start_soon(task, self._rpc)

    def _finish(self, end: RouterEnd) -> None:
        """End the registration; the first call decides how it ended."""
        if self._end is None and self._tasks is not None:
            self._end = end
            self._tasks.cancel_scope.cancel()

    # --- the stream --------------------------------------------------------------------------------------------------

    async def _serve_stream(self, rpc: RouterRpc, on_open: Callable[[], None]) -> None:
        try:
            await self._read_stream(rpc, on_open)
            self._finish(Broken("the service ended the stream"))
        except (Unavailable, InvalidInput, LimitReached) as error:
            # A malformed or oversized message says nothing about the session. But before the first message,
            # InvalidInput is the service's status for the registration.
            refused = not self.opened and isinstance(error, InvalidInput)
            self._finish(RegistrationRejected(error) if refused else Broken(str(error)))
        except AssignerError as error:
            self._finish(RegistrationRejected(error))

    async def _read_stream(self, rpc: RouterRpc, on_open: Callable[[], None]) -> None:
        state = self._state
        state.table.begin_stream()
        state.permit.registering(state.clock.now())
        async with aclosing(rpc.register()) as stream:
            with anyio.move_on_after(self._first_message) as timeout:
                async for message in stream:
                    if not self.opened:
                        timeout.deadline = float("inf")
                        self._open(message.ttl_ms / 1000)
                        on_open()
                    for changes in decode(message):
                        # A burst is read without ever waiting; requests and renewals must be sent in between.
                        await anyio.lowlevel.checkpoint()
                        await self._apply(changes)
                return
            raise Disconnected(f"no first message within {self._first_message:.1f} s")

    async def _apply(self, changes: TableChanges) -> None:
        state, was_behind = self._state, self._state.table.is_behind
        applied = state.table.apply(changes)
        await state.cutovers.perform(applied.rows)
        if applied.completed:
            self._has_table = True
            state.permit.completed()
        elif state.table.is_behind and not was_behind:
            self._spawn(self._watch_lag)
        state.publish(changes)
        state.changes.notify()

    def _open(self, ttl: float) -> None:
        self.opened = True
        self._ttl = ttl
        self._spawn(self._renew)
        self._spawn(self._send_acks)

    async def _watch_lag(self, rpc: RouterRpc) -> None:
        await anyio.sleep(self._timeout)
        if self._state.table.is_behind:
            self._finish(Broken("the instance shows an older state than another one did"))

    # --- renewals ----------------------------------------------------------------------------------------------------

    async def _renew(self, rpc: RouterRpc) -> None:
        missed, state = 0, self._state
        while True:
            sent_at = state.clock.now()
            try:
                ttl = await rpc.renew(self._renewal_timeout())
            except Disconnected as error:
                return self._finish(Broken(str(error)))
            except Unavailable as error:
                missed += 1
                _log.warning("session_renewal_failed", address=str(self.address), error=str(error), failures=missed)
                if missed >= MISSED_RENEWALS:
                    return self._finish(Broken(str(error)))
                await anyio.sleep(self._renewal_timeout() / 4)
                continue
            except AssignerError as error:
                return self._finish(RegistrationRejected(error))
            missed = 0
            self._renewed(sent_at, ttl)
            await anyio.sleep(max(0.0, ttl / 3 - (state.clock.now() - sent_at)))

    def _renewed(self, sent_at: float, ttl: float) -> None:
        state = self._state
        self.renewals += 1
        self._ttl = ttl
        state.permit.renewed(sent_at, ttl, state.clock.now())
        # Acks may have been deleted by others.
        state.cutovers.reassert()
        if self._has_table and state.permit.needs_table:
            self._finish(Lapsed())
        state.publish(TableChanges())
        state.changes.notify()

    def _renewal_timeout(self) -> float:
        """Compute the timeout of one renewal: short enough that a third of the TTL leaves room for another instance."""
        return min(self._timeout, max(0.25, self._ttl / 12)) if self._ttl else self._timeout

    # --- acks --------------------------------------------------------------------------------------------------------

    async def _send_acks(self, rpc: RouterRpc) -> None:
        state, core = self._state, self._state.cutovers.core
        pauses = Backoff(f"{self._identity.session}/acks", first=0.05, most=2.0)
        while True:
            await state.changes.until(lambda: core.unanswered > 0)
            await anyio.sleep(LINGER)
            acks = core.pending_acks(BATCH)
            try:
                await self._send_batch(rpc, acks)
            except Disconnected as error:
                return self._finish(Broken(str(error)))
            except Unavailable as error:
                _log.warning("ack_failed", kind="freeze", error=str(error))
                await pauses.pause()
                continue
            except AssignerError as error:
                return self._finish(RegistrationRejected(error))
            pauses.reset()

    async def _send_batch(self, rpc: RouterRpc, acks: list[FreezeAck]) -> None:
        if not acks:
            return
        try:
            reasons = await rpc.acknowledge(acks)
        except InvalidInput as error:
            if len(acks) == 1:
                self._answered(acks, {acks[0].tp: str(error)})
                return
            # One of the acks makes the whole call fail; find it, so that it delays no other.
            middle = len(acks) // 2
            await self._send_batch(rpc, acks[:middle])
            await self._send_batch(rpc, acks[middle:])
            return
        self._answered(acks, reasons)

    def _answered(self, acks: list[FreezeAck], reasons: dict[TopicPartition, str]) -> None:
        for tp, reason in reasons.items():
            _log.warning("ack_rejected", kind="freeze", partition=str(tp), reason=reason)
        self._state.cutovers.acknowledged(acks, frozenset(reasons))
