"""Switch off rules about leaders: what they watch, plan and leave alone, and the loops that they run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn
from unittest.mock import ANY

import anyio

from assigner.aio.supervision import Supervisor, Work, is_cancelled, unending
from assigner.core.coordination.machine import Coordination
from assigner.core.coordination.publishing import PlanPublisher
from assigner.core.group import GroupState
from assigner.core.handoff import lifecycle
from assigner.core.handoff.lifecycle import HandoffAction
from assigner.core.liveness import SessionLiveness
from assigner.core.planning.copartitions import CopartitionUnits
from assigner.core.planning.execution import PlanExecution
from assigner.core.planning.request import RequestBuilder
from assigner.core.writes import PendingWrites
from assigner.errors import WatchEnded
from assigner.leader.coordinator import Coordinator
from assigner.model.keys import TopicPartition
from assigner.storage.mirror import GroupMirror
from assigner.storage.watch_loop import WatchLoop
from tests.chaos.ablation.mutations import Patch


def watches_start_now(patch: Patch) -> None:
    original = WatchLoop._watch

    async def changed(self: WatchLoop, start_revision: int) -> NoReturn:
        if not _is_of_a_group(self):
            await original(self, start_revision)
        # What happens now happens before the watch begins.
        begin = getattr(self._store, "_meanwhile", None)
        if begin:
            await begin()
        await original(self, (await self._store.get("/nothing")).revision + 1)
        raise AssertionError("unreachable")

    patch.setattr(WatchLoop, "_watch", changed)


def a_broken_watch_is_just_opened_again(patch: Patch) -> None:
    original = WatchLoop._watch_until_stale

    async def changed(self: WatchLoop, start_revision: int, before_listing: int) -> None:
        while True:
            try:
                await original(self, start_revision, before_listing)
                return
            except WatchEnded:
                if not _is_of_a_group(self):
                    raise
                await anyio.sleep(2)
                start_revision = (await self._store.get("/nothing")).revision + 1

    patch.setattr(WatchLoop, "_watch_until_stale", changed)


def _is_of_a_group(loop: WatchLoop) -> bool:
    return isinstance(getattr(loop._listed, "__self__", None), GroupMirror)


def nothing_is_reconciled(patch: Patch) -> None:
    async def changed(self: Coordinator) -> None:
        await anyio.sleep_forever()

    patch.setattr(Coordinator, "_reconcile", changed)


def partitions_in_flight_are_not_pinned(patch: Patch) -> None:
    def changed(self: RequestBuilder, tp: TopicPartition) -> None:
        held = self._state.assignments.get(tp)
        if held is None:
            self._put(-1, pinned=False)
        else:
            self._add_held(tp, held.record.owner, held.record.session)

    patch.setattr(RequestBuilder, "_add", changed)


def copartitions_flip_one_by_one(patch: Patch) -> None:
    patch.setattr(CopartitionUnits, "in_flight", lambda self, tp, handoff_id: (tp,))


def targets_are_names(patch: Patch) -> None:
    original: Any = lifecycle._target

    def changed(*args: Any) -> HandoffAction:
        verdict: HandoffAction = original(*args)
        return HandoffAction.WAIT if verdict is HandoffAction.RETARGET else verdict

    begin: Any = RequestBuilder.__init__

    def forgetting_sessions(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self._sessions = dict.fromkeys(self._sessions, ANY)

    patch.setattr(lifecycle, "_target", changed)
    patch.setattr(RequestBuilder, "__init__", forgetting_sessions)


def what_is_let_go_is_forgotten_at_once(patch: Patch) -> None:
    patch.setattr(lifecycle, "_release_to_nobody", lambda *args, **kwargs: HandoffAction.REMOVE)


def a_plan_is_carried_out_whoever_left(patch: Patch) -> None:
    original = SessionLiveness.eligible
    remembered: dict[str, Any] = {}

    def changed(self: SessionLiveness, name: str) -> Any:
        consumer = original(self, name)
        if consumer:
            remembered[name] = consumer
        return remembered.get(name)

    patch.setattr(SessionLiveness, "eligible", changed)


def a_plan_goes_by_the_sessions_it_was_made_for(patch: Patch) -> None:
    original = SessionLiveness.eligible
    first: dict[str, Any] = {}

    def changed(self: SessionLiveness, name: str) -> Any:
        consumer = original(self, name)
        return first.setdefault(name, consumer) if consumer else None

    patch.setattr(SessionLiveness, "eligible", changed)


def the_generation_is_published_first(patch: Patch) -> None:
    patch.setattr(PlanExecution, "finished", property(lambda self: True))
    patch.setattr(PlanPublisher, "waits", property(lambda self: False))
    patch.setattr(PendingWrites, "has_plan_writes", property(lambda self: False))


def every_plan_is_a_new_generation(patch: Patch) -> None:
    original = Coordination.solved

    def changed(self: Coordination, *plan: Any, **how: Any) -> None:
        original(self, *plan, **how)
        self._publisher._changed = True

    patch.setattr(Coordination, "solved", changed)


def _always(patch: Patch, name: str, empty: Callable[[], Any]) -> None:
    patch.setattr(GroupState, name, property(lambda self: empty(), lambda self, value: None), raising=False)


def unreadable_consumers_are_gone(patch: Patch) -> None:
    _always(patch, "unreadable_consumers", set)


def unreadable_partitions_are_planned(patch: Patch) -> None:
    _always(patch, "unreadable_partitions", set)


def unreadable_records_are_not_mentioned(patch: Patch) -> None:
    _always(patch, "unreadable", dict)


def unreadable_topics_are_gone(patch: Patch) -> None:
    patch.setattr(GroupState, "is_left_alone", lambda self, tp: tp in self.unreadable_partitions)


def loops_that_ended_stay_ended(patch: Patch) -> None:
    async def keep(_self: Supervisor, name: str, work: Work, **how: Any) -> None:
        try:
            await (work() if how.get("may_end") else unending(name, work))
        except how.get("final", ()):
            raise
        except (Exception, asyncio.CancelledError):
            if await is_cancelled():
                raise
            await anyio.sleep_forever()

    patch.setattr(Supervisor, "keep", keep)


def failing_loops_are_not_told(patch: Patch) -> None:
    patch.setattr(Supervisor, "problems", lambda self: [])
