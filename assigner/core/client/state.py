"""The client's state machine: takes commands of the service and events, returns calls of the handler and acks.

Each partition is a small record of facts: what the service granted, which handler calls were made, what is running now.
After each event the next call is derived from the facts instead of being queued. So memory stays bounded however often
the service changes an assignment, and calls for one partition never overlap. Gates are opened and closed here; the
clock is read elsewhere.

Not promised: that the handler is called for every grant. A grant that is superseded before its call never reaches it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

import msgspec

from assigner.core.client.gate import Gate, Lease, Shut
from assigner.core.client.messages import (
    AckKind,
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
    Ownership,
    Pause,
    StaleGrant,
    Start,
    Stopped,
)
from assigner.core.client.partition import ClientCounters, Partition, Warmed
from assigner.errors import LimitReached
from assigner.model.commands import Ack, Commands, Release, Warm
from assigner.model.keys import TopicPartition

MAX_PARTITIONS = 1_000_000
"""More than this in one consumer is a mistake, not a workload."""
RETRY_FIRST, RETRY_LAST = 0.2, 30.0
"""Seconds before an `assigned` that failed is tried again: doubled each time, up to the last."""


class ClientState:
    """The state of one consumer. Every method is an event, and returns the actions for the driver."""

    def __init__(self, *, max_partitions: int = MAX_PARTITIONS) -> None:
        self.lease = Lease()
        self.counts = ClientCounters()
        self.live = False
        """The lease holds, as far as the driver has reported."""
        self.over = False
        """The consumer is leaving: nothing begins any more."""
        self.releasing_all = False
        """The consumer releases every partition by itself, because the service won't ask it to."""
        self.incarnation = ""
        """Of the service's store, as last received."""
        self.last_stale: StaleGrant | None = None
        self._max_partitions = max_partitions
        self._partitions: dict[TopicPartition, Partition] = {}
        self._acks: dict[AckKind, dict[TopicPartition, Ack]] = {kind: {} for kind in AckKind}
        # Partitions with a running call, or that the handler still owns; a close waits for these.
        self._busy: set[TopicPartition] = set()

    # --- messages of the service -----------------------------------------------------------------------------------

    def apply(self, commands: Commands) -> list[Action]:
        if self.over or self.releasing_all:
            return []
        voided = self._begin_anew(commands.opening.incarnation) if commands.opening is not None else []
        touched: dict[TopicPartition, Partition] = {}
        for tp, epoch in commands.unassigned:
            self._unassign(self._touch(tp, touched), epoch)
        self._apply_standbys(commands, touched)
        if commands.full:
            self._drop_all_but({tp for tp, _ in commands.assigned}, touched)
        for tp, epoch in commands.assigned:
            self._grant(self._touch(tp, touched), epoch)
        for cancel in commands.cancels:
            self._cancel_warm(self._touch(cancel.tp, touched), cancel.handoff_id)
        for warm in commands.warms:
            self._want_warm(self._touch(warm.tp, touched), warm)
        for release in commands.releases:
            self._want_release(self._touch(release.tp, touched), release)
        return voided + self._settle_all(touched.values())

    def _begin_anew(self, incarnation: str) -> list[Action]:
        """The service's store lost its data: earlier grants are void, and new epochs are not compared with old ones."""
        if not incarnation:
            return []
        before, self.incarnation = self.incarnation, incarnation
        if before in ("", incarnation):
            return []
        why = f"the service's store began anew: {incarnation}, before {before}"
        for p in self._partitions.values():
            p.begin_anew(why)
        return self.session_lost(why)

    def _touch(self, tp: TopicPartition, touched: dict[TopicPartition, Partition]) -> Partition:
        partition = touched[tp] = self._partition(tp)
        return partition

    def _partition(self, tp: TopicPartition) -> Partition:
        partition = self._partitions.get(tp)
        if partition is None:
            if len(self._partitions) >= self._max_partitions:
                raise LimitReached(
                    f"{tp} would be partition {self._max_partitions + 1} of this consumer; "
                    f"at most {self._max_partitions} are kept, subscribe to fewer topics"
                )
            partition = self._partitions[tp] = Partition(tp, self.lease)
            if self.over:
                partition.gate.close(Shut.CLOSED)
        return partition

    def _drop_all_but(self, owned: set[TopicPartition], touched: dict[TopicPartition, Partition]) -> None:
        for tp, partition in self._partitions.items():
            if partition.granted is not None and tp not in owned:
                partition.granted = None
                partition.why = "no longer assigned"
                touched[tp] = partition

    def _apply_standbys(self, commands: Commands, touched: dict[TopicPartition, Partition]) -> None:
        if commands.full:
            wanted = set(commands.standbys_added)
            for tp, partition in self._partitions.items():
                if partition.standby and tp not in wanted:
                    partition.standby = False
                    touched[tp] = partition
        for tp in commands.standbys_removed:
            p = self._touch(tp, touched)
            p.standby, p.drop_copy = False, True
        for tp in commands.standbys_added:
            self._touch(tp, touched).standby = True

    def _grant(self, p: Partition, epoch: int) -> None:
        if p.is_stale(epoch):
            self.counts.stale += 1
            self.last_stale = StaleGrant(p.tp, epoch, max(p.over, p.highest))
            return
        if p.granted is not None and epoch > p.granted:
            p.why = f"superseded by epoch {epoch}"
        if epoch != p.granted:
            # A grant above the epoch to be released means that the handoff was cancelled.
            self._acks[AckKind.RELEASED].pop(p.tp, None)
        p.granted = p.highest = epoch
        p.standby = False

    def _unassign(self, p: Partition, epoch: int) -> None:
        held = p.granted
        p.end(epoch or (held if held is not None else -1))
        if held is not None and p.granted is None:
            p.why = "unassigned"

    def _cancel_warm(self, p: Partition, handoff_id: str) -> None:
        if p.warm is None or (handoff_id and p.warm.handoff_id != handoff_id):
            return
        self._forget_warm(p)

    def _forget_warm(self, p: Partition) -> None:
        p.warm = None
        if p.warmed is not None:
            p.discard = p.discard or not p.warmed.failure
            p.warmed = None
        self._acks[AckKind.READY].pop(p.tp, None)

    def _want_warm(self, p: Partition, order: Warm) -> None:
        if p.granted is not None:
            # The owner needs no warm-up.
            self._add_ack(AckKind.READY, Ack(p.tp, order.handoff_id))
            return
        if p.warm is not None and p.warm.handoff_id != order.handoff_id:
            # The new handler call gets the copy that may exist, so the copy must not be discarded in between.
            p.warmed = None
            self._acks[AckKind.READY].pop(p.tp, None)
        p.warm = order
        if p.warmed is not None:
            self._add_ack(AckKind.READY, Ack(p.tp, order.handoff_id, p.warmed.failure))

    def _want_release(self, p: Partition, order: Release) -> None:
        held = max(p.granted or 0, p.handler_epoch or 0)
        order = msgspec.structs.replace(order, epoch=order.epoch or held)
        if p.warm is not None:
            self._forget_warm(p)
        p.release = order
        p.end(order.epoch)

    # --- the lease and the session -------------------------------------------------------------------------------

    def renewed(self, sent_at: float, ttl: float) -> list[Action]:
        if self.over:
            return []
        self.lease.renewed(sent_at, ttl)
        if self.live:
            return []
        self.live = True
        return self._settle_all(self._partitions.values())

    def lease_lost(self) -> list[Action]:
        """The lease's deadline passed. The gates are shut already; now `revoked` is called."""
        if not self.live:
            return []
        self.live = False
        self.counts.leases_lost += 1
        return self._settle_all(self._partitions.values())

    def session_lost(self, reason: str) -> list[Action]:
        """The service ended the session: what was granted to it is gone, and so are its pending acks."""
        self.lease.end()
        self.live = False
        for p in self._partitions.values():
            if p.granted is not None:
                p.granted, p.why = None, reason
            p.release = None
            if p.warm is not None:
                self._forget_warm(p)
        for acks in self._acks.values():
            acks.clear()
        return self._settle_all(self._partitions.values())

    def release_all(self, cause: str) -> list[Action]:
        """Release every partition in order, without a command of the service."""
        self.releasing_all = True
        for p in self._partitions.values():
            if p.warm is not None:
                self._forget_warm(p)
            if p.granted is not None:
                self._want_release(p, Release(p.tp, p.granted, "", cause=cause))
        return self._settle_all(self._partitions.values())

    def leave(self, reason: str) -> list[Action]:
        """The consumer closes: shut all gates and revoke every ownership."""
        self.over = True
        actions = self.session_lost(reason)
        for p in self._partitions.values():
            if p.handler_epoch is None:
                # Nothing is left to be released or revoked; who waits for the gate to open need not wait any longer.
                p.gate.close(Shut.CLOSED)
        return actions

    # --- what the handler did ------------------------------------------------------------------------------------

    def finished(self, tp: TopicPartition, outcome: Outcome) -> list[Action]:
        p = self._partitions[tp]
        call, p.running = p.running, None
        if isinstance(outcome, Failed):
            self.counts.failures += 1
        match call:
            case CallAssigned():
                self._assigned_returned(p, outcome)
            case CallWarm(order=order):
                self._warm_returned(p, order, outcome)
            case CallRelease():
                self._release_returned(p)
            case CallRevoked():
                p.handler_epoch, p.interrupted = None, False
                self.counts.revoked += 1
            case CallDiscard():
                p.discard = False
            case CallStandby():
                # Cancelled while still wanted: called again. Cancelled because unwanted: `standby_removed` follows.
                p.has_copy = not (isinstance(outcome, Stopped) and (p.standby or not outcome.begun))
            case CallNoStandby():
                p.has_copy = p.drop_copy = False
            case Pause() | None:
                pass
            case _:
                assert_never(call)
        return self._settle_all((p,))

    def _assigned_returned(self, p: Partition, outcome: Outcome) -> None:
        if isinstance(outcome, Failed):
            p.handler_epoch, p.failures, p.pausing = None, p.failures + 1, True
            return
        p.interrupted = p.cancelled or isinstance(outcome, Stopped)
        if p.handler_epoch is not None and self._may_continue(p):
            p.failures = 0
            p.gate.open(p.handler_epoch)

    def _warm_returned(self, p: Partition, order: Warm, outcome: Outcome) -> None:
        failure = outcome.reason if isinstance(outcome, Failed) else ""
        if p.warm is None or p.warm.handoff_id != order.handoff_id:
            # The call returned at the moment it was cancelled.
            p.discard = p.discard or isinstance(outcome, Done)
        elif not isinstance(outcome, Stopped):
            p.warmed = Warmed(order.handoff_id, failure)
            self.counts.warmed += 0 if failure else 1
            if p.granted is None:
                self._add_ack(AckKind.READY, Ack(p.tp, order.handoff_id, failure))

    def _release_returned(self, p: Partition) -> None:
        p.handler_epoch, p.interrupted = None, False
        p.gate.close(Shut.RELEASED)
        self.counts.released += 1

    # --- acks ----------------------------------------------------------------------------------------------------

    def pending_acks(self, kind: AckKind, limit: int) -> list[Ack]:
        """The oldest acks that the service has not accepted yet."""
        pending = self._acks[kind]
        return [ack for _, ack in zip(range(limit), pending.values(), strict=False)]

    def pending_ack_count(self) -> int:
        return sum(len(pending) for pending in self._acks.values())

    def acknowledged(self, kind: AckKind, sent: Iterable[Ack], refused: frozenset[TopicPartition]) -> list[Action]:
        """The service accepted these acks, or rejected some of them permanently."""
        pending = self._acks[kind]
        touched = []
        for ack in sent:
            if pending.get(ack.tp) == ack:
                del pending[ack.tp]
            if ack.tp in refused:
                self.counts.refusals += 1
                p = self._partitions[ack.tp]
                if kind is AckKind.READY and p.warm is not None and p.warm.handoff_id == ack.handoff_id:
                    self._forget_warm(p)
                    touched.append(p)
        return self._settle_all(touched)

    def _add_ack(self, kind: AckKind, ack: Ack) -> None:
        if not self.over and not self.releasing_all:
            self._acks[kind][ack.tp] = ack

    # --- the next step -------------------------------------------------------------------------------------------

    def _may_continue(self, p: Partition) -> bool:
        """Whether the handler may continue to work under the epoch it was given."""
        return self.live and not p.interrupted and p.handler_epoch is not None and p.handler_epoch == p.granted

    def _settle_all(self, partitions: Iterable[Partition]) -> list[Action]:
        actions: list[Action] = []
        for p in partitions:
            self._shut_if_lost(p)
            action = self._settle(p)
            if action is not None:
                actions.append(action)
            if p.running is None and p.handler_epoch is None:
                self._busy.discard(p.tp)
            else:
                self._busy.add(p.tp)
        return actions

    def _shut_if_lost(self, p: Partition) -> None:
        if p.handler_epoch is None or self._may_continue(p):
            return
        if self._may_release(p) or isinstance(p.running, CallRelease):
            p.gate.close(Shut.RELEASING if self.live else Shut.LEASE_OVER)
        elif self.over:
            p.gate.close(Shut.CLOSED)
        else:
            p.gate.close(Shut.REVOKED if p.granted != p.handler_epoch else Shut.LEASE_OVER)

    def _settle(self, p: Partition) -> Action | None:
        if p.running is not None:
            if not p.cancelled and self._is_unneeded(p, p.running):
                p.cancelled = True
                return Cancel(p.tp)
            return None
        p.running = self._next_call(p)
        p.cancelled = False
        return Start(p.tp, p.running) if p.running is not None else None

    def _is_unneeded(self, p: Partition, call: Call) -> bool:
        match call:
            case CallWarm(order=order):
                return p.warm is None or p.warm.handoff_id != order.handoff_id
            case CallAssigned():
                # A release does not cancel `assigned` but waits for it: the handler may be loading the state.
                return not self._may_continue(p) and not self._may_release(p)
            case Pause():
                return p.granted is None or not self.live
            case CallStandby():
                return not p.standby or p.drop_copy or p.granted is not None or p.warm is not None
            case CallRelease() | CallRevoked() | CallDiscard() | CallNoStandby():
                return False
            case _:
                assert_never(call)

    def _may_release(self, p: Partition) -> bool:
        return (
            self.live and p.release is not None and p.handler_epoch is not None and p.handler_epoch <= p.release.epoch
        )

    def _next_call(self, p: Partition) -> Call | None:
        if p.release is not None and (p.handler_epoch is None or p.handler_epoch > p.release.epoch):
            # The handler has nothing of that epoch: it was released, revoked, or never assigned.
            self._add_ack(AckKind.RELEASED, Ack(p.tp, p.release.handoff_id))
            p.release = None
        if p.handler_epoch is not None:
            return None if self._may_continue(p) else self._release_or_revoke(p, p.handler_epoch)
        if p.pausing:
            p.pausing = False
            return Pause(min(RETRY_LAST, RETRY_FIRST * 2.0 ** min(p.failures - 1, 16)))
        if p.granted is not None:
            return self._hand_over(p, p.granted) if self.live else None
        if p.warm is not None:
            return CallWarm(p.warm) if p.warmed is None else None
        return self._next_standby_call(p)

    def _next_standby_call(self, p: Partition) -> Call | None:
        if p.discard and not p.standby:
            return CallDiscard(p.tp)
        p.discard = False
        if self.over or self.releasing_all:
            return None
        if p.has_copy and (p.drop_copy or not p.standby):
            return CallNoStandby(p.tp)
        p.drop_copy = False
        if not p.standby or p.has_copy:
            return None
        p.has_copy = True
        return CallStandby(p.tp)

    def _release_or_revoke(self, p: Partition, epoch: int) -> Call:
        owned = Ownership(p.tp.topic, p.tp.partition, epoch)
        if self._may_release(p) and p.release is not None:
            return CallRelease(owned, p.release)
        return CallRevoked(owned, p.why if p.granted != epoch else "lease over")

    def _hand_over(self, p: Partition, epoch: int) -> Call:
        p.handler_epoch, p.warm, p.warmed, p.discard = epoch, None, None, False
        # `assigned` starts from the copy.
        p.has_copy = p.drop_copy = False
        p.gate.prepare(epoch)
        return CallAssigned(Ownership(p.tp.topic, p.tp.partition, epoch))

    # --- questions -----------------------------------------------------------------------------------------------

    def gate(self, tp: TopicPartition) -> Gate:
        return self._partition(tp).gate

    def knows(self, tp: TopicPartition) -> bool:
        """Whether the service has ever named this partition to the consumer, or the program asked for its gate."""
        return tp in self._partitions

    def is_idle(self) -> bool:
        """Nothing is running and the handler holds nothing."""
        return not self._busy

    def owned(self, now: float) -> dict[TopicPartition, int]:
        """Partitions whose gates are open, with their epochs."""
        if not self.lease.holds(now):
            return {}
        return {
            tp: p.handler_epoch
            for tp, p in self._partitions.items()
            if p.handler_epoch is not None and p.gate.is_open(now)
        }

    def standbys(self) -> frozenset[TopicPartition]:
        """Partitions of which a copy is wanted here."""
        return frozenset(tp for tp, p in self._partitions.items() if p.standby)

    def running(self) -> Iterator[Call]:
        return (p.running for p in self._partitions.values() if p.running is not None)
