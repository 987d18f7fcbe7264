"""Passes every event to the consumer's state and performs the actions that the state returns.

A task watches the lease, but no gate depends on it: gates are shut by the clock. The task only notifies the handler.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import anyio
from anyio.abc import TaskGroup

from assigner.aio.wakeup import Wakeup
from assigner.client.gate import PartitionGate
from assigner.client.handler import Handler
from assigner.client.handler_tasks import HandlerTasks
from assigner.client.request_gates import RequestGates
from assigner.clock import Clock
from assigner.core.client.messages import AckKind, Action, Outcome
from assigner.core.client.state import ClientState
from assigner.logs import get_logger
from assigner.model.commands import Ack, Commands
from assigner.model.keys import TopicPartition

_LONGEST_SLEEP = 1.0
"""Seconds. A sleep does not count suspension as the clock does, so the lease is checked at least this often."""

STALE_LOG_INTERVAL = 10.0
"""Seconds between two log lines about stale grants."""

_log = get_logger(__name__)


class Runner:
    def __init__(self, handler: Handler, clock: Clock, *, handler_concurrency: int, warm_concurrency: int) -> None:
        self.state = ClientState()
        self.changes = Wakeup()
        self._clock = clock
        self._handler = handler
        self._concurrency = (handler_concurrency, warm_concurrency)
        self._handler_tasks: HandlerTasks | None = None
        self._gates: dict[TopicPartition, PartitionGate] = {}
        self.requests = RequestGates(self.state, clock, self.gate)
        self._unlogged_stale = 0
        self._log_stale_from = -math.inf

    def begin(self, tasks: TaskGroup) -> None:
        """Run handlers, and watch the lease, as tasks of this group."""
        calls, warms = self._concurrency
        self._handler_tasks = HandlerTasks(
            tasks,
            self._handler,
            calls=calls,
            warms=warms,
            gate=self.gate,
            finished=self._finished,
        )
        tasks.start_soon(self._watch_lease)

    def gate(self, tp: TopicPartition) -> PartitionGate:
        gate = self._gates.get(tp)
        if gate is None:
            # One gate per partition, even if two threads create it at once: two gates would count their own work only.
            gate = self._gates.setdefault(tp, PartitionGate(self.state.gate(tp), self._clock, self.changes))
        return gate

    def work_in_progress(self) -> int:
        return sum(gate.inside for gate in list(self._gates.values()))

    # --- events ----------------------------------------------------------------------------------------------------

    def apply(self, commands: Commands) -> None:
        incarnation, stale = self.state.incarnation, self.state.counts.stale
        actions = self.state.apply(commands)
        if incarnation not in ("", self.state.incarnation):
            _log.warning(
                "incarnation_changed",
                incarnation=self.state.incarnation,
                previous=incarnation,
            )
        if self.state.counts.stale > stale:
            self._log_stale(self.state.counts.stale - stale)
        self._perform(actions)

    def _log_stale(self, count: int) -> None:
        """Log the last stale grant and how many there were, at most once an interval."""
        self._unlogged_stale += count
        last, now = self.state.last_stale, self._clock.now()
        if last is None or now < self._log_stale_from:
            return
        _log.warning(
            "stale_grant_ignored",
            partition=str(last.tp),
            epoch=last.epoch,
            highest_epoch=last.known,
            grants=self._unlogged_stale,
        )
        self._unlogged_stale, self._log_stale_from = 0, now + STALE_LOG_INTERVAL

    def renewed(self, sent_at: float, ttl: float) -> None:
        self._perform(self.state.renewed(sent_at, ttl))

    def session_lost(self, reason: str) -> None:
        self._perform(self.state.session_lost(reason))

    def release_all(self, cause: str) -> None:
        self._perform(self.state.release_all(cause))

    def leave(self, reason: str) -> None:
        self._perform(self.state.leave(reason))

    def acknowledged(self, kind: AckKind, sent: Iterable[Ack], refused: frozenset[TopicPartition]) -> None:
        self._perform(self.state.acknowledged(kind, sent, refused))

    def _finished(self, tp: TopicPartition, outcome: Outcome) -> None:
        self._perform(self.state.finished(tp, outcome))

    def _perform(self, actions: list[Action]) -> None:
        if self._handler_tasks is not None:
            self._handler_tasks.perform(actions)
        self.requests.changed()
        self.changes.notify()

    # --- waiting ---------------------------------------------------------------------------------------------------

    async def wait_idle(self, seconds: float | None) -> bool:
        """Wait until the handler owns nothing and no work is in progress; False if that takes too long."""
        with anyio.move_on_after(seconds):
            await self.changes.until(self._is_idle)
            return True
        return False

    def _is_idle(self) -> bool:
        return self.state.is_idle() and not self.work_in_progress()

    async def _watch_lease(self) -> None:
        while True:
            await self.changes.until(lambda: self.state.live)
            left = self.state.lease.deadline - self._clock.now()
            if left > 0:
                await anyio.sleep(min(left, _LONGEST_SLEEP))
                continue
            _log.warning("session_lease_expired")
            self._perform(self.state.lease_lost())
