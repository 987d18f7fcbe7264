"""Assigns partitions to the consumers of a classic group by the group's strategy, in place of one of its members.

What the members say becomes a problem of `assigner.strategy`, and the solution an assignment per member. So classic
members get what other members of groups get: few moves, racks, co-partitioned topics. Who owns what now is

- under an eager protocol what the generation before assigned, for members give up everything before they join;
- under a cooperative protocol what they say they own. A partition that goes to another member is withheld in this
  generation if anybody says so: its owner sees that it is gone from its assignment, and gives it up. The next
  generation assigns it, which is why one has to follow.

A static member that did not join in time may still work with what it has, so it keeps that and gets nothing more, until
it joins or its session ends. User data of members' own assignors is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from assigner.core.kafka_groups.classic.actions import Assign, Subscriber
from assigner.core.kafka_groups.classic.consumer_protocol import (
    LATEST,
    ConsumerAssignment,
    Subscription,
    Unreadable,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from assigner.core.whatif.group_spec import GroupSpec, Interned, MemberSpec, TopicSpec, intern
from assigner.model.records import GroupOptions, TopicConfig
from assigner.strategy import NONE, Problem, Solution

COOPERATIVE = "cooperative"
"""Part of the name of every cooperative protocol, such as `cooperative-sticky`; the others are eager."""

Owned = Mapping[str, tuple[int, ...]]

_CERTAIN = 2**31
"""Above every generation that a member may name."""


class ServerAssignment(msgspec.Struct, frozen=True):
    assignments: dict[str, bytes]
    """By member id, of every member."""
    withheld: int
    """Partitions that nobody gets in this generation, because their owners have yet to give them up."""
    moved: int
    """Partitions that go, or are to go, from one member to another."""
    unassigned: int
    """Partitions of the topics that nobody may have."""

    @property
    def follow_up(self) -> bool:
        return self.withheld > 0


@dataclass(frozen=True)
class ServerProblem:
    """A generation as a problem, with the names behind its numbers."""

    task: Assign
    interned: Interned
    subscriptions: Mapping[str, Subscription]
    strategy: str

    @property
    def problem(self) -> Problem:
        return self.interned.problem

    @property
    def is_cooperative(self) -> bool:
        return COOPERATIVE in self.task.protocol


def problem_of(task: Assign, topics: Iterable[TopicConfig], options: GroupOptions) -> ServerProblem:
    """Translate what the members say. `topics`: at least those that they subscribe to, as far as they exist. Raises
    `Unreadable` for a subscription that can't be read, `InvalidInput` for topics that no plan can hold."""
    subscriptions = {member.member_id: decode_subscription(member.metadata) for member in task.members}
    wanted = {topic for subscription in subscriptions.values() for topic in subscription.topics}
    specs = tuple(_topic(config) for config in topics if config.topic in wanted)
    cooperative = COOPERATIVE in task.protocol
    # A description without topics means all of them, and a subscription without topics none.
    members = [member for member in task.members if subscriptions[member.member_id].topics]
    described = tuple(_member(member, subscriptions[member.member_id], cooperative) for member in members)
    spec = GroupSpec(
        members=described,
        topics=specs,
        pinned=_pinned(described, {topic.name: topic.partitions for topic in specs}),
        strategy=options.strategy,
        strategy_options=options.strategy_options,
        copartitioned=_copartitioned(options, {topic.name: topic.partitions for topic in specs}),
    )
    return ServerProblem(task, intern(spec), subscriptions, options.strategy)


def _topic(config: TopicConfig) -> TopicSpec:
    return TopicSpec(name=config.topic, partitions=config.partition_count, replica_racks=config.replica_racks)


def _member(member: Subscriber, subscription: Subscription, cooperative: bool) -> MemberSpec:
    says = cooperative and member.has_joined
    return MemberSpec(
        name=member.member_id,
        rack=subscription.rack or "",
        topics=tuple(dict.fromkeys(subscription.topics)),
        hold=not member.has_joined,
        # Of two that say they own a partition, one has missed a generation. What was assigned last is certain.
        generation=subscription.generation if says else _CERTAIN,
        owned=dict(_merged(subscription.owned) if says else _assigned(member.previous)),
    )


def _pinned(members: Iterable[MemberSpec], partitions: Mapping[str, int]) -> tuple[str, ...]:
    """What members on hold have, of the topics that they still want."""
    return tuple(
        f"{topic}/{number}"
        for member in members
        if member.hold
        for topic, numbers in member.owned.items()
        if topic in member.topics
        for number in numbers
        if 0 <= number < partitions.get(topic, 0)
    )


def _assigned(previous: bytes) -> Owned:
    try:
        return _merged(decode_assignment(previous).partitions) if previous else {}
    except Unreadable:
        # A member assigned it, by a version of its own: it says nothing about who has what.
        return {}


def _merged(partitions: Iterable[tuple[str, tuple[int, ...]]]) -> Owned:
    found: dict[str, tuple[int, ...]] = {}
    for topic, numbers in partitions:
        found[topic] = (*found.get(topic, ()), *numbers)
    return found


def _copartitioned(options: GroupOptions, partitions: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    """The sets of topics that can move as one: those that the members subscribe to, with as many partitions each."""
    sets: list[tuple[str, ...]] = []
    for topics in options.copartitioned:
        known = tuple(topic for topic in topics if topic in partitions)
        if len(known) > 1 and len({partitions[topic] for topic in known}) == 1:
            sets.append(known)
    return tuple(sets)


def assignment_of(server: ServerProblem, solution: Solution) -> ServerAssignment:
    """Translate the solution into what each member is sent."""
    names, claims = server.interned.members, _claims(server)
    given: dict[str, dict[str, list[int]]] = {name: {} for name in server.subscriptions}
    withheld = moved = unassigned = 0
    owners_now = zip(server.problem.owner.tolist(), solution.owner.tolist(), strict=True)
    for tp, (before, owner) in zip(server.interned.partitions, owners_now, strict=True):
        moved += before not in (NONE, owner)
        if owner == NONE:
            unassigned += 1
            continue
        owners = claims.get((tp.topic, tp.partition), ())
        if owners and names[owner] not in owners:
            withheld += 1
        else:
            given[names[owner]].setdefault(tp.topic, []).append(tp.partition)
    return ServerAssignment(
        {name: _encoded(server.subscriptions[name], partitions) for name, partitions in given.items()},
        withheld,
        moved,
        unassigned,
    )


def _claims(server: ServerProblem) -> dict[tuple[str, int], set[str]]:
    """Who says that it owns a partition, if they give up partitions only once they are told to."""
    claims: dict[tuple[str, int], set[str]] = {}
    if not server.is_cooperative:
        return claims
    for member in server.task.members:
        said = _merged(server.subscriptions[member.member_id].owned)
        for topic, numbers in (said if member.has_joined else _assigned(member.previous)).items():
            for number in numbers:
                claims.setdefault((topic, number), set()).add(member.member_id)
    return claims


def _encoded(subscription: Subscription, partitions: Mapping[str, list[int]]) -> bytes:
    version = min(subscription.version, LATEST)
    ordered = tuple((topic, tuple(numbers)) for topic, numbers in sorted(partitions.items()))
    return encode_assignment(ConsumerAssignment(partitions=ordered, version=version))
