"""Describes a group by names, in a form that a file can have, and translates it into a strategy's problem.

Members claim what they own, as Kafka's consumers do, so two may claim the same partition: the higher generation has it,
and with equal generations neither. Claims of topics or partitions that do not exist are dropped, and listed.

A rollout may be in progress in a spec; `rolled_out` adds the constraints that the service would add. A spec has no
leaving consumers. The service counts these when it estimates the size of the new deployment, so its caps for new
members may be a little smaller.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from assigner.core.planning.rollout import Rollout, applied, plan_rollout
from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition
from assigner.model.records import Consumer, GroupOptions
from assigner.strategy import NONE, BoolArray, FloatArray, IntArray, Members, Problem, Topics, name_keys

MAX_PARTITIONS = 1_000_000


class MemberSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    capacity: float = 1.0
    rack: str = ""
    topics: tuple[str, ...] = ()
    """Subscribed topics; none: all."""
    hold: bool = False
    cap: int | None = None
    load: float | None = None
    generation: int = 0
    """Decides between two members that claim the same partition: the higher generation has it."""
    deployment: str = ""
    """The deployment that the member belongs to, for rollouts; called its generation in the service's records."""
    registered_at: int = 0
    owned: dict[str, tuple[int, ...]] = {}
    standbys: dict[str, tuple[int, ...]] = {}


class TopicSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    partitions: int
    weights: tuple[float, ...] = ()
    """One per partition; none: unweighted."""
    replica_racks: tuple[tuple[str, ...], ...] = ()


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    members: tuple[MemberSpec, ...] = ()
    topics: tuple[TopicSpec, ...] = ()
    strategy: str = "sticky_balanced"
    strategy_options: dict[str, Any] = {}
    standby_count: int = 0
    copartitioned: tuple[tuple[str, ...], ...] = ()
    pinned: tuple[str, ...] = ()
    """Partitions that must stay, as `topic/number`."""
    rollout: str = ""
    """The deployment that takes over from the others, or `auto`: the one with the latest registration."""
    rollout_cap: int = 0


@dataclass(frozen=True)
class Interned:
    """A spec translated to a strategy's problem, with the names behind its numbers."""

    problem: Problem
    members: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    dropped: tuple[str, ...]
    """Claims that were ignored because they can't be true, one sentence each."""


def read(text: bytes) -> GroupSpec:
    """Parse a spec from JSON. Raises `InvalidInput` naming the field."""
    try:
        return msgspec.json.decode(text, type=GroupSpec)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise InvalidInput(f"not a group's description: {error}; see `assigner plan --help` for its form") from error


def intern(spec: GroupSpec) -> Interned:
    """Translate names to numbers, in name order, so that the order of a file does not matter."""
    return _Interner(spec).run()


class _Interner:
    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec
        self._members = sorted(spec.members, key=lambda member: member.name)
        self._topics = sorted(spec.topics, key=lambda topic: topic.name)
        _check_unique("member", [member.name for member in self._members])
        _check_unique("topic", [topic.name for topic in self._topics])
        self._first = _first_partitions(self._topics)
        self._total = sum(topic.partitions for topic in self._topics)
        self._count = {topic.name: topic.partitions for topic in self._topics}
        self._dropped: list[str] = []

    def run(self) -> Interned:
        problem = Problem(
            members=self._as_members(),
            topics=self._as_topics(),
            owner=self._owner(),
            pinned=self._pinned(),
            standbys=self._standbys(),
            standby_count=self._spec.standby_count,
            options=dict(self._spec.strategy_options),
        )
        partitions = tuple(
            TopicPartition(topic.name, number) for topic in self._topics for number in range(topic.partitions)
        )
        return Interned(problem, tuple(m.name for m in self._members), partitions, tuple(self._dropped))

    # --- members and topics ---

    def _as_members(self) -> Members:
        members = self._members
        wanted = np.ones((len(members), len(self._topics)), np.bool_)
        column = {topic.name: number for number, topic in enumerate(self._topics)}
        for row, member in enumerate(members):
            if member.topics:
                wanted[row] = [topic.name in member.topics for topic in self._topics]
                unknown = sorted(set(member.topics) - set(column))
                self._dropped += [f"{member.name} subscribes to {name}, which does not exist" for name in unknown]
        loads = [np.nan if member.load is None else member.load for member in members]
        racks = self._racks()
        return Members(
            capacity=np.array([_capacity(member) for member in members], np.float64),
            rack=np.array([racks.get(member.rack, NONE) for member in members], np.int32),
            subscription=wanted,
            hold=np.array([member.hold for member in members], np.bool_),
            cap=np.array([NONE if member.cap is None else _cap(member) for member in members], np.int32),
            load=np.array(loads, np.float64) if any(member.load is not None for member in members) else None,
            key=name_keys([member.name for member in members]),
        )

    def _racks(self) -> Mapping[str, int]:
        named = {member.rack for member in self._members if member.rack}
        named.update(rack for topic in self._topics for racks in topic.replica_racks for rack in racks)
        return {rack: number for number, rack in enumerate(sorted(named))}

    def _as_topics(self) -> Topics:
        names = [topic.name for topic in self._topics]
        sets = {name: number for number, topics in enumerate(self._spec.copartitioned) for name in topics}
        return Topics(
            partitions=np.array([topic.partitions for topic in self._topics], np.int32),
            weight=self._weights(),
            copartition=np.array([sets.get(name, NONE) for name in names], np.int32) if sets else None,
            replica_racks=self._replica_racks(),
            key=name_keys(names),
        )

    def _weights(self) -> FloatArray | None:
        if not any(topic.weights for topic in self._topics):
            return None
        parts: list[FloatArray] = []
        for topic in self._topics:
            if topic.weights and len(topic.weights) != topic.partitions:
                raise InvalidInput(
                    f"topic {topic.name} has {topic.partitions} partitions and {len(topic.weights)} weights; "
                    "give one weight per partition or none"
                )
            for number, weight in enumerate(topic.weights):
                _positive(f"the weight of {topic.name}/{number}", weight)
            parts.append(np.array(topic.weights or [1.0] * topic.partitions, np.float64))
        return np.concatenate(parts)

    def _replica_racks(self) -> tuple[IntArray, IntArray] | None:
        if not any(topic.replica_racks for topic in self._topics):
            return None
        number = self._racks()
        rows: list[tuple[str, ...]] = []
        for topic in self._topics:
            known = topic.replica_racks[: topic.partitions]
            rows += [*known, *[()] * (topic.partitions - len(known))]
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum([len(row) for row in rows]))).astype(np.int32)
        return starts, np.array([number[rack] for row in rows for rack in row], np.int32)

    # --- who has what ---

    def _owner(self) -> IntArray:
        owner = np.full(self._total, NONE, np.int32)
        claimed: dict[int, tuple[int, int]] = {}
        for index, member in enumerate(self._members):
            for flat in self._places(member.name, "owns", member.owned):
                held = claimed.get(flat)
                if held is None or held[0] < member.generation:
                    claimed[flat] = (member.generation, index)
                    owner[flat] = index
                elif held[0] == member.generation:
                    owner[flat] = NONE
                    self._dropped.append(
                        f"{self._name(flat)} is claimed by {self._members[held[1]].name} and by {member.name}; "
                        "it counts as unowned"
                    )
        return owner

    def _standbys(self) -> IntArray:
        holders: dict[int, list[int]] = {}
        for index, member in enumerate(self._members):
            for flat in self._places(member.name, "holds a standby of", member.standbys):
                holders.setdefault(flat, []).append(index)
        width = max((len(who) for who in holders.values()), default=0)
        standbys = np.full((self._total, width), NONE, np.int32)
        for flat, who in holders.items():
            standbys[flat, : len(who)] = who
        return standbys

    def _places(self, name: str, does: str, claims: Mapping[str, tuple[int, ...]]) -> Iterable[int]:
        for topic, numbers in sorted(claims.items()):
            count = self._count.get(topic)
            if count is None:
                self._dropped.append(f"{name} {does} {topic}, which does not exist")
                continue
            for number in sorted(set(numbers)):
                if 0 <= number < count:
                    yield self._first[topic] + number
                else:
                    self._dropped.append(f"{name} {does} {topic}/{number}, which has {count} partitions only")

    def _pinned(self) -> BoolArray:
        pinned = np.zeros(self._total, np.bool_)
        for text in self._spec.pinned:
            topic, slash, number = text.rpartition("/")
            if not slash or not number.isdecimal():
                raise InvalidInput(f"pinned {text!r} is not TOPIC/PARTITION")
            pinned[list(self._places("a pin", "names", {topic: (int(number),)}))] = True
        return pinned

    def _name(self, flat: int) -> str:
        topic = max((name for name in self._first if self._first[name] <= flat), key=lambda name: self._first[name])
        return f"{topic}/{flat - self._first[topic]}"


def _first_partitions(topics: list[TopicSpec]) -> dict[str, int]:
    first, total = {}, 0
    for topic in topics:
        if topic.partitions < 0:
            raise InvalidInput(f"topic {topic.name} has {topic.partitions} partitions; it must be 0 or more")
        first[topic.name] = total
        total += topic.partitions
        if total > MAX_PARTITIONS:
            raise InvalidInput(f"more than {MAX_PARTITIONS} partitions; split the group")
    return first


def _capacity(member: MemberSpec) -> float:
    _positive(f"the capacity of {member.name}", member.capacity)
    return member.capacity


def _positive(what: str, value: float) -> None:
    # Written so that NaN fails too.
    if not 0 < value < math.inf:
        raise InvalidInput(f"{what} is {value}; it must be finite and more than 0")


def _cap(member: MemberSpec) -> int:
    if member.cap is not None and 0 <= member.cap < 2**31:
        return member.cap
    raise InvalidInput(f"the cap of {member.name} is {member.cap}; it must be 0 or more, or left out for none")


def _check_unique(what: str, names: list[str]) -> None:
    twice = (
        {name for number, name in enumerate(names) if name in names[:number]} if len(set(names)) < len(names) else ()
    )
    if twice:
        raise InvalidInput(f"{what} {min(twice)} is there twice; name every {what} once")


def rolled_out(spec: GroupSpec, interned: Interned) -> tuple[Interned, Rollout | None]:
    """Add the rollout's constraints, if one is in progress. A member's own cap replaces the rollout's."""
    if spec.rollout_cap < 0:
        raise InvalidInput(f"rollout_cap is {spec.rollout_cap}; it must be 0 (a fair share) or more")
    options = GroupOptions(rollout=spec.rollout, rollout_cap=spec.rollout_cap)
    partitions = {topic.name: topic.partitions for topic in spec.topics}
    unit = max(map(len, spec.copartitioned), default=1)
    members = _consumers(spec)
    rollout = plan_rollout(members, members, options, partitions, unit=unit)
    if rollout is None:
        return interned, None
    own = interned.problem.members.cap != NONE
    rollout = replace(rollout, cap=np.where(own, NONE, rollout.cap).astype(np.int32))
    return replace(interned, problem=applied(interned.problem, rollout)), rollout


def _consumers(spec: GroupSpec) -> list[Consumer]:
    """The members as consumers, in the order of the problem's rows."""
    return [
        Consumer(
            consumer_name=member.name,
            generation=member.deployment,
            registered_at=member.registered_at,
            capacity=member.capacity,
            topics=member.topics,
        )
        for member in sorted(spec.members, key=lambda member: member.name)
    ]
