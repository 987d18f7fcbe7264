"""Safety rules, switched off: each function makes one small change to the product's code.

`tests/chaos/ablations.py` says which rule each one switches off and which test must notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn
from unittest.mock import ANY

import anyio
import msgspec
import pytest

from assigner.admin.deletion import GroupDeletion
from assigner.aio.supervision import Supervisor, Work, is_cancelled, unending
from assigner.aio.waiters import Waiters
from assigner.api import Registration
from assigner.backends.election.instance_lease import Hold, InstanceLease
from assigner.core import sessions, writes
from assigner.core.client import partition
from assigner.core.client.gate import Lease
from assigner.core.client.state import ClientState
from assigner.core.consumer_view import CommandBuilder
from assigner.core.coordination.machine import Coordination
from assigner.core.coordination.publishing import EpochFloorKeeper, PlanPublisher
from assigner.core.coordination.removal import OwnershipRemoval
from assigner.core.group import GroupState
from assigner.core.handoff import acks, lifecycle
from assigner.core.handoff.lifecycle import HandoffAction
from assigner.core.liveness import SessionLiveness, SessionState
from assigner.core.offset_commits import Committer, PendingCommit, admit
from assigner.core.planning.copartitions import CopartitionUnits
from assigner.core.planning.execution import PlanExecution
from assigner.core.planning.request import RequestBuilder
from assigner.core.transitions import Transitions
from assigner.core.writes import Packed, PendingWrites, Write
from assigner.errors import WatchEnded
from assigner.leader.coordinator import Coordinator
from assigner.members.registration import MemberService
from assigner.members.streams import ConsumerStream, StreamRegistry
from assigner.model.commands import Release
from assigner.model.keys import TopicPartition
from assigner.model.records import GroupOptions
from assigner.storage.batch_writer import BatchWriter, Done
from assigner.storage.mirror import GroupMirror
from assigner.storage.watch_loop import WatchLoop
from assigner.store import NO_LEASE, Absent, Compare, Delete, Exists, Limits, Put, Renewed

Patch = pytest.MonkeyPatch


def _with_epoch(patch: Patch, method: str, epoch: Callable[[Transitions, TopicPartition], int]) -> None:
    """Have one kind of write make its epochs differently."""
    original = getattr(Transitions, method)

    def changed(self: Any, *args: Any, **kwargs: Any) -> Write:
        self.next_epoch = lambda tp: epoch(self, tp)
        try:
            write: Write = original(self, *args, **kwargs)
        finally:
            del self.next_epoch
        return write

    patch.setattr(Transitions, method, changed)


def _epoch_now(do: Transitions, tp: TopicPartition) -> int:
    held = do._state.assignments.get(tp)
    return max(1, held.record.epoch if held else 0)


def _without(patch: Patch, method: str, unwanted: Callable[[Compare], bool]) -> None:
    """Have one kind of write leave out some compares."""
    original = getattr(Transitions, method)

    def changed(self: Any, *args: Any, **kwargs: Any) -> Write:
        write: Write = original(self, *args, **kwargs)
        kept = tuple(compare for compare in write.compares if not unwanted(compare))
        return msgspec.structs.replace(write, compares=kept)

    patch.setattr(Transitions, method, changed)


def reassigned_with_the_same_epoch(patch: Patch) -> None:
    _with_epoch(patch, "assign", _epoch_now)


def clean_up_does_not_look_who_is_back(patch: Patch) -> None:
    patch.setattr(Transitions, "_parties_unchanged", lambda self, tp: [])


def the_dead_are_not_looked_at_again(patch: Patch) -> None:
    patch.setattr(Transitions, "_owner_unchanged", lambda self, tp: [])


def registrations_do_not_look_for_their_group(patch: Patch) -> None:
    patch.setattr(MemberService, "_group_exists", lambda self, group: Absent("nothing is ever put here"))


def deleted_groups_leave_the_floor(patch: Patch) -> None:
    async def unraised(*_: Any) -> None:
        pass

    patch.setattr(GroupDeletion, "_raise_floor", unraised)


def the_server_names_sessions(patch: Patch) -> None:
    original = MemberService._enter

    async def changed(self: MemberService, mirror: GroupMirror, registration: Registration) -> Any:
        return await original(self, mirror, msgspec.structs.replace(registration, session=""))

    patch.setattr(MemberService, "_enter", changed)


def owners_are_names(patch: Patch) -> None:
    original = SessionLiveness.session_state

    def changed(self: SessionLiveness, name: str, session: str, now: float) -> SessionState:
        return SessionState.ALIVE if name in self._state.consumers else original(self, name, session, now)

    patch.setattr(SessionLiveness, "session_state", changed)


def takeovers_keep_the_epoch(patch: Patch) -> None:
    _with_epoch(patch, "bump_epoch", _epoch_now)


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


def every_change_wakes_all_who_wait(patch: Patch) -> None:
    shared: dict[int, anyio.Event] = {}
    last: dict[int, int] = {}

    async def wait(self: Waiters, number: int) -> None:
        while last.get(id(self), 0) < number:
            await shared.setdefault(id(self), anyio.Event()).wait()

    def reached(self: Waiters, number: int) -> None:
        last[id(self)] = number
        if id(self) in shared:
            shared.pop(id(self)).set()

    patch.setattr(Waiters, "wait", wait)
    patch.setattr(Waiters, "reached", reached)


def any_session_will_do(patch: Patch) -> None:
    patch.setattr(sessions, "may_act", lambda consumer, session: True)


def exclusive_takes_clients_without_a_session(patch: Patch) -> None:
    original = sessions.check_mode

    def changed(options: GroupOptions, registration: Registration) -> None:
        original(options, msgspec.structs.replace(registration, session="any"))

    patch.setattr(sessions, "check_mode", changed)


def any_session_takes_the_stream(patch: Patch) -> None:
    patch.setattr(sessions, "check_on_record", lambda current, session, group: None)


def commits_compare_nothing(patch: Patch) -> None:
    patch.setattr(PendingCommit, "fence", property(lambda self: Exists(self.assignment_key)))


def commits_do_not_compare_what_they_replace(patch: Patch) -> None:
    patch.setattr(PendingCommit, "unreplaced", property(lambda self: Exists(self.assignment_key)))


def set_offsets_compare_nothing(patch: Patch) -> None:
    patch.setattr("assigner.offsets.reset.unchanged", lambda key, _: Absent(key + "~nothing"))


def committers_are_names(patch: Patch) -> None:
    def changed(who: Committer, *args: Any, **kwargs: Any) -> Any:
        held = args[1]
        return admit(Committer(who.group, who.name, held.record.session if held else ""), *args, **kwargs)

    patch.setattr("assigner.offsets.commit.admit", changed)


def gates_do_not_look_at_the_clock(patch: Patch) -> None:
    patch.setattr(Lease, "holds", lambda self, now: self.deadline > 0)


def gates_trust_the_whole_ttl(patch: Patch) -> None:
    patch.setattr(Lease, "renewed", lambda self, sent_at, ttl: setattr(self, "deadline", sent_at + ttl))


def renew_is_answered_without_asking(patch: Patch) -> None:
    async def changed(self: MemberService, group: str, name: str, session: str) -> float:
        return self._ttl

    patch.setattr(MemberService, "renew", changed)


def an_open_stream_renews(patch: Patch) -> None:
    original = MemberService.register

    async def changed(self: MemberService, registration: Registration, heard: Callable[[], float]) -> ConsumerStream:
        return await original(self, msgspec.structs.replace(registration, renews=False), self._clock.now)

    patch.setattr(MemberService, "register", changed)


def exclusive_takes_everybody(patch: Patch) -> None:
    patch.setattr(sessions, "check_mode", lambda options, registration: None)


def leaders_write_unfenced(patch: Patch) -> None:
    original = BatchWriter.__init__

    def changed(self: BatchWriter, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **{**kwargs, "fence": None})

    patch.setattr(BatchWriter, "__init__", changed)


def any_handoff_id_will_do(patch: Patch) -> None:
    patch.setattr(acks, "_names", lambda ack, handoff: True)


def acks_compare_nothing(patch: Patch) -> None:
    original = acks._write

    def changed(*args: Any) -> Write:
        return msgspec.structs.replace(original(*args), compares=())

    patch.setattr(acks, "_write", changed)


def flips_do_not_look_at_the_target(patch: Patch) -> None:
    _without(patch, "flip", lambda compare: "/consumers/" in compare.key)


def draining_drops_the_lease(patch: Patch) -> None:
    def changed(key: str, value: bytes, lease: int = NO_LEASE) -> Put:
        return Put(key, value, NO_LEASE if b'"Draining"' in value else lease)

    patch.setattr("assigner.storage.update.Put", changed)


def unknown_outcomes_are_not_read_again(patch: Patch) -> None:
    async def changed(self: Coordinator, write: Write, error: Exception) -> None:
        pass

    patch.setattr(Coordinator, "_read_again", changed)


def removal_leaves_the_floor(patch: Patch) -> None:
    def changed(self: OwnershipRemoval, budget: int) -> Iterator[Write]:
        for tp in [tp for tp in self._partitions if tp in self._state.assignments and tp not in self._pending]:
            yield self._transitions.remove((tp,))
        self._partitions.clear()

    patch.setattr(OwnershipRemoval, "writes", changed)


def the_floor_does_not_follow(patch: Patch) -> None:
    patch.setattr(EpochFloorKeeper, "is_due", lambda self, now: False)
    patch.setattr(EpochFloorKeeper, "raised", lambda self, plan: plan)


def balance_waits_for_nobody(patch: Patch) -> None:
    patch.setattr(SessionLiveness, "after_an_outage", lambda self, now: False)


def the_floor_does_not_count(patch: Patch) -> None:
    def changed(self: Transitions, tp: TopicPartition) -> int:
        held = self._state.assignments.get(tp)
        return (held.record.epoch if held else 0) + 1

    patch.setattr(Transitions, "next_epoch", changed)


def a_recreated_topic_begins_anew(patch: Patch) -> None:
    _with_epoch(patch, "recreate", lambda do, tp: 1)


def a_recreated_topic_keeps_its_offsets(patch: Patch) -> None:
    original = Transitions.recreate

    def changed(self: Transitions, tps: Sequence[TopicPartition]) -> Write:
        write = original(self, tps)
        kept = tuple(op for op in write.operations if not (isinstance(op, Delete) and "~offsets" in op.key))
        return msgspec.structs.replace(write, operations=kept)

    patch.setattr(Transitions, "recreate", changed)


def no_grant_is_stale(patch: Patch) -> None:
    patch.setattr(partition.Partition, "is_stale", lambda self, epoch: False)


def ownership_outlives_the_store(patch: Patch) -> None:
    def changed(self: partition.Partition, why: str) -> None:
        self.over = self.highest = -1

    patch.setattr(partition.Partition, "begin_anew", changed)
    patch.setattr(ClientState, "session_lost", lambda self, reason: [])


def a_higher_epoch_slips_in(patch: Patch) -> None:
    patch.setattr(
        ClientState, "_may_continue", lambda self, p: self.live and not p.interrupted and p.granted is not None
    )


def releases_name_no_epoch(patch: Patch) -> None:
    original = CommandBuilder._release

    def changed(self: CommandBuilder, tp: TopicPartition) -> Release:
        return msgspec.structs.replace(original(self, tp), epoch=0)

    patch.setattr(CommandBuilder, "_release", changed)


def snapshots_show_whatever_is_mirrored(patch: Patch) -> None:
    original = GroupMirror.wait_for

    async def changed(self: GroupMirror, revision: int, *, within: float = 10.0) -> None:
        await original(self, min(revision, 1), within=within)

    patch.setattr(GroupMirror, "wait_for", changed)


def the_absent_are_dead_at_once(patch: Patch) -> None:
    patch.setattr(SessionLiveness, "grace_period_ends", property(lambda self: self._term_started))


def the_absent_are_never_dead(patch: Patch) -> None:
    patch.setattr(SessionLiveness, "grace_period_ends", property(lambda self: float("inf")))


def _always(patch: Patch, name: str, empty: Callable[[], Any]) -> None:
    patch.setattr(GroupState, name, property(lambda self: empty(), lambda self, value: None), raising=False)


def unreadable_consumers_are_gone(patch: Patch) -> None:
    _always(patch, "unreadable_consumers", set)


def exclusive_does_not_wait_for_the_lease(patch: Patch) -> None:
    patch.setattr(SessionLiveness, "_lease_is_over", lambda self, name, session, now: True)


def leaving_revokes_at_once(patch: Patch) -> None:
    original = MemberService.deregister

    async def changed(self: MemberService, group: str, name: str, session: str, *, gates_closed: bool) -> bool:
        return await original(self, group, name, session, gates_closed=True)

    patch.setattr(MemberService, "deregister", changed)


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


def leases_are_trusted_for_ever(patch: Patch) -> None:
    patch.setattr(Hold, "held", lambda self: self.reason is None)
    patch.setattr(Hold, "left", lambda self: float("inf"))


def a_lease_that_is_gone_counts_as_renewed(patch: Patch) -> None:
    original = InstanceLease._renew_once

    async def changed(self: InstanceLease, hold: Hold) -> bool:
        answer = await self._store.keep_alive(hold.lease)
        if isinstance(answer, Renewed):
            return await original(self, hold)
        hold.renewed(self._clock.now(), hold.ttl)
        return True

    patch.setattr(InstanceLease, "_renew_once", changed)


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


def giving_up_only_deletes_the_handoff(patch: Patch) -> None:
    patch.setattr(Transitions, "reassert_owner", lambda self, tps: self.finish(tps))


def transactions_hold_whatever_there_is(patch: Patch) -> None:
    original = writes.pack
    generous = Limits(operations=100, value_bytes=10_000_000)

    def changed(waiting: Sequence[Write], limits: Limits, fence: Compare | None = None) -> Packed:
        return original(waiting, generous, fence)

    patch.setattr("assigner.storage.batch_writer.pack", changed)


class _EveryEvent(list[TopicPartition]):
    """An outbox that is a queue."""

    add = list.append

    def difference_update(self, others: Iterable[TopicPartition]) -> None:
        for other in others:
            self.remove(other)


def an_outbox_keeps_every_event(patch: Patch) -> None:
    original = ConsumerStream.__init__

    def changed(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._dirty = _EveryEvent()

    patch.setattr(ConsumerStream, "__init__", changed)


def there_is_always_room(patch: Patch) -> None:
    patch.setattr(StreamRegistry, "check_room", lambda self: None)


def any_number_of_writes_may_wait(patch: Patch) -> None:
    def changed(self: BatchWriter, write: Write, done: Done) -> None:
        self._waiting.append((write, done))

    patch.setattr(BatchWriter, "submit", changed)


def unreadable_partitions_are_planned(patch: Patch) -> None:
    _always(patch, "unreadable_partitions", set)


def unreadable_records_are_not_mentioned(patch: Patch) -> None:
    _always(patch, "unreadable", dict)


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


def what_is_let_go_is_forgotten_at_once(patch: Patch) -> None:
    patch.setattr(lifecycle, "_release_to_nobody", lambda *args, **kwargs: HandoffAction.REMOVE)


def unreadable_topics_are_gone(patch: Patch) -> None:
    patch.setattr(GroupState, "is_left_alone", lambda self, tp: tp in self.unreadable_partitions)


def the_mode_is_not_looked_at_again(patch: Patch) -> None:
    patch.setattr(Transitions, "_mode_unchanged", lambda self: [])


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
