"""Performs the steps of cutovers at the handler, as the core decides them, and runs the drains.

Rows of an update are performed completely, whatever happens to the stream that they came from: what a table says and
what the handler was told never differ for longer than that. Each drain is a task of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from assigner.aio.wakeup import Wakeup
from assigner.core.routing.cutover import Cutovers, CutoverStep, Drain, Flush, Stash, Stop, Switch
from assigner.core.routing.table import RowChange
from assigner.logs import get_logger
from assigner.model.keys import TopicPartition
from assigner.model.routes import FreezeAck
from assigner.routing.handler import CutoverHandler

AT_ONCE = 500
"""Rows that are performed before other tasks get a turn."""

_log = get_logger(__name__)


class CutoverTasks:
    """The cutovers of one router, and the tasks of their drains."""

    def __init__(self, handler: CutoverHandler, changes: Wakeup, drain_timeout: float) -> None:
        self.core = Cutovers()
        self._handler = handler
        self._changes = changes
        self._drain_timeout = drain_timeout
        self._tasks: TaskGroup | None = None
        self._drains: dict[TopicPartition, anyio.CancelScope] = {}

    def begin(self, tasks: TaskGroup) -> None:
        """Run drains as tasks of this group."""
        self._tasks = tasks

    async def perform(self, rows: Sequence[RowChange]) -> None:
        with anyio.CancelScope(shield=True):
            for first in range(0, len(rows), AT_ONCE):
                for row in rows[first : first + AT_ONCE]:
                    self._perform_all(row.tp, self.core.changed(row))
                    self._changes.notify(row.tp)
                if len(rows) > AT_ONCE:
                    await anyio.lowlevel.checkpoint()

    def reassert(self) -> None:
        """Send the acks of everything that is still frozen again."""
        self.core.reassert()
        self._changes.notify()

    def acknowledged(self, sent: Iterable[FreezeAck], refused: frozenset[TopicPartition]) -> None:
        self.core.acknowledged(sent, refused)
        self._changes.notify()

    def _perform_all(self, tp: TopicPartition, steps: Iterable[CutoverStep]) -> None:
        failed = False
        for step in steps:
            if failed and isinstance(step, Drain):
                # Requests may still go to the old owner.
                self.core.overdue(tp, step.number)
                continue
            try:
                self._perform(step)
            except Exception:  # noqa: BLE001 - the handler is the program's; its error concerns this partition only
                failed = True
                _log.exception("cutover_step_failed", step=type(step).__name__.lower(), partition=str(tp))

    def _perform(self, step: CutoverStep) -> None:
        match step:
            case Stop(tp):
                self._handler.stop(tp)
            case Stash(tp):
                self._handler.stash(tp)
            case Drain(tp, number):
                self._start_drain(tp, number)
            case Switch(tp, route):
                self._end_drain(tp)
                self._handler.switch(tp, route)
            case Flush(tp):
                self._handler.flush(tp)
            case _:
                assert_never(step)

    # --- drains ------------------------------------------------------------------------------------------------------

    def _start_drain(self, tp: TopicPartition, number: int) -> None:
        self._end_drain(tp)
        scope = self._drains[tp] = anyio.CancelScope()
        if self._tasks is not None:
            self._tasks.start_soon(self._drain, tp, number, scope)

    def _end_drain(self, tp: TopicPartition) -> None:
        scope = self._drains.pop(tp, None)
        if scope is not None:
            scope.cancel()

    async def _drain(self, tp: TopicPartition, number: int, scope: anyio.CancelScope) -> None:
        try:
            with scope, anyio.fail_after(self._drain_timeout):
                await self._handler.drain(tp)
                self.core.drained(tp, number)
        except TimeoutError:
            if self.core.overdue(tp, number):
                _log.warning("drain_overdue", partition=str(tp), seconds=self._drain_timeout)
        except Exception:  # noqa: BLE001 - as above
            self.core.overdue(tp, number)
            _log.exception("cutover_step_failed", step="drain", partition=str(tp))
        if self._drains.get(tp) is scope:
            del self._drains[tp]
        self._changes.notify()
