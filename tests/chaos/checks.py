"""What must hold at every revision of the store and at every gate, whatever happens.

The truth is the store's own history, watched from the first revision on a handle that nobody disturbs, together with
what each consumer believes by its own clock. Each check can fail: `test_chaos_checks.py` breaks every one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from assigner.model.keys import (
    AssignmentKey,
    ConsumerKey,
    GroupKey,
    HandoffKey,
    LeaderKey,
    OptionsKey,
    PlanKey,
    StandbyKey,
    TopicPartition,
)
from assigner.model.records import Assignment, Consumer, GroupOptions, Handoff, HandoffMode, Offset, Plan, Step, decode
from assigner.store import (
    Batch,
    Committed,
    Compare,
    CreateRevisionIs,
    DeleteEvent,
    Event,
    Operation,
    PutEvent,
    Store,
    TransactionResult,
)
from assigner.testing.counting import CountingStore
from tests.support.cluster import GROUP, Cluster
from tests.support.faulty_stores import key_of

OF_LEADERS = (AssignmentKey, PlanKey, StandbyKey)
"""Records that nobody but the group's leader writes."""


class Violation(AssertionError):
    """A rule of the service was broken; the first word of the message says which."""


class Believer(Protocol):
    """A consumer, as far as gates go."""

    name: str
    session: str

    def open_gates(self) -> dict[TopicPartition, int]:
        """What it would work on now, by its own clock."""
        ...


class Checks:
    def __init__(self, cluster: Cluster, believers: Callable[[], Iterable[Believer]]) -> None:
        self._world = cluster
        self._believers = believers
        self.violations: list[Violation] = []
        self.seen: Counter[str] = Counter()
        """What was looked at, so that a course in which nothing happened is told from a good one."""
        self._registered: dict[str, str] = {}
        """Name -> session, as of the revision looked at."""
        self._assigned: dict[TopicPartition, Assignment] = {}
        self._highest: dict[TopicPartition, int] = {}
        self._holder: dict[tuple[TopicPartition, int], tuple[str, str]] = {}
        """Who was given an epoch."""
        self._plan = Plan()
        self._changes = 0
        """Since the generation was raised."""
        self._overtook = False
        """Whether one of the changes before that may be of the plan after it."""
        exclusive = cluster.options.handoff_mode is HandoffMode.EXCLUSIVE
        self._exclusive_since: float | None = float("-inf") if exclusive else None
        self._two_may_hold: dict[TopicPartition, float] = {}
        """Flipped while both ends hold it, as overlap groups do -> until when that may last."""
        self._term = 0
        self._terms: dict[int, int] = {}
        """Revision of a leader's write -> the term that was on when it took effect."""
        self._fences: dict[int, tuple[str, int]] = {}
        """Revision -> (who wrote it, the term it compared); 0: none."""
        self._offsets: dict[TopicPartition, tuple[int, int]] = {}
        """(revision, offset) on record."""
        self._answered: dict[TopicPartition, tuple[int, int]] = {}
        """(revision at which it was read, offset): the highest commit that was answered."""

    def _violated(self, what: str) -> None:
        """Kept as well as raised: some of those who call log what they are told and go on."""
        violation = Violation(what)
        self.violations.append(violation)
        raise violation

    def raise_violations(self) -> None:
        for violation in self.violations:
            raise violation

    # --- every revision ----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        async with self._world.store.watch(self._world.keys.root, start_revision=self._world.began + 1) as items:
            async for item in items:
                if isinstance(item, Batch):
                    self.take(item.events)

    def take(self, events: Sequence[Event]) -> None:
        by_revision: dict[int, list[Event]] = {}
        for event in events:
            revision = event.entry.mod_revision if isinstance(event, PutEvent) else event.mod_revision
            by_revision.setdefault(revision, []).append(event)
        for revision, together in sorted(by_revision.items()):
            keys = [(self._world.group.parse(key_of(event)), event) for event in together]
            self._written_by_the_leader(revision, [key for key, _ in keys])
            for key, event in keys:
                self._registration(key, event)
            for key, event in keys:
                self._record(key, event)
            for _, event in keys:
                self._offset(revision, event)

    def _registration(self, key: GroupKey | None, event: Event) -> None:
        match key, event:
            case ConsumerKey(name), PutEvent(entry):
                self._registered[name] = decode(Consumer, entry.value)[0].session
            case ConsumerKey(name), DeleteEvent():
                self._registered.pop(name, None)
            case LeaderKey(), PutEvent(entry):
                self._term = entry.create_revision
            case LeaderKey(), DeleteEvent():
                self._term = 0

    def _record(self, key: GroupKey | None, event: Event) -> None:
        match key, event:
            case AssignmentKey(tp), PutEvent(entry):
                self._assignment(tp, decode(Assignment, entry.value)[0])
            case AssignmentKey(tp), DeleteEvent():
                self._changes += 1
                if self._plan.epoch_floor < self._highest[tp]:
                    self._violated(f"floor: {tp} was deleted at {self._highest[tp]}, above {self._plan.epoch_floor}")
                self._assigned.pop(tp, None)
            case PlanKey(), PutEvent(entry):
                self._planned(decode(Plan, entry.value)[0])
            case HandoffKey(tp), PutEvent(entry):
                self._handoff(tp, decode(Handoff, entry.value)[0])
            case HandoffKey(tp), DeleteEvent():
                self._handoff(tp, None)
            case OptionsKey(), PutEvent(entry):
                self._choose_mode(decode(GroupOptions, entry.value)[0])

    def _assignment(self, tp: TopicPartition, record: Assignment) -> None:
        self.seen["assignments"] += 1
        self._changes += 1
        if record.epoch <= self._highest.get(tp, 0):
            self._violated(f"epoch: {tp} went from {self._highest[tp]} to {record.epoch}")
        self._highest[tp] = record.epoch
        self._holder[tp, record.epoch] = (record.owner, record.session)
        before = self._assigned.get(tp)
        another = before is None or (before.owner, before.session) != (record.owner, record.session)
        if another and self._registered.get(record.owner) != record.session:
            self._violated(f"registered: {tp} was given to {record.owner}/{record.session}, who is not")
        self._assigned[tp] = record

    def _planned(self, plan: Plan) -> None:
        before, self._plan = self._plan, plan
        if plan.generation < before.generation:
            self._violated(f"generation: it fell from {before.generation} to {plan.generation}")
        if plan.epoch_floor < before.epoch_floor:
            self._violated(f"floor: it fell from {before.epoch_floor} to {plan.epoch_floor}")
        if plan.generation > before.generation:
            self.seen["generations"] += 1
            if not self._changes and not self._overtook and plan.quarantined == before.quarantined:
                self._violated(f"generation: {plan.generation} changed nothing")
            # The first write of the next plan may go in while this generation is on its way: it is the next one's,
            # which may be overtaken in turn.
            self._overtook = self._changes + self._overtook > 1
            self._changes = 0

    # --- who wrote it ------------------------------------------------------------------------------------------------

    def observed(self, store: Store, instance: str) -> Store:
        """The store as the instance gets it, so that it is known who wrote what under which term."""
        return _Observed(store, lambda *written: self._note(instance, *written))

    def _note(self, instance: str, revision: int, operations: Sequence[Operation], compares: Sequence[Compare]) -> None:
        leader = self._world.group.leader
        if not any(isinstance(self._world.group.parse(operation.key), OF_LEADERS) for operation in operations):
            return
        terms = [c.revision for c in compares if isinstance(c, CreateRevisionIs) and c.key == leader]
        self._fences[revision] = (instance, terms[0] if terms else 0)
        self._compare_terms(revision)

    def _written_by_the_leader(self, revision: int, keys: Iterable[GroupKey | None]) -> None:
        if any(isinstance(key, OF_LEADERS) for key in keys):
            self._terms[revision] = self._term
            self._compare_terms(revision)

    def _compare_terms(self, revision: int) -> None:
        # The event and the answer to the one who wrote come in any order.
        if revision in self._terms and revision in self._fences:
            term, (instance, fence) = self._terms.pop(revision), self._fences.pop(revision)
            self.seen["leaders' writes"] += 1
            if term != fence:
                self._violated(f"term: {instance} wrote under term {fence} when {term} was on")

    # --- offsets -----------------------------------------------------------------------------------------------------

    def _offset(self, revision: int, event: Event) -> None:
        keys, raw = self._world.keys, key_of(event)
        tp = keys.parse_offset(GROUP, raw) if raw.startswith(keys.offsets(GROUP)) else None
        if tp is None:
            return
        if isinstance(event, DeleteEvent):
            self._offsets.pop(tp, None)
            self._answered.pop(tp, None)
            return
        record = decode(Offset, event.entry.value)[0]
        held = self._assigned.get(tp)
        self.seen["commits"] += 1
        if record.epoch != (held.epoch if held else 0):
            self._violated(f"commit: {tp} under {record.epoch} while {held} was in force")
        self._offsets[tp] = (revision, record.offset)
        self._compare_offsets(tp)

    def answered(self, tp: TopicPartition, offset: int, revision: int, on_record: int) -> None:
        """A commit was answered; `revision` is that of a read after it, and `on_record` what that read found."""
        self.seen["answered commits"] += 1
        if on_record < offset:
            self._violated(f"offset: {tp} is {on_record} on record after {offset} was answered")
        if offset > self._answered.get(tp, (0, -1))[1]:
            self._answered[tp] = (revision, offset)
        self._compare_offsets(tp)

    def _compare_offsets(self, tp: TopicPartition) -> None:
        if tp in self._offsets and tp in self._answered:
            (put_at, offset), (read_at, answered) = self._offsets[tp], self._answered[tp]
            if put_at > read_at and offset < answered:
                self._violated(f"offset: {tp} went back to {offset} after {answered} was answered")

    # --- gates -------------------------------------------------------------------------------------------------------

    def _choose_mode(self, options: GroupOptions) -> None:
        if options.handoff_mode is HandoffMode.OVERLAP:
            self._exclusive_since = None
        elif self._exclusive_since is None:
            self._exclusive_since = self._world.clock.now()

    @property
    def _exclusive(self) -> bool:
        """Since so long that whatever was flipped or given away before the switch has ended."""
        since = self._exclusive_since
        return since is not None and self._world.clock.now() > since + 2 * self._world.ttl

    def _handoff(self, tp: TopicPartition, handoff: Handoff | None) -> None:
        self._changes += 1
        if handoff and handoff.at is Step.COMPLETE:
            if self._exclusive and self._two_may_hold.get(tp, 0.0) < self._world.clock.now():
                self._violated(f"gates: {tp} was flipped before it was released, in an exclusive group")
            self._two_may_hold[tp] = float("inf")
        elif tp in self._two_may_hold:
            self._two_may_hold[tp] = min(self._two_may_hold[tp], self._world.clock.now() + self._world.ttl)

    def opened(self, believer: Believer, tp: TopicPartition, epoch: int) -> None:
        """A gate opened: nobody else may be inside, or, in overlap mode, only with another epoch."""
        self.seen["gates"] += 1
        given = self._holder.get((tp, epoch))
        if given not in (None, (believer.name, believer.session)):
            self._violated(f"gates: epoch {epoch} of {tp} is of {given}, and open at {believer.session}")
        self._alone(believer, tp, epoch)

    def look_at_gates(self) -> None:
        for believer in self._believers():
            for tp, epoch in believer.open_gates().items():
                self._alone(believer, tp, epoch)

    def _alone(self, believer: Believer, tp: TopicPartition, epoch: int) -> None:
        for other in self._believers():
            theirs = other.open_gates().get(tp) if other is not believer else None
            if theirs is None:
                continue
            both = f"{tp} is open at {believer.session} with {epoch} and at {other.session} with {theirs}"
            if theirs == epoch:
                self._violated(f"gates: {both}")
            if self._exclusive and self._two_may_hold.get(tp, 0.0) < self._world.clock.now():
                self._violated(f"gates: {both}, in an exclusive group")


Noted = Callable[[int, Sequence[Operation], Sequence[Compare]], None]


class _Observed(CountingStore):
    def __init__(self, inner: Store, note: Noted) -> None:
        super().__init__(inner)
        self._note = note

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        result = await super().transact(compares, operations, otherwise=otherwise)
        if isinstance(result, Committed):
            self._note(result.revision, operations, compares)
        return result
