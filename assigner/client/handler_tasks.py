"""Runs the handler's calls as tasks: one at a time per partition, those of different partitions concurrently.

A partition never has two calls at a time, because the state never asks for it. How many run at once is limited by kind,
so that slow warms delay no release and slow releases delay no assignment. A call that waits for a free task costs none
itself: ten thousand partitions may be assigned in one message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import assert_never

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from assigner.client.gate import PartitionGate
from assigner.client.handler import Handler
from assigner.core.client.messages import (
    Action,
    Call,
    CallAssigned,
    CallDiscard,
    CallNoStandby,
    CallRelease,
    CallRevoked,
    CallStandby,
    CallWarm,
    Cancel,
    Done,
    Failed,
    Outcome,
    Pause,
    Start,
    Stopped,
)
from assigner.logs import get_logger
from assigner.model.commands import Warm
from assigner.model.keys import TopicPartition

MAX_REASON = 500
"""Characters of a failure that are reported to the service."""

MAX_FAILED_AT = 100
"""Failure locations that are remembered; beyond this, tracebacks are logged again."""

_log = get_logger(__name__)

_METHODS: dict[type[Call], str] = {
    CallAssigned: "assigned",
    CallWarm: "warm",
    CallRelease: "release",
    CallRevoked: "revoked",
    CallDiscard: "discard",
    CallStandby: "standby_added",
    CallNoStandby: "standby_removed",
}


def _log_fields(call: Call) -> dict[str, str]:
    """Name the handler's method and the partition, as fields of a log line."""
    about = getattr(call, "owned", None) or getattr(call, "tp", None) or getattr(call, "order", None)
    partition = about.tp if isinstance(about, Warm) else about
    return {"call": _METHODS.get(type(call), ""), "partition": str(partition)}


class _Job:
    __slots__ = ("call", "scope", "tp")

    def __init__(self, tp: TopicPartition, call: Call) -> None:
        self.tp = tp
        self.call = call
        self.scope: anyio.CancelScope | None = None
        """Set when the call begins."""


class _WorkerPool:
    """Up to `size` tasks that run queued jobs, one after another. The queue holds at most one job per partition."""

    def __init__(self, tasks: TaskGroup, size: int, do: Callable[[_Job], Awaitable[None]]) -> None:
        self._tasks = tasks
        self._idle = size
        self._do = do
        self._jobs: deque[_Job] = deque()

    def add(self, job: _Job) -> None:
        self._jobs.append(job)
        if self._idle:
            self._idle -= 1
            self._tasks.start_soon(self._run_jobs)

    async def _run_jobs(self) -> None:
        while self._jobs:
            await self._do(self._jobs.popleft())
            # A handler that never awaits must not starve the event loop.
            await anyio.lowlevel.checkpoint()
        self._idle += 1


class HandlerTasks:
    def __init__(
        self,
        tasks: TaskGroup,
        handler: Handler,
        *,
        calls: int,
        warms: int,
        gate: Callable[[TopicPartition], PartitionGate],
        finished: Callable[[TopicPartition, Outcome], None],
    ) -> None:
        """`finished` is called with the outcome of each call."""
        self._tasks = tasks
        self._handler = handler
        self._assigned_pool = _WorkerPool(tasks, calls, self._run)
        self._release_pool = _WorkerPool(tasks, calls, self._run)
        self._warm_pool = _WorkerPool(tasks, warms, self._run)
        self._standby_pool = _WorkerPool(tasks, calls, self._run)
        self._gate = gate
        self._finished = finished
        self._jobs: dict[TopicPartition, _Job] = {}
        self._failed_at: set[tuple[object, ...]] = set()
        """Locations where handlers failed; each is logged with its traceback once."""

    def perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Start(tp=tp, call=call):
                    job = self._jobs[tp] = _Job(tp, call)
                    self._begin(job)
                case Cancel(tp=tp):
                    self._cancel(self._jobs[tp])
                case _:
                    assert_never(action)

    def _begin(self, job: _Job) -> None:
        match job.call:
            case CallAssigned():
                self._assigned_pool.add(job)
            case CallWarm():
                self._warm_pool.add(job)
            case CallRelease() | CallRevoked() | CallDiscard():
                self._release_pool.add(job)
            case CallStandby() | CallNoStandby():
                self._standby_pool.add(job)
            case Pause():
                self._tasks.start_soon(self._run, job)
            case _:
                assert_never(job.call)

    def _cancel(self, job: _Job) -> None:
        if job.scope is not None:
            job.scope.cancel()
        else:
            # It had not begun; the task that takes it from the queue will skip it.
            self._end(job, Stopped(begun=False))

    def _end(self, job: _Job, outcome: Outcome) -> None:
        del self._jobs[job.tp]
        self._finished(job.tp, outcome)

    # --- inside a task ---------------------------------------------------------------------------------------------

    async def _run(self, job: _Job) -> None:
        if self._jobs.get(job.tp) is not job:
            return
        outcome: Outcome = Stopped()
        with anyio.CancelScope() as job.scope:
            outcome = await self._outcome(job.call, job.scope)
        if isinstance(job.call, CallRelease) and self._gate(job.tp).inside:
            # In a task of its own: work that never ends blocks its own partition only.
            self._tasks.start_soon(self._end_when_drained, job, outcome)
        else:
            self._end(job, outcome)

    async def _end_when_drained(self, job: _Job, outcome: Outcome) -> None:
        await self._gate(job.tp).drained()
        self._end(job, outcome)

    async def _outcome(self, call: Call, scope: anyio.CancelScope) -> Outcome:
        try:
            await self._invoke(call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if scope.cancel_called or (task is not None and task.cancelling()):
                raise
            # The handler awaited a task that something else cancelled: a failure of the handler, not our cancellation.
            _log.warning("handler_failed", **_log_fields(call), reason="cancelled from elsewhere")
            return Failed("a task that the handler waited for was cancelled")
        except Exception as error:  # noqa: BLE001  (any error of a handler concerns its partition only)
            reason = f"{type(error).__name__}: {error}"[:MAX_REASON]
            _log.error("handler_failed", **_log_fields(call), reason=reason, exc_info=self._unless_logged(call, error))
            return Failed(reason)
        return Done()

    def _unless_logged(self, call: Call, error: Exception) -> Exception | None:
        """Return the error, for its traceback, unless the same call failed at the same place before."""
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        where = (type(call), type(error), last and last.tb_frame.f_code, last and last.tb_lineno)
        if where in self._failed_at:
            return None
        if len(self._failed_at) >= MAX_FAILED_AT:
            self._failed_at.clear()
        self._failed_at.add(where)
        return error

    async def _invoke(self, call: Call) -> None:
        match call:
            case CallAssigned(owned=owned):
                await self._handler.assigned(owned)
            case CallWarm(order=order):
                await self._handler.warm(order.tp, order)
            case CallRelease(owned=owned, order=released):
                await self._handler.release(owned, released)
            case CallRevoked(owned=owned, reason=reason):
                await self._handler.revoked(owned, reason)
            case CallDiscard(tp=tp):
                await self._handler.discard(tp)
            case CallStandby(tp=tp):
                await self._handler.standby_added(tp)
            case CallNoStandby(tp=tp):
                await self._handler.standby_removed(tp)
            case Pause(seconds=seconds):
                await anyio.sleep(seconds)
            case _:
                assert_never(call)
