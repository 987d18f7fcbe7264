"""Simulated Kafka clients of a classic group: each does what a real one does next, one request at a time.

They join, ask for their assignment, send heartbeats, and react to each code as Kafka's clients do. A test decides when
each of them gets its turn: one that gets none is frozen, and an answer may wait for it for any time."""

from __future__ import annotations

from enum import Enum, auto

from assigner.core.kafka_groups.classic.consumer_protocol import (
    ConsumerAssignment,
    Subscription,
    Unreadable,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from assigner.model.kafka_groups import JoinAnswer, JoinedMember, KafkaError, SyncAnswer
from tests.support.core.classic_scene import ClassicScene

PARTITIONS = 6
TOPIC = "orders"
Owned = frozenset[int]


class Next(Enum):
    JOIN = auto()
    SYNC = auto()
    HEARTBEAT = auto()
    NOTHING = auto()
    """It has given up, or was closed."""


class ClassicClient:
    def __init__(self, name: str, instance_id: str | None, *, cooperative: bool, version: int) -> None:
        """`version`: of its JoinGroup."""
        self.name = name
        self.instance_id = instance_id
        self.cooperative = cooperative
        self.version = version
        self.next = Next.JOIN
        self.member_id = ""
        self.generation = -1
        self.owned: Owned = frozenset()
        """What it works on."""
        self.waiter: int | None = None
        self.told: JoinAnswer | None = None
        """The generation that it is about to ask its assignment of."""
        self.eagerness = 0
        """Changes its subscription, as a change of its topics would."""

    @property
    def protocols(self) -> tuple[tuple[str, bytes], ...]:
        owned = ((TOPIC, tuple(sorted(self.owned))),) if self.cooperative and self.owned else ()
        subscription = Subscription(
            topics=(TOPIC,),
            owned=owned,
            generation=self.generation,
            user_data=bytes([self.eagerness % 256]),
        )
        return (("cooperative-sticky" if self.cooperative else "range", encode_subscription(subscription)),)

    def step(self, scene: ClassicScene) -> None:
        """Take the answer that is there, or send the next request."""
        if self.waiter is not None:
            answer = scene.answers.get(self.waiter)
            if answer is not None:
                self.waiter = None
                self._take(answer)
            return
        match self.next:
            case Next.JOIN:
                if not self.cooperative:
                    self.owned = frozenset()
                self.waiter = scene.join(
                    self.member_id,
                    instance_id=self.instance_id,
                    protocols=self.protocols,
                    requires_known_member=self.version >= 4,
                    can_skip_assignment=self.version >= 9,
                    client_id=self.name,
                )
            case Next.SYNC:
                assert self.told is not None
                self.waiter = scene.sync(
                    self.member_id, self.generation, instance_id=self.instance_id, assignments=self._assignments()
                )
            case Next.HEARTBEAT:
                self._react(scene.heartbeat(self.member_id, self.generation, self.instance_id))
            case Next.NOTHING:
                pass

    def _assignments(self) -> tuple[tuple[str, bytes], ...]:
        """Assign everybody a share, if this is the leader."""
        told = self.told
        if told is None or told.leader != self.member_id or told.skip_assignment:
            return ()
        members = sorted(told.members, key=lambda member: member.member_id)
        return tuple((member.member_id, _share(number, members)) for number, member in enumerate(members))

    def _take(self, answer: JoinAnswer | SyncAnswer) -> None:
        if answer.error is KafkaError.MEMBER_ID_REQUIRED:
            assert isinstance(answer, JoinAnswer)
            self.member_id = answer.member_id
        elif answer.error:
            self._react(answer.error)
        elif isinstance(answer, JoinAnswer):
            self.member_id, self.generation = answer.member_id, answer.generation
            self.told, self.next = answer, Next.SYNC
        else:
            self._take_assignment(answer.assignment)

    def _take_assignment(self, assignment: bytes) -> None:
        assigned = partitions_of(assignment)
        revoked = self.owned - assigned
        self.owned, self.next = assigned, Next.HEARTBEAT
        if self.cooperative and revoked:
            self.next = Next.JOIN

    def _react(self, error: KafkaError) -> None:
        match error:
            case KafkaError.NONE:
                return
            case KafkaError.FENCED_INSTANCE_ID | KafkaError.INCONSISTENT_GROUP_PROTOCOL:
                self.next, self.owned = Next.NOTHING, frozenset()
                return
            case KafkaError.UNKNOWN_MEMBER_ID:
                self.member_id, self.generation, self.owned = "", -1, frozenset()
            case KafkaError.ILLEGAL_GENERATION:
                self.generation, self.owned = -1, frozenset()
        self.next = Next.JOIN


def _share(number: int, members: list[JoinedMember]) -> bytes:
    mine = tuple(range(number, PARTITIONS, len(members)))
    return encode_assignment(ConsumerAssignment(partitions=((TOPIC, mine),) if mine else (), version=0))


def partitions_of(assignment: bytes) -> Owned:
    try:
        read = decode_assignment(assignment).partitions if assignment else ()
    except Unreadable:
        return frozenset()
    return frozenset(number for _, numbers in read for number in numbers)
