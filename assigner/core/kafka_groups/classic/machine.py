"""The coordinator of one classic group as a machine: requests, results of writes and the time in, actions out.

`ClassicGroup` is the entrance. Each call returns the answers that are due and what the driver has to do; `wake_at` is
when to call `tick`. A JoinGroup and a SyncGroup are given under a number and answered under it, now or by a later call;
the other requests are answered at once.

A group is made for its first request, or loaded from its record: then it goes on in the generation on record, with
sessions that begin anew, and without a rebalance. What a leader before had under way is lost; the members that waited
for it were told that it is not their coordinator any more, and join again.

The driver owes each write its outcome: it calls `written` or `failed`, and if it does not know, it reads the record
again first. Not promised: an answer after `unload`, which answers everybody at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from assigner.core.kafka_groups.classic import joins, rebalance, requests
from assigner.core.kafka_groups.classic.actions import Actions, Limits
from assigner.core.kafka_groups.classic.members import Member
from assigner.core.kafka_groups.classic.state import GroupState, GroupTimer
from assigner.core.kafka_groups.classic.writes import GroupWrites
from assigner.model.kafka_groups import (
    ClassicCommit,
    ClassicGroupDescription,
    ClassicGroupRecord,
    ClassicMemberDescription,
    ClassicState,
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    KafkaError,
    LeaveAnswer,
    LeaveRequest,
    SyncAnswer,
    SyncRequest,
)


class ClassicGroup:
    def __init__(self, group: str, limits: Limits) -> None:
        self._state = GroupState(group, limits)
        self._writes = GroupWrites(self._state)

    @classmethod
    def load(cls, group: str, record: ClassicGroupRecord, limits: Limits, now: float) -> tuple[ClassicGroup, Actions]:
        """Go on from a record, with all its members in it (`records.unpack`)."""
        machine = cls(group, limits)
        state = machine._state
        state.stored = state.settled = record
        state.generation, state.floor = record.generation, record.reserved
        state.protocol_type, state.protocol, state.leader = record.protocol_type, record.protocol, record.leader
        for member in map(Member, record.members):
            state.members.add(member)
            state.renew(member, now)
        state.state = ClassicState.STABLE if record.members else ClassicState.EMPTY
        state.assigned_here = bool(record.members) and record.leader is None
        state.note_topics()
        if len(state.members) > limits.max_members:
            rebalance.prepare(state, "the group has more members than it may have", now)
        return machine, machine._act()

    # --- requests --------------------------------------------------------------------------------------------------

    def join(self, waiter: int, request: JoinRequest, mint: str, now: float) -> Actions:
        """`mint`: a text never used before, to make a new member's id of."""
        joins.join(self._state, waiter, request, mint, now)
        return self._act()

    def sync(self, waiter: int, request: SyncRequest, now: float) -> Actions:
        requests.sync(self._state, waiter, request, now)
        return self._act()

    def heartbeat(self, request: HeartbeatRequest, now: float) -> HeartbeatAnswer:
        return HeartbeatAnswer(error=requests.heartbeat(self._state, request, now))

    def leave(self, request: LeaveRequest, now: float) -> tuple[LeaveAnswer, Actions]:
        answer = requests.leave(self._state, request, now)
        return answer, self._act()

    def check_commit(self, commit: ClassicCommit, now: float) -> KafkaError:
        """Whether its member may commit. See `offsets` for what is checked of each partition."""
        if not self.exists:
            return requests.check_commit_to_nobody(commit)
        return requests.check_commit(self._state, commit, now)

    def create(self) -> Actions:
        """Have a group written that nobody joins: one whose offsets are committed all the same."""
        self._state.dirty = self._state.dirty or self._state.stored is None
        return self._act()

    def rebalance(self, reason: str, now: float) -> Actions:
        """Have everybody join again: the topics have changed, or an operator wants it."""
        if self._state.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
            rebalance.prepare(self._state, reason, now)
        return self._act()

    # --- what the driver did ---------------------------------------------------------------------------------------

    def written(self, number: int, now: float) -> Actions:
        self._writes.written(number, now)
        return self._act()

    def failed(self, number: int, error: KafkaError, now: float) -> Actions:
        """A write was not, and will not be, applied. `error` is what the members are told who waited for it."""
        self._writes.failed(number, error, now)
        return self._act()

    def assigned(self, generation: int, assignments: Mapping[str, bytes], *, follow_up: bool = False) -> Actions:
        """Take an assignment that was asked for. `follow_up`: it withholds partitions that are not given up yet."""
        state = self._state
        if self._awaits_assignment(generation):
            requests.propose(state, dict(assignments), follow_up=follow_up)
        return self._act()

    def not_assigned(self, generation: int, now: float) -> Actions:
        """The assignment could not be computed: let the members join again, and one of them assign."""
        if self._awaits_assignment(generation):
            self._state.assigns_for_itself = True
            rebalance.prepare(self._state, "the service could not assign", now)
        return self._act()

    def _awaits_assignment(self, generation: int) -> bool:
        state = self._state
        awaits = state.state is ClassicState.COMPLETING_REBALANCE and state.assigned_here
        return awaits and state.generation == generation and state.proposal is None

    # --- time ------------------------------------------------------------------------------------------------------

    @property
    def wake_at(self) -> float | None:
        return self._state.timers.next()

    def tick(self, now: float) -> Actions:
        for timer in self._state.timers.pop_due(now):
            self._fire(timer, now)
        return self._act()

    def _fire(self, timer: GroupTimer | str, now: float) -> None:
        state = self._state
        match timer:
            case GroupTimer.INITIAL:
                rebalance.initial_delay_passed(state, now)
            case GroupTimer.JOIN:
                rebalance.complete(state, now)
            case GroupTimer.SYNC:
                rebalance.sync_time_passed(state, now)
            case GroupTimer.FOLLOW_UP:
                rebalance.follow_up_is_due(state, now)
            case GroupTimer.RETRY:
                pass
            case str():
                rebalance.look_at_session(state, timer, now)

    def _act(self) -> Actions:
        self._writes.flush()
        return self._state.out.take()

    # --- the end ---------------------------------------------------------------------------------------------------

    def unload(self, error: KafkaError = KafkaError.NOT_COORDINATOR) -> Actions:
        """Answer everybody who waits, because another instance leads the group now, or nobody does."""
        state = self._state
        for member in state.members:
            state.answer_join(member, JoinAnswer(error=error, member_id=member.member_id))
            state.answer_sync(member, SyncAnswer(error=error))
        state.state, state.proposal, state.static_joins, state.dirty = ClassicState.DEAD, None, [], False
        state.timers = type(state.timers)()
        return state.out.take()

    def check_delete(self) -> KafkaError:
        match self._state.state:
            case ClassicState.EMPTY if self.exists:
                return KafkaError.NONE
            case ClassicState.EMPTY | ClassicState.DEAD:
                return KafkaError.GROUP_ID_NOT_FOUND
            case _:
                return KafkaError.NON_EMPTY_GROUP

    # --- what is known ---------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is such a group. One that was asked for and that nobody ever joined does not exist."""
        state = self._state
        is_new = state.stored is None and state.state is ClassicState.EMPTY
        return not is_new or bool(state.pending) or not self._writes.is_idle

    @property
    def state(self) -> ClassicState:
        return self._state.state

    @property
    def generation(self) -> int:
        return self._state.generation

    @property
    def protocol_type(self) -> str | None:
        return self._state.protocol_type

    @property
    def uses_consumer_protocol(self) -> bool:
        return self._state.uses_consumer_protocol

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics that the members subscribe to; None: not known."""
        return self._state.topics

    @property
    def member_count(self) -> int:
        return len(self._state.members)

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing is lost if the machine is dropped and loaded again for the next request."""
        state = self._state
        return state.state is ClassicState.EMPTY and not state.pending and self._writes.is_idle

    def is_subscribed(self, topic: str) -> bool:
        """Whether members may be reading the topic. Where that is not known, consumers are assumed to."""
        topics = self._state.topics
        return topic in topics if topics is not None else self._state.uses_consumer_protocol

    def describe(self) -> ClassicGroupDescription:
        if not self.exists:
            return ClassicGroupDescription(group=self._state.group, error=KafkaError.GROUP_ID_NOT_FOUND)
        state, stable = self._state, self._state.state is ClassicState.STABLE
        protocol = (state.protocol or "") if stable else ""
        return ClassicGroupDescription(
            group=state.group,
            state=state.state,
            protocol_type=state.protocol_type or "",
            protocol=protocol,
            generation=state.generation,
            leader=state.told_leader,
            members=tuple(
                ClassicMemberDescription(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.metadata(protocol) if stable else b"",
                    assignment=member.assignment,
                )
                for member in state.members
            ),
        )
