"""One group's records in memory, kept by applying the store's events in order.

A passive mirror: it holds what is stored, who owns what and what can't be read, and returns what each event changed. It
decides nothing. A value that can't be read takes its partition, consumer or topic out of the tables and is listed in
`unreadable`; nothing is ever deleted for being unreadable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from assigner.errors import UnreadableRecord
from assigner.model.keys import (
    AckKey,
    AssignmentKey,
    ConsumerKey,
    GroupKey,
    GroupKeys,
    HandoffKey,
    LeaderKey,
    OptionsKey,
    PlanKey,
    RouterKey,
    StandbyKey,
    TopicKey,
    TopicPartition,
)
from assigner.model.records import (
    Assignment,
    Consumer,
    GroupOptions,
    Handoff,
    LeaderRecord,
    Plan,
    Router,
    RouterAck,
    Standbys,
    Stored,
    TopicConfig,
    stored,
)
from assigner.store import DeleteEvent, Entry, Event, Limits, PutEvent

K = TypeVar("K")
R = TypeVar("R", bound=msgspec.Struct)

_USUAL_LIMITS = Limits()
_KINDS: dict[type, type[msgspec.Struct]] = {
    ConsumerKey: Consumer,
    AssignmentKey: Assignment,
    HandoffKey: Handoff,
    StandbyKey: Standbys,
    TopicKey: TopicConfig,
    OptionsKey: GroupOptions,
    PlanKey: Plan,
    LeaderKey: LeaderRecord,
    RouterKey: Router,
    AckKey: RouterAck,
}


class Change(msgspec.Struct, frozen=True, gc=False):
    """One event's change of one record. A record that became unreadable has no `after`."""

    key: GroupKey
    before: Stored[Any] | None
    after: Stored[Any] | None


class PartitionsByName(dict[str, set[TopicPartition]]):
    """Consumer name -> partitions. Names without partitions are dropped, or they would pile up with every deploy."""

    def __missing__(self, name: str) -> set[TopicPartition]:
        return set()

    def add(self, name: str, tp: TopicPartition) -> None:
        self.setdefault(name, set()).add(tp)

    def remove(self, name: str, tp: TopicPartition) -> None:
        tps = self[name]
        tps.discard(tp)
        if not tps:
            self.pop(name, None)


class GroupState:
    """The records of one group, mirrored. Read its tables freely; change them only by `apply` and `replace`."""

    def __init__(self, keys: GroupKeys, defaults: GroupOptions | None = None, limits: Limits = _USUAL_LIMITS) -> None:
        """`limits`: of the store the group lies in."""
        self.keys = keys
        self.limits = limits
        self.revision = 0
        self.consumers: dict[str, Stored[Consumer]] = {}
        self._names: dict[str, dict[str, None]] = {}
        """Session -> the consumers that it is registered as: one, unless a client reuses it."""
        self.assignments: dict[TopicPartition, Stored[Assignment]] = {}
        self.handoffs: dict[TopicPartition, Stored[Handoff]] = {}
        self.standbys: dict[TopicPartition, Stored[Standbys]] = {}
        self.topics: dict[str, Stored[TopicConfig]] = {}
        self.routers: dict[str, Stored[Router]] = {}
        self.displaced_routers: dict[RouterKey, Stored[Router]] = {}
        """Sessions of routers that lost their name, until their leases have ended."""
        self.unreadable_routers: set[RouterKey] = set()
        self.acks: dict[TopicPartition, dict[str, Stored[RouterAck]]] = {}
        self.stored_options: Stored[GroupOptions] | None = None
        self.stored_plan: Stored[Plan] | None = None
        self.leader: Stored[LeaderRecord] | None = None
        self.highest_epoch = 0
        """Of all assignments that were ever mirrored, also those that were deleted or rewritten since."""
        self.departed: dict[str, Consumer] = {}
        """Consumers that are not registered any more and still own something -> their last registration."""
        self.unreadable: dict[str, str] = {}
        """Key -> why it can't be read."""
        self.unreadable_partitions: set[TopicPartition] = set()
        self.unreadable_consumers: set[str] = set()
        # Indexes, so that a consumer that joins or leaves costs only its own partitions.
        self.owned = PartitionsByName()
        self.incoming = PartitionsByName()
        self.outgoing = PartitionsByName()
        self.copies = PartitionsByName()
        """Partitions whose record of standbys names the consumer."""
        self.defaults = defaults or GroupOptions()
        self._keys_seen: dict[str, int] = {}

    @property
    def options(self) -> GroupOptions:
        return self.stored_options.record if self.stored_options else self.defaults

    @property
    def plan(self) -> Plan:
        return self.stored_plan.record if self.stored_plan else _NO_PLAN

    @property
    def blocked(self) -> str:
        """Why nothing may be decided: the plan or the options can't be read; empty: they can."""
        for key in (self.keys.plan, self.keys.options):
            if key in self.unreadable:
                return f"{key}: {self.unreadable[key]}"
        return ""

    @property
    def is_idle(self) -> bool:
        """Whether the group has no consumers, no records about partitions, and nothing unreadable to report."""
        return not (
            self.consumers or self.assignments or self.handoffs or self.standbys or self.has_routers or self.unreadable
        )

    @property
    def has_routers(self) -> bool:
        """Whether a router is registered, or was and may still be at work, or may be because its record can't be
        read."""
        return bool(self.routers or self.displaced_routers or self.unreadable_routers)

    def partitions(self) -> int:
        return sum(topic.record.partition_count for topic in self.topics.values())

    def unowned(self) -> int:
        """How many partitions have no registered owner."""
        owned = (len(tps) for name, tps in self.owned.items() if name in self.consumers)
        return max(0, self.partitions() - sum(owned))

    def touching(self, name: str) -> set[TopicPartition]:
        """Every partition that the consumer owns, or that is in flight to or from it."""
        return self.owned[name] | self.incoming[name] | self.outgoing[name]

    def consumer_of_session(self, session: str) -> Stored[Consumer] | None:
        """The registration of this session. None: it is not registered, or was displaced or evicted."""
        named = (self.consumers[name] for name in self._names.get(session, ()))
        return next((found for found in named if not found.record.evicted), None)

    def to_hand_over(self, name: str) -> set[TopicPartition]:
        """The partitions that the consumer has to hand over before it is drained. Partitions whose records or topic
        can't be read do not count, because they can't be handed over."""
        return {tp for tp in self.touching(name) if not self.is_left_alone(tp)}

    def is_left_alone(self, tp: TopicPartition) -> bool:
        """Whether a record that decides about the partition can't be read."""
        return tp in self.unreadable_partitions or (
            tp.topic not in self.topics and self.keys.topic(tp.topic) in self.unreadable
        )

    def involved(self) -> set[str]:
        """The names of all owners, and of both owners of every handoff."""
        return {*self.owned, *self.incoming, *self.outgoing}

    def holding_sessions(self) -> set[tuple[str, str]]:
        """(name, session) of every owner on record, and of every old owner that a handoff names."""
        owners = ((held.record.owner, held.record.session) for held in self.assignments.values())
        leaving = ((handoff.record.old_owner, handoff.record.old_session) for handoff in self.handoffs.values())
        return {*owners, *leaving}

    # --- keeping it up to date -----------------------------------------------------------------------------------

    def apply(self, event: Event) -> Change | None:
        """Apply one event. None: its key is not one of ours, or nothing that can be read changed."""
        match event:
            case PutEvent(entry):
                self._keys_seen[entry.key] = entry.mod_revision
                return self._put(entry)
            case DeleteEvent(key):
                self._keys_seen.pop(key, None)
                return self._delete(key)

    def replace(self, entries: Iterable[Entry]) -> list[Event]:
        """Compute the events that lead from the mirrored records to those of a new listing. Nothing is applied yet.

        Routers come first: events are applied in slices, and a handoff that is ready must not be seen without a router
        that was registered by then. A flip compares the handoff and can't compare which routers there are."""
        listed: set[str] = set()
        routers: list[Event] = []
        others: list[Event] = []
        for entry in entries:
            listed.add(entry.key)
            if self._keys_seen.get(entry.key) != entry.mod_revision:
                events = routers if entry.key.startswith(self.keys.routers) else others
                events.append(PutEvent(entry))
        gone = [DeleteEvent(key, 0) for key in self._keys_seen if key not in listed]
        return [*gone, *routers, *others]

    def _put(self, entry: Entry) -> Change | None:
        key = self.keys.parse(entry.key)
        if key is None:
            self._report_foreign(entry.key)
            return None
        try:
            record = stored(_KINDS[type(key)], entry)
            _check_identity(key, record.record)
        except UnreadableRecord as error:
            return self._set(key, entry.key, None, str(error))
        return self._set(key, entry.key, record, "")

    def _delete(self, raw: str) -> Change | None:
        key = self.keys.parse(raw)
        if key is None:
            self.unreadable.pop(raw, None)
            return None
        return self._set(key, raw, None, "")

    def _report_foreign(self, raw: str) -> None:
        branch = raw[len(self.keys.prefix) :].split("/", 1)[0]
        if branch in ("assignments", "handoffs", "standbys", "consumers", "config"):
            self.unreadable[raw] = "not a key this service writes"

    def _set(self, key: GroupKey, raw: str, record: Stored[Any] | None, problem: str) -> Change | None:
        was_unreadable = self.unreadable.pop(raw, None)
        if problem:
            self.unreadable[raw] = problem
        before = self._store(key, record, bool(problem))
        if before is None and record is None and was_unreadable is None and not problem:
            return None
        return Change(key, before, record)

    def _store(self, key: GroupKey, record: Stored[Any] | None, unreadable: bool) -> Stored[Any] | None:
        match key:
            case AssignmentKey(tp):
                self._set_unreadable(tp, self.keys.handoff(tp), unreadable)
                return self._store_assignment(tp, record)
            case HandoffKey(tp):
                self._set_unreadable(tp, self.keys.assignment(tp), unreadable)
                return self._store_handoff(tp, record)
            case ConsumerKey(name):
                (self.unreadable_consumers.add if unreadable else self.unreadable_consumers.discard)(name)
                return self._store_consumer(name, record)
            case AckKey(tp, router):
                return self._store_ack(tp, router, record)
            case TopicKey(topic):
                return _swap(self.topics, topic, record)
            case StandbyKey(tp):
                return self._store_standbys(tp, record)
            case RouterKey(name, displaced):
                (self.unreadable_routers.add if unreadable else self.unreadable_routers.discard)(key)
                if displaced:
                    return _swap(self.displaced_routers, key, record)
                return _swap(self.routers, name, record)
            case OptionsKey():
                before_options, self.stored_options = self.stored_options, record
                return before_options
            case PlanKey():
                before_plan, self.stored_plan = self.stored_plan, record
                return before_plan
            case LeaderKey():
                before_leader, self.leader = self.leader, record
                return before_leader

    def _set_unreadable(self, tp: TopicPartition, other: str, unreadable: bool) -> None:
        if unreadable:
            self.unreadable_partitions.add(tp)
        elif other not in self.unreadable:
            self.unreadable_partitions.discard(tp)

    def _store_consumer(self, name: str, record: Stored[Consumer] | None) -> Stored[Any] | None:
        before = _swap(self.consumers, name, record)
        if before:
            self._forget_session(before.record.session, name)
        if record and record.record.session:
            self._names.setdefault(record.record.session, {})[name] = None
        if record:
            self.departed.pop(name, None)
        elif before and self._is_involved(name):
            self.departed[name] = before.record
        return before

    def _forget_session(self, session: str, name: str) -> None:
        names = self._names.get(session)
        if names is not None:
            names.pop(name, None)
            if not names:
                del self._names[session]

    def _is_involved(self, name: str) -> bool:
        return any(name in table for table in (self.owned, self.incoming, self.outgoing))

    def _forget_departed(self, *names: str) -> None:
        for name in names:
            if name in self.departed and not self._is_involved(name):
                del self.departed[name]

    def _store_assignment(self, tp: TopicPartition, record: Stored[Assignment] | None) -> Stored[Any] | None:
        before = _swap(self.assignments, tp, record)
        if before:
            self.owned.remove(before.record.owner, tp)
            self._forget_departed(before.record.owner)
        if record:
            self.owned.add(record.record.owner, tp)
            self.highest_epoch = max(self.highest_epoch, record.record.epoch)
        return before

    def _store_handoff(self, tp: TopicPartition, record: Stored[Handoff] | None) -> Stored[Any] | None:
        before = _swap(self.handoffs, tp, record)
        if before:
            self.incoming.remove(before.record.new_owner, tp)
            self.outgoing.remove(before.record.old_owner, tp)
            self._forget_departed(before.record.new_owner, before.record.old_owner)
        if record:
            self.outgoing.add(record.record.old_owner, tp)
            if not record.record.to_nobody:
                self.incoming.add(record.record.new_owner, tp)
        return before

    def _store_standbys(self, tp: TopicPartition, record: Stored[Standbys] | None) -> Stored[Any] | None:
        before = _swap(self.standbys, tp, record)
        for name in before.record.holders if before else ():
            self.copies.remove(name, tp)
        for name in record.record.holders if record else ():
            self.copies.add(name, tp)
        return before

    def _store_ack(self, tp: TopicPartition, router: str, record: Stored[RouterAck] | None) -> Stored[Any] | None:
        acks = self.acks.setdefault(tp, {})
        before = _swap(acks, router, record)
        if not acks:
            del self.acks[tp]
        return before


_NO_PLAN = Plan()


def _swap(table: dict[K, Stored[R]], key: K, record: Stored[R] | None) -> Stored[R] | None:
    before = table.pop(key, None)
    if record is not None:
        table[key] = record
    return before


def _check_identity(key: GroupKey, record: Any) -> None:
    """Raise for a record that names another subject than its key: it would be acted upon in the wrong place."""
    match key:
        case AssignmentKey(tp) | HandoffKey(tp) | StandbyKey(tp):
            if record.topic != tp.topic or record.partition != tp.partition:
                raise UnreadableRecord(f"the record is about {record.topic}/{record.partition}, its key about {tp}")
        case TopicKey(topic):
            if record.topic != topic or not 0 < record.partition_count <= MAX_PARTITIONS:
                raise UnreadableRecord(f"not a config of topic {topic} with 1 to {MAX_PARTITIONS} partitions")
        case ConsumerKey(name):
            if record.consumer_name != name or not 0 < record.capacity < float("inf"):
                raise UnreadableRecord(f"not a registration of consumer {name} with a positive capacity")
        case RouterKey(name):
            if record.router_name != name:
                raise UnreadableRecord(f"not a registration of router {name}")
        case AckKey(tp, router):
            if (record.router_name, record.topic, record.partition) != (router, tp.topic, tp.partition):
                raise UnreadableRecord(f"not an ack of router {router} about {tp}")
        case _:
            pass


MAX_PARTITIONS = 1_000_000
