"""Moves a classic group from one generation to the next: who is waited for, for how long, and who is left out.

    Empty                          a member joins                              PreparingRebalance
    PreparingRebalance             all have joined, or the time is over        CompletingRebalance; nobody left: Empty
    CompletingRebalance            the assignment is written                   Stable
    CompletingRebalance, Stable    a member comes, goes, changes, or is late   PreparingRebalance

A rebalance completes with the event that completes it: the last JoinGroup, a member that leaves or dies, a timer. An
empty group waits for `initial_delay` in any case, so that members that start together share one generation. Dynamic
members that have not joined in time are removed. Static ones stay, with whatever the leader assigns to them, until
their session ends or they miss the time to ask for it.

The generation that begins must not have been told to anybody before, so its number is reserved in the store first;
see `writes`.
"""

from __future__ import annotations

from assigner.core.kafka_groups.classic.actions import Assign, GenerationBegan, RebalanceBegan, Subscriber
from assigner.core.kafka_groups.classic.consumer_protocol import Unreadable, decode_subscription
from assigner.core.kafka_groups.classic.state import GroupState, GroupTimer
from assigner.model.kafka_groups import ClassicGroupRecord, ClassicState, KafkaError, SyncAnswer


def prepare_or_complete(group: GroupState, reason: str, now: float) -> None:
    """Begin a rebalance, or complete the one that is on if nobody is waited for any more."""
    if group.state in (ClassicState.EMPTY, ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
        prepare(group, reason, now)
    else:
        complete_if_joined(group, now)


def prepare(group: GroupState, reason: str, now: float, error: KafkaError = KafkaError.REBALANCE_IN_PROGRESS) -> None:
    """Begin a rebalance. Who waits for its assignment of the present generation is told `error`."""
    for member in group.members:
        if group.answer_sync(member, SyncAnswer(error=error)):
            group.renew(member, now)
    group.to_sync.clear()
    for timer in (GroupTimer.SYNC, GroupTimer.FOLLOW_UP):
        group.timers.clear(timer)
    group.proposal, group.follow_up, group.static_joins = None, False, []
    group.was_empty = group.state is ClassicState.EMPTY
    group.state = ClassicState.PREPARING_REBALANCE
    group.dirty = group.dirty or not group.next_is_reserved
    group.out.events.append(RebalanceBegan(group.generation, reason))
    if group.was_empty:
        _wait_for_more(group, now)
    elif group.all_joined:
        complete(group, now)
    else:
        group.timers.set(GroupTimer.JOIN, now + group.members.rebalance_timeout / 1000)


def _wait_for_more(group: GroupState, now: float) -> None:
    delay = group.limits.initial_delay
    group.grew = False
    group.initial_left = max(group.members.rebalance_timeout - delay, 0)
    group.timers.set(GroupTimer.INITIAL, now + delay / 1000)


def initial_delay_passed(group: GroupState, now: float) -> None:
    """Wait once more if members have joined meanwhile, at most for the rebalance timeout in all."""
    if not (group.grew and group.initial_left):
        complete(group, now)
        return
    delay = min(group.limits.initial_delay, group.initial_left)
    group.grew = False
    group.initial_left -= delay
    group.timers.set(GroupTimer.INITIAL, now + delay / 1000)


def complete_if_joined(group: GroupState, now: float) -> None:
    if group.state is ClassicState.PREPARING_REBALANCE and not group.was_empty and group.all_joined:
        complete(group, now)


def complete_if_alone(group: GroupState, now: float) -> None:
    """Complete the join phase after a member is gone that was waited for, also the first one of an empty group."""
    if group.state is ClassicState.PREPARING_REBALANCE and group.all_joined:
        complete(group, now)


def complete(group: GroupState, now: float) -> None:
    """End the join phase: remove dynamic members that have not joined, and begin the next generation."""
    _clear_join_timers(group)
    for member in [one for one in group.members if not one.awaits_join and one.instance_id is None]:
        group.remove(member.member_id, "it did not join before the rebalance timeout")
    if len(group.members) and not _elect_leader(group):
        group.timers.set(GroupTimer.JOIN, now + max(group.members.rebalance_timeout / 1000, 1.0))
        return
    if len(group.members) and not group.next_is_reserved:
        group.postponed = group.dirty = True
        return
    _begin_generation(group, now)


def _clear_join_timers(group: GroupState) -> None:
    group.postponed = False
    group.timers.clear(GroupTimer.JOIN)
    group.timers.clear(GroupTimer.INITIAL)


def _elect_leader(group: GroupState) -> bool:
    """Keep the leader, or take the first member that has joined. False if none has: those left are static."""
    leader = group.members.get(group.leader or "")
    if leader is None or not leader.awaits_join:
        leader = next((member for member in group.members if member.awaits_join), None)
    if leader is None:
        return False
    group.leader = leader.member_id
    return True


def _begin_generation(group: GroupState, now: float) -> None:
    group.generation = group.next_generation
    group.protocol = group.members.elected_protocol()
    group.note_topics()
    group.to_sync.clear()
    if not len(group.members):
        group.state, group.leader, group.assigned_here, group.dirty = ClassicState.EMPTY, None, False, True
        group.settled = ClassicGroupRecord(generation=group.generation, protocol_type=group.protocol_type)
        return
    group.state = ClassicState.COMPLETING_REBALANCE
    subscribers = _subscribers(group)
    group.assigned_here, group.assigns_for_itself = subscribers is not None, False
    if subscribers is not None:
        group.out.assign = Assign(group.generation, group.protocol or "", subscribers)
    for member in group.members:
        group.answer_join(member, group.generation_answer(member))
        group.renew(member, now)
        member.is_new = False
        group.to_sync.add(member.member_id)
    group.timers.set(GroupTimer.SYNC, now + group.members.rebalance_timeout / 1000)
    group.out.events.append(
        GenerationBegan(group.generation, len(group.members), group.protocol or "", group.told_leader)
    )


def _subscribers(group: GroupState) -> tuple[Subscriber, ...] | None:
    """The members, for the service to assign to. None if a member has to assign, because the service is not to, or
    can't understand what one of them subscribes to."""
    if not group.limits.server_assigns or not group.uses_consumer_protocol or group.assigns_for_itself:
        return None
    found = []
    for member in group.members:
        metadata = member.metadata(group.protocol)
        try:
            decode_subscription(metadata)
        except Unreadable:
            return None
        found.append(Subscriber(member.member_id, member.instance_id, metadata, member.assignment, member.awaits_join))
    return tuple(found)


# --- timers ------------------------------------------------------------------------------------------------------


def look_at_session(group: GroupState, member_id: str, now: float) -> None:
    """The time has come to see whether a member's session, or the wait for a pending one, is over."""
    if member_id in group.pending:
        group.forget_pending(member_id)
        complete_if_alone(group, now)
        return
    member = group.members.get(member_id)
    if member is None or member.is_held:
        return
    if member.deadline > now:
        group.timers.set(member_id, member.deadline)
        return
    group.remove(member_id, "its session has ended")
    if group.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
        prepare(group, f"the session of member {member_id} has ended", now)
    else:
        complete_if_alone(group, now)


def sync_time_passed(group: GroupState, now: float) -> None:
    """Remove who has not asked for the assignment. If that is the leader, there is none."""
    if group.all_synced:
        return
    late = sorted(group.to_sync)
    for member_id in late:
        group.remove(member_id, "it did not ask for its assignment before the rebalance timeout")
    prepare(group, f"{len(late)} members did not ask for their assignment in time", now)


def follow_up_is_due(group: GroupState, now: float) -> None:
    """Rebalance again for the partitions that were withheld, once everybody knows what to give up."""
    if group.state is not ClassicState.STABLE:
        return
    if group.all_synced:
        prepare(group, "partitions were withheld until their owners gave them up", now)
    else:
        group.timers.set(GroupTimer.FOLLOW_UP, now + group.limits.follow_up_delay / 1000)
