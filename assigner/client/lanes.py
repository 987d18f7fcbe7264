"""Runs the handler's calls: one lane per partition, many lanes side by side.

A lane never has two calls at a time, because the state never asks for it. How many run at once is limited by kind,
so that slow warms delay no release and slow releases delay no assignment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import assert_never

import anyio
from anyio.abc import TaskGroup

from assigner.client.handler import Handler
from assigner.core.client_calls import (
    Action,
    Call,
    CallAssigned,
    CallDiscard,
    CallRelease,
    CallRevoked,
    CallWarm,
    Cancel,
    Done,
    Failed,
    Outcome,
    Pause,
    Start,
    Stopped,
)
from assigner.keys import TopicPartition
from assigner.logs import get_logger

MAX_REASON = 500
"""Characters of a failure that are reported to the service."""

_log = get_logger(__name__)


class Lanes:
    def __init__(
        self,
        tasks: TaskGroup,
        handler: Handler,
        *,
        calls: int,
        warms: int,
        drained: Callable[[TopicPartition], Awaitable[None]],
        finished: Callable[[TopicPartition, Outcome], None],
    ) -> None:
        """`drained` waits for a partition's work under way, `finished` hears how each call ended."""
        self._tasks = tasks
        self._handler = handler
        self._taking, self._giving = anyio.CapacityLimiter(calls), anyio.CapacityLimiter(calls)
        self._warming = anyio.CapacityLimiter(warms)
        self._drained = drained
        self._finished = finished
        self._scopes: dict[TopicPartition, anyio.CancelScope] = {}

    def take(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Start(tp=tp, call=call):
                    # Made here, so that a cancel that comes before the task's first step finds it.
                    scope = self._scopes[tp] = anyio.CancelScope()
                    self._tasks.start_soon(self._run, tp, call, scope)
                case Cancel(tp=tp):
                    self._scopes[tp].cancel()
                case _:
                    assert_never(action)

    async def _run(self, tp: TopicPartition, call: Call, scope: anyio.CancelScope) -> None:
        outcome: Outcome = Stopped()
        with scope:
            outcome = await self._outcome(tp, call, scope)
        del self._scopes[tp]
        self._finished(tp, outcome)

    async def _outcome(self, tp: TopicPartition, call: Call, scope: anyio.CancelScope) -> Outcome:
        outcome: Outcome = Done()
        try:
            await self._perform(call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if scope.cancel_called or (task is not None and task.cancelling()):
                raise
            # The handler awaited something that others cancelled: its failure, not our end.
            outcome = Failed("a task that the handler waited for was cancelled")
            _log.warning("handler failed", call=type(call).__name__, partition=str(tp), reason=outcome.reason)
        except Exception as error:  # noqa: BLE001  (whatever a handler raises, its lane goes on)
            outcome = Failed(f"{type(error).__name__}: {error}"[:MAX_REASON])
            _log.exception("handler failed", call=type(call).__name__, partition=str(tp))
        if isinstance(call, CallRelease):
            # Outside the limit: work that never ends delays its own partition only.
            await self._drained(tp)
        return outcome

    async def _perform(self, call: Call) -> None:
        match call:
            case CallAssigned(owned=owned):
                async with self._taking:
                    await self._handler.assigned(owned)
            case CallWarm(order=order):
                async with self._warming:
                    await self._handler.warm(order.tp, order)
            case CallRelease(owned=owned, order=released):
                async with self._giving:
                    await self._handler.release(owned, released)
            case CallRevoked(owned=owned, reason=reason):
                async with self._giving:
                    await self._handler.revoked(owned, reason)
            case CallDiscard(tp=tp):
                async with self._giving:
                    await self._handler.discard(tp)
            case Pause(seconds=seconds):
                await anyio.sleep(seconds)
            case _:
                assert_never(call)
