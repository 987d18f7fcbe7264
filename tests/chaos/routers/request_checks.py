"""What must hold of every request, wherever it is: at the router that sends it, and at the pod that serves it.

| rule | of a request or an ack |
|---|---|
| `lease` | no router sends past two thirds of its TTL, nor then before a renewal and a later registration's table |
| `frozen` | no router sends under an epoch that its table is new enough to show as frozen |
| `acked` | no router sends under an epoch whose freeze it has acked, unless another handoff thawed it |
| `drain` | no router acks a freeze while requests of the partition are in flight |
| `quorum` | no handoff goes on before every router that saw it freeze has acked it by its id |
| `back` | the epochs that a router sends a partition's requests under never go back, nor those that pods admit |
| `gates` | a pod admits requests under the epoch that it was given and no other |
| `stale` | exclusive groups: nothing takes effect at an owner after another one has begun to serve |
| `twice` | no request has its effect twice |
| `order` | requests of a key begin in their order, but for those that had to be sent again |

The truth is the store's own history, as in `tests/chaos/checks.py`, and what routers and pods did by the same clock.
Each check can fail: `test_request_checks.py` breaks every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from assigner.model.defaults import SAFE_SHARE
from assigner.model.keys import AckKey, AssignmentKey, GroupKey, HandoffKey, RouterKey, TopicPartition
from assigner.model.records import (
    Assignment,
    FreezeOverdue,
    Handoff,
    HandoffMode,
    Phase,
    Router,
    Step,
    decode,
)
from assigner.model.routes import Route
from assigner.routing.handler import Target
from assigner.store import DeleteEvent, Event, PutEvent
from tests.chaos.checks import Believer, Checks
from tests.chaos.routers.requests import Delivery, Request
from tests.support.cluster import Cluster


class Sender(Protocol):
    """A router, as far as its requests and acks go."""

    name: str
    session: str

    shown: set[tuple[TopicPartition, str]]
    """The handoffs that it was told are frozen."""

    @property
    def revision(self) -> int:
        """The one that its table shows now."""
        ...


class Lease:
    """What a router may count on, told by its calls alone: a model of its own, beside the library's."""

    def __init__(self, ttl: float) -> None:
        self.deadline = float("-inf")
        self._ttl = ttl
        self._lapsed = float("-inf")
        self._registered = float("-inf")
        self._table = float("-inf")

    def registering(self, now: float) -> None:
        self._registered = now

    def table_completed(self) -> None:
        self._table = self._registered

    def renewed(self, sent: float, now: float) -> None:
        if now >= self.deadline > float("-inf"):
            self._lapsed = self.deadline
        self.deadline = max(self.deadline, sent + self._ttl * SAFE_SHARE)

    def lost(self, now: float) -> None:
        self._lapsed, self.deadline = now, float("-inf")

    def why_not(self, now: float) -> str:
        if now >= self.deadline:
            return f"{now - self.deadline:.2f} s past two thirds of its TTL"
        return "" if self._table >= self._lapsed else "with a table of before its lease had lapsed"


class _Frozen:
    """A handoff that freezes its partition."""

    def __init__(self, handoff_id: str, epoch: int, revision: int) -> None:
        self.handoff_id = handoff_id
        self.epoch = epoch
        self.revision = revision
        """At which it became frozen."""
        self.deleted: int | None = None
        """At which somebody deleted the handoff. Who was not told of it before can't know; who was goes on holding."""


class RequestChecks(Checks):
    def __init__(self, cluster: Cluster, believers: Callable[[], Iterable[Believer]]) -> None:
        super().__init__(cluster, believers)
        self._routers: dict[str, tuple[str, int]] = {}
        """Registered routers -> session, and the revision since when it has been registered."""
        self._frozen: dict[TopicPartition, _Frozen] = {}
        self._last_frozen: dict[TopicPartition, _Frozen] = {}
        self._steps: dict[TopicPartition, Handoff] = {}
        self._thawed: set[tuple[TopicPartition, str]] = set()
        """Handoffs in whose place another one was put that had frozen nothing."""
        self._sent: dict[tuple[str, TopicPartition], int] = {}
        self._freeze_acked: dict[tuple[str, TopicPartition], tuple[str, int]] = {}
        self._told: set[tuple[str, TopicPartition, str]] = set()
        """Acks that routers have sent: by which session, and of which handoff."""
        self._in_flight: dict[tuple[str, TopicPartition], dict[Request, tuple[str, int]]] = {}
        """Of each router and partition: the owner that it was sent to, and under which epoch."""
        self._admitted: dict[TopicPartition, tuple[int, str]] = {}
        """The highest epoch that was admitted, and at which pod."""
        self._uncertain: set[str] = set()
        """Sessions of routers that were not registered all along."""
        self._begun: dict[str, int] = {}
        """The last request of each key that was admitted at its first try."""
        self._held: set[tuple[str, TopicPartition, int]] = set()
        self.proceeds = False
        """Whether the group goes on without acks after the freeze timeout, or has done so."""

    # --- every revision ----------------------------------------------------------------------------------------------

    def _record(self, key: GroupKey | None, event: Event) -> None:
        match key, event:
            case RouterKey(name, ""), PutEvent(entry):
                session = decode(Router, entry.value)[0].session
                if self._routers.get(name, ("", 0))[0] != session:
                    self._unregistered(name)
                    self._routers[name] = (session, entry.mod_revision)
                    self.seen["routers"] += 1
            case RouterKey(name, ""), DeleteEvent():
                self._unregistered(name)
            case AckKey(), PutEvent():
                self.seen["acks"] += 1
            case HandoffKey(tp), PutEvent(entry):
                self._moves_on(tp, decode(Handoff, entry.value)[0], entry.mod_revision)
            case HandoffKey(tp), DeleteEvent():
                self._steps.pop(tp, None)
                if tp in self._frozen:
                    self._frozen[tp].deleted = event.mod_revision
            case AssignmentKey(tp), PutEvent(entry):
                frozen = self._frozen.get(tp)
                if frozen and decode(Assignment, entry.value)[0].epoch > frozen.epoch:
                    del self._frozen[tp]
            case _:
                pass
        super()._record(key, event)

    def _unregistered(self, name: str) -> None:
        if name in self._routers:
            self._uncertain.add(self._routers.pop(name)[0])

    def _moves_on(self, tp: TopicPartition, handoff: Handoff, revision: int) -> None:
        before, self._steps[tp] = self._steps.get(tp), handoff
        frozen = self._frozen.get(tp)
        if handoff.at.phase is Phase.WARMING and frozen and frozen.handoff_id != handoff.handoff_id:
            self._thawed.add((tp, frozen.handoff_id))
            del self._frozen[tp]
        if handoff.at.phase is Phase.READY and not handoff.to_nobody and frozen is None:
            held = self._assigned.get(tp)
            self._frozen[tp] = self._last_frozen[tp] = _Frozen(
                handoff.handoff_id, held.epoch if held else handoff.old_epoch, revision
            )
            self.seen["freezes"] += 1
        if before is not None and before.handoff_id == handoff.handoff_id:
            waited = before.at in (Step.WARMING, Step.READY, Step.FREEZING)
            if waited and handoff.at in (Step.RELEASING, Step.RELEASED, Step.COMPLETE) and not handoff.to_nobody:
                self._quorum(tp, handoff)

    def _quorum(self, tp: TopicPartition, handoff: Handoff) -> None:
        """Whoever was registered when the partition froze must have acked it."""
        frozen = self._last_frozen.get(tp)
        if frozen is None or frozen.handoff_id != handoff.handoff_id:
            return
        self.seen["cutovers"] += 1
        if self.proceeds:
            return
        for name, (session, since) in self._routers.items():
            if since < frozen.revision and (session, tp, handoff.handoff_id) not in self._told:
                self._violated(f"quorum: {tp} went on to {handoff.at.value} although {name} has not acked its freeze")

    # --- at the router -----------------------------------------------------------------------------------------------

    def sent(self, router: Sender, lease: Lease, request: Request, target: Target) -> None:
        epoch = target.epoch
        tp, who = request.tp, (router.session, request.tp)
        self.seen["sent"] += 1
        if why := lease.why_not(self._world.clock.now()):
            self._violated(f"lease: {router.session} sends {request} {why}")
        if epoch < self._sent.get(who, 0):
            self._violated(f"back: {router.session} sends {request} under {epoch} after {self._sent[who]}")
        self._sent[who] = epoch
        frozen = self._frozen.get(tp)
        if frozen and epoch <= frozen.epoch and router.revision >= frozen.revision and self._knows(router, tp, frozen):
            self._violated(
                f"frozen: {router.session} sends {request} under {epoch} with a table of {router.revision}, frozen "
                f"since {frozen.revision}"
            )
        handoff_id, acked = self._freeze_acked.get(who, ("", -1))
        if epoch <= acked and (tp, handoff_id) not in self._thawed:
            self._violated(f"acked: {router.session} sends {request} under {epoch} after it acked {handoff_id}")
        self._in_flight.setdefault(who, {})[request] = (target.owner, epoch)

    def _knows(self, router: Sender, tp: TopicPartition, frozen: _Frozen) -> bool:
        return frozen.deleted is None or (tp, frozen.handoff_id) in router.shown

    def ended(self, router: Sender, request: Request) -> None:
        self._in_flight.get((router.session, request.tp), {}).pop(request, None)

    def acking(self, router: Sender, tp: TopicPartition, handoff_id: str, route: Route) -> None:
        """The router sends its ack of a freeze, when its table shows this route."""
        who = (router.session, tp)
        self._freeze_acked[who] = (handoff_id, route.epoch)
        self._told.add((router.session, tp, handoff_id))
        # One that hangs at an owner of before has nothing to do with this move.
        waiting = [
            repr(request)
            for request, (owner, epoch) in self._in_flight.get(who, {}).items()
            if owner == route.owner or epoch >= route.epoch
        ]
        if waiting:
            self._violated(f"drain: {router.session} acks {handoff_id} while these are in flight: {sorted(waiting)}")

    # --- at the pod --------------------------------------------------------------------------------------------------

    def admitted(self, pod: Believer, delivery: Delivery) -> None:
        request, tp, epoch = delivery.request, delivery.request.tp, delivery.epoch
        self.seen["admitted"] += 1
        self._gate(pod, tp, epoch)
        highest, at = self._admitted.get(tp, (0, ""))
        if epoch < highest and at != pod.session and self._counts(delivery):
            self._violated(f"back: {pod.session} admits {request} under {epoch} after {at} did under {highest}")
        if epoch >= highest:
            self._admitted[tp] = (epoch, pod.session)
        if request.abandoned or request.retried:
            return
        if request.seq < self._begun.get(request.key, -1):
            self._violated(f"order: {request} begins after {self._begun[request.key]}")
        self._begun[request.key] = request.seq

    def _gate(self, pod: Believer, tp: TopicPartition, epoch: int) -> None:
        if pod.open_gates().get(tp) != epoch:
            self._violated(f"gates: {pod.session} admits {tp} under {epoch} and has {pod.open_gates().get(tp)}")
        if (pod.session, tp, epoch) not in self._held:
            self._held.add((pod.session, tp, epoch))
            self.opened(pod, tp, epoch)

    def _counts(self, delivery: Delivery) -> bool:
        """Two owners may serve at once in an overlap group for routers that nobody waited for, and only for those."""
        if self._world.options.handoff_mode is HandoffMode.EXCLUSIVE:
            return True
        return not self.proceeds and delivery.router not in self._uncertain

    def took_effect(self, pod: Believer, delivery: Delivery) -> None:
        request, tp, epoch = delivery.request, delivery.request.tp, delivery.epoch
        self.seen["effects"] += 1
        request.served += 1
        if request.served > 1:
            self._violated(f"twice: {request} has its effect again, at {pod.session}")
        highest, at = self._admitted.get(tp, (0, ""))
        if epoch < highest and at != pod.session and self._world.options.handoff_mode is HandoffMode.EXCLUSIVE:
            self._violated(
                f"stale: {request} takes effect at {pod.session} under {epoch} after {at} began under {highest}"
            )

    def choose(self, overdue: FreezeOverdue) -> None:
        """What the group does about a freeze that is not acked in time, from now on."""
        self.proceeds = self.proceeds or overdue is FreezeOverdue.PROCEED
