"""ConsumerGroupHeartbeats and what goes with them one by one, over sockets, to a broker or to a gateway.

A `ModernActor` is a Kafka 4 member without a will: a test says what it sends next. Answers are noted in words that do
not depend on who gave them: an epoch is noted as `same`, `up` or `down` beside the member's, or as it is where it is no
member's.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import Any

from assigner.gateway.codec import make, milliseconds, nested, request_class
from assigner.model.kafka_groups import KafkaError
from tests.support.gateway.classic_dialogue import PATIENCE, Actor, Front

HEARTBEAT, DESCRIBE, COMMIT, FETCH, FIND_COORDINATOR = 68, 69, 8, 9, 10
NOT_READY = frozenset({14, 15, 16})
UNKNOWN_ID = uuid.UUID(int=12345)


class ModernFront(Front):
    """A broker or a gateway, with the id of the topic."""

    topic_id: uuid.UUID

    def member(self, name: str, instance_id: str | None = None) -> ModernActor:
        return ModernActor(self, self.actor(name, instance_id), f"id-of-{name}")

    def until_ready(self) -> None:
        scout = self.actor("scout")
        deadline = time.monotonic() + PATIENCE
        while True:
            # A broker makes the topic of its groups when it is first asked for a coordinator.
            scout.send(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=(self.group,))
            scout.receive()
            scout.send(HEARTBEAT, 1, **_heartbeat(self.group, "scout", 5, None))
            if int(scout.receive().error_code.value) not in NOT_READY:
                return
            assert time.monotonic() < deadline
            time.sleep(0.1)


class ModernActor:
    def __init__(self, front: ModernFront, wire: Actor, member_id: str) -> None:
        self.front = front
        self.wire = wire
        self.name = wire.name
        self.member_id = member_id
        self.instance_id = wire.instance_id
        self.epoch = 0
        self.has: frozenset[int] = frozenset()

    # --- heartbeats ------------------------------------------------------------------------------------------------

    def beat(self, what: str, epoch: int | None = None, *, owned: Iterable[int] | None = None, **fields: Any) -> None:
        """One heartbeat, whose answer is noted and taken."""
        asked = self.epoch if epoch is None else epoch
        topics = None if owned is None else self._topics(owned)
        given = {**_heartbeat(self.front.group, self.member_id, asked, topics), **fields}
        self.wire.send(HEARTBEAT, 1, **given)
        answer = self.wire.receive()
        told = None
        if answer.assignment is not None:
            told = frozenset(one for topic in answer.assignment.topic_partitions for one in topic.partitions)
        error = KafkaError(answer.error_code.value).name
        self.front.notes.append(
            (self.name, what, error, self._relation(answer.member_epoch), None if told is None else sorted(told))
        )
        if error == "NONE" and answer.member_epoch > 0:
            self.epoch = answer.member_epoch
            self.has = self.has if told is None else told

    def join(self, what: str = "joins", **fields: Any) -> None:
        self.epoch = 0
        self.beat(what, 0, owned=(), **{**self.full_fields(), **fields})

    def full(self, what: str = "says everything", epoch: int | None = None) -> None:
        self.beat(what, epoch, owned=self.has, **self.full_fields())

    def full_fields(self) -> dict[str, Any]:
        return {
            "instance_id": self.instance_id,
            "rebalance_timeout": milliseconds(300_000),
            "subscribed_topic_names": (self.front.topic,),
            "subscribed_topic_regex": "",
        }

    def _relation(self, epoch: int) -> str:
        if epoch <= 0:
            return str(epoch)
        return "same" if epoch == self.epoch else "up" if epoch > self.epoch else "down"

    def _topics(self, partitions: Iterable[int]) -> tuple[Any, ...]:
        numbers = tuple(sorted(partitions))
        kind = nested(request_class(HEARTBEAT, 1), "TopicPartitions")
        return (make(kind, topic_id=self.front.topic_id, partitions=numbers),) if numbers else ()

    # --- offsets ---------------------------------------------------------------------------------------------------

    def commit(
        self,
        what: str,
        version: int = 9,
        *,
        epoch: int | None = None,
        member_id: str | None = None,
        topic: str | None = None,
        topic_id: uuid.UUID | None = None,
        partition: int = 0,
    ) -> None:
        schema = request_class(COMMIT, version)
        one = make(
            nested(schema, "OffsetCommitRequestPartition"),
            partition_index=partition,
            committed_offset=42,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        named = make(
            nested(schema, "OffsetCommitRequestTopic"),
            name=topic or self.front.topic,
            topic_id=topic_id or self.front.topic_id,
            partitions=(one,),
        )
        self.wire.send(
            COMMIT,
            version,
            group_id=self.front.group,
            generation_id_or_member_epoch=self.epoch if epoch is None else epoch,
            member_id=self.member_id if member_id is None else member_id,
            group_instance_id=None,
            topics=(named,),
        )
        (answered,) = self.wire.receive().topics
        codes = [KafkaError(each.error_code.value).name for each in answered.partitions]
        self.front.notes.append((self.name, what, *codes))

    def fetch(
        self,
        what: str,
        version: int = 9,
        *,
        member: bool = True,
        epoch: int | None = None,
        topic_id: uuid.UUID | None = None,
        partition: int = 0,
        group: str | None = None,
    ) -> None:
        schema = request_class(FETCH, version)
        topic = make(
            nested(schema, "OffsetFetchRequestTopics"),
            name=self.front.topic,
            topic_id=topic_id or self.front.topic_id,
            partition_indexes=(partition,),
        )
        asked = make(
            nested(schema, "OffsetFetchRequestGroup"),
            group_id=group or self.front.group,
            member_id=self.member_id if member else None,
            member_epoch=(self.epoch if epoch is None else epoch) if member else -1,
            topics=(topic,),
        )
        self.wire.send(FETCH, version, groups=(asked,), require_stable=False)
        (answered,) = self.wire.receive().groups
        found = [
            (one.committed_offset, KafkaError(one.error_code.value).name)
            for each in answered.topics
            for one in each.partitions
        ]
        self.front.notes.append((self.name, what, KafkaError(answered.error_code.value).name, found))

    # --- descriptions ----------------------------------------------------------------------------------------------

    def describe(self, what: str, group: str | None = None) -> None:
        asked = (group or self.front.group,)
        self.wire.send(DESCRIBE, 1, group_ids=asked, include_authorized_operations=False)
        (found,) = self.wire.receive().groups
        members = [
            (
                one.member_id,
                one.instance_id,
                one.rack_id,
                one.subscribed_topic_names,
                one.member_type,
                [sorted(each.partitions) for each in one.assignment.topic_partitions],
            )
            for one in found.members
        ]
        self.front.notes.append((self.name, what, KafkaError(found.error_code.value).name, found.group_state, members))


def _heartbeat(group: str, member_id: str, epoch: int, topics: tuple[Any, ...] | None) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": member_id,
        "member_epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": milliseconds(-1),
        "subscribed_topic_names": None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": topics,
    }
