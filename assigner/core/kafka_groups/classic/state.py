"""Keeps the state of a classic group: its members, its generation, its timers, and the answers that are due.

It knows what each change means for the rest of the state, and no rule about when a change is made: those are in
`joins`, `rebalance` and `writes`. All times are monotonic seconds; timeouts are milliseconds.
"""

from __future__ import annotations

from enum import Enum, auto

from assigner.core.kafka_groups.classic.actions import Limits, MemberRemoved, MemberReplaced, Outbox
from assigner.core.kafka_groups.classic.consumer_protocol import CONSUMER, subscribed_topics
from assigner.core.kafka_groups.classic.members import Member, MemberList, Protocols
from assigner.core.work_queue import Schedule
from assigner.model.kafka_groups import (
    ClassicGroupRecord,
    ClassicState,
    JoinAnswer,
    JoinRequest,
    KafkaError,
    SyncAnswer,
)

REPLACED = KafkaError.REBALANCE_IN_PROGRESS
"""For a request that a later one of the same member replaces. Whoever still waits for it has to join again."""


class GroupTimer(Enum):
    JOIN = auto()
    """Members that have not joined by then are left out."""
    INITIAL = auto()
    """An empty group has waited for members after its first."""
    SYNC = auto()
    """Members that have not asked for their assignment by then are removed."""
    FOLLOW_UP = auto()
    RETRY = auto()


class Proposal:
    """The assignment of a generation that is not told to anybody yet, because it is not written."""

    __slots__ = ("assignments", "follow_up", "generation")

    def __init__(self, generation: int, assignments: dict[str, bytes], follow_up: bool) -> None:
        self.generation = generation
        self.assignments = assignments
        self.follow_up = follow_up


class StaticJoin:
    """A static member's new process that takes over the assignment of the one before it, once that is written."""

    __slots__ = ("before", "leader", "member", "new_id", "old_id")

    def __init__(self, member: Member, old_id: str, leader: str | None, before: tuple[Protocols, int, int]) -> None:
        """`leader`: that of the group before. `before`: protocols, session and rebalance timeout."""
        self.member = member
        self.old_id = old_id
        self.new_id = member.member_id
        self.leader = leader
        self.before = before


class GroupState:
    def __init__(self, group: str, limits: Limits) -> None:
        self.group = group
        self.limits = limits
        self.state = ClassicState.EMPTY
        self.was_empty = False
        """Whether the present rebalance is the first of an empty group."""
        self.generation = 0
        self.floor = 0
        """A leader before may have told of generations up to here."""
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.assigned_here = False
        """Whether the service assigns for this generation, so that no member is told that it leads."""
        self.assigns_for_itself = False
        """The service failed to assign for this generation, so a member has to for the next one."""
        self.members = MemberList()
        self.pending: dict[str, float] = {}
        """Members that were given an id and are to join with it, with the time until they may."""
        self.to_sync: set[str] = set()
        """Members that have not asked for the assignment of this generation."""
        self.grew = False
        """Whether a member joined since the initial delay last began."""
        self.initial_left = 0
        """Milliseconds by which the initial delay may still be extended."""
        self.postponed = False
        """All members have joined, and the number of the next generation is not reserved yet."""
        self.topics: frozenset[str] | None = None
        """The topics that the members subscribe to; None: not known."""
        self.timers: Schedule[GroupTimer | str] = Schedule()
        """Those of the group, and by member id when to look at its session again: a heartbeat moves only `deadline`."""
        self.proposal: Proposal | None = None
        self.static_joins: list[StaticJoin] = []
        self.follow_up = False
        """The assignment withheld partitions that a member had not given up."""
        self.stored: ClassicGroupRecord | None = None
        """What was written last, or loaded; None: nothing yet."""
        self.settled = ClassicGroupRecord()
        """The last generation that had an assignment, or no members: what a new leader is to begin with."""
        self.dirty = False
        """There is something to write."""
        self.out = Outbox()

    # --- generation ------------------------------------------------------------------------------------------------

    @property
    def next_generation(self) -> int:
        return max(self.generation, self.floor) + 1

    @property
    def next_is_reserved(self) -> bool:
        return self.stored is not None and self.next_generation <= self.stored.reserved

    @property
    def told_leader(self) -> str:
        """The member that is to assign, as members are told: none, if the service does."""
        return "" if self.assigned_here else self.leader or ""

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER

    def note_topics(self) -> None:
        """Find out what the members subscribe to, as far as they can be understood."""
        if not self.uses_consumer_protocol:
            self.topics = None
        elif self.protocol is None:
            self.topics = None if len(self.members) else frozenset()
        else:
            self.topics = subscribed_topics(member.metadata(self.protocol) for member in self.members)

    # --- members ---------------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols fits in."""
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        return self.protocol_type == protocol_type and self.members.support_any([name for name, _ in protocols])

    def validate(self, member_id: str, instance_id: str | None) -> KafkaError:
        """Whether this is a member. Comes before any look at its generation, as in Kafka."""
        if instance_id is not None:
            known = self.members.static(instance_id)
            if known is None:
                return KafkaError.UNKNOWN_MEMBER_ID
            if known.member_id != member_id:
                return KafkaError.FENCED_INSTANCE_ID
        return KafkaError.NONE if member_id in self.members else KafkaError.UNKNOWN_MEMBER_ID

    def add(self, member: Member, protocol_type: str) -> None:
        if not len(self.members):
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members.add(member)
        self.forget_pending(member.member_id)

    def remove(self, member_id: str, reason: str) -> None:
        """Remove a member, whoever waits in its name being told that it is unknown."""
        member = self.members.get(member_id)
        if member is None:
            return
        self.answer_join(member, JoinAnswer(error=KafkaError.UNKNOWN_MEMBER_ID))
        self.answer_sync(member, SyncAnswer(error=KafkaError.UNKNOWN_MEMBER_ID))
        self.members.remove(member_id)
        self.to_sync.discard(member_id)
        self.timers.clear(member_id)
        if self.leader == member_id:
            self.leader = next((one.member_id for one in self.members), None)
        self.out.events.append(MemberRemoved(member_id, member.instance_id, reason))

    def replace_static(self, member: Member, member_id: str) -> None:
        """Give a static member a new id. Who waits under the old one is told that it is fenced."""
        old = member.member_id
        self.answer_join(member, JoinAnswer(error=KafkaError.FENCED_INSTANCE_ID, member_id=old))
        self.answer_sync(member, SyncAnswer(error=KafkaError.FENCED_INSTANCE_ID))
        self.members.rename(member, member_id)
        self.timers.clear(old)
        if self.leader == old:
            self.leader = member_id
        if old in self.to_sync:
            self.to_sync.discard(old)
            self.to_sync.add(member_id)
        self.out.events.append(MemberReplaced(member.instance_id or "", old, member_id))

    def update(self, member: Member, request: JoinRequest, waiter: int) -> None:
        """Take over what a member joins with, and let it wait."""
        self.members.set_protocols(member, request.protocols)
        member.session_timeout = request.session_timeout
        member.rebalance_timeout = request.rebalance_timeout
        self.hold_join(member, request, waiter)

    # --- waiters ---------------------------------------------------------------------------------------------------

    def hold_join(self, member: Member, request: JoinRequest, waiter: int) -> None:
        member.skips_assignment = request.can_skip_assignment
        before = self.members.hold_join(member, waiter)
        if before is not None:
            self.out.reply(before, JoinAnswer(error=REPLACED, member_id=member.member_id))

    def answer_join(self, member: Member, answer: JoinAnswer) -> None:
        waiter = self.members.end_join(member)
        if waiter is not None:
            self.out.reply(waiter, answer)

    def hold_sync(self, member: Member, waiter: int) -> None:
        self.answer_sync(member, SyncAnswer(error=REPLACED))
        member.sync_waiter = waiter

    def answer_sync(self, member: Member, answer: SyncAnswer) -> bool:
        waiter, member.sync_waiter = member.sync_waiter, None
        if waiter is not None:
            self.out.reply(waiter, answer)
        return waiter is not None

    def generation_answer(self, member: Member) -> JoinAnswer:
        """What a member is told of the present generation."""
        leads = self.told_leader == member.member_id
        return JoinAnswer(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.told_leader,
            members=self.members.joined(self.protocol) if leads else (),
        )

    # --- sessions --------------------------------------------------------------------------------------------------

    def renew(self, member: Member, now: float, timeout: int = 0) -> None:
        """Begin the member's session again."""
        member.deadline = now + (timeout or member.session_timeout) / 1000
        self.timers.sooner(member.member_id, member.deadline)

    def add_pending(self, member_id: str, now: float, timeout: int) -> None:
        self.pending[member_id] = now + timeout / 1000
        self.timers.set(member_id, self.pending[member_id])

    def forget_pending(self, member_id: str) -> bool:
        if self.pending.pop(member_id, None) is None:
            return False
        self.timers.clear(member_id)
        return True

    @property
    def all_joined(self) -> bool:
        return self.members.awaiting_join == len(self.members) and not self.pending

    @property
    def all_synced(self) -> bool:
        return not self.to_sync
