"""Lists, describes and deletes assigner groups for Kafka's tools: `kafka-consumer-groups` and the admin clients.

A consumer of the gRPC API is shown as a member too. Its session is a secret, so its member id is what identifies the
session in logs; a Kafka member's session is the id that its client shows everywhere, and is shown as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from assigner.api import GroupSummary
from assigner.auth.actions import Action
from assigner.core.group import GroupState
from assigner.core.kafka_groups.modern.requests import instance_id_of
from assigner.errors import AssignerError, FailedPrecondition, UnknownGroup, UnknownTopic
from assigner.gateway.groups import Listed
from assigner.gateway.modern.encoding import GroupView, MemberView, description
from assigner.gateway.modern.members import Members
from assigner.gateway.modern.parts import InstanceParts
from assigner.gateway.requests import Entity, Request
from assigner.logs import get_logger
from assigner.model.kafka_groups import (
    ClassicGroupDescription,
    KafkaError,
    OffsetDeletion,
    OffsetDeletionAnswer,
    PartitionError,
)
from assigner.model.keys import TopicPartition
from assigner.model.names import org_and_group, qualified_group, session_digest
from assigner.model.records import KAFKA_MEMBER, Consumer, Status
from assigner.storage.kinds import ASSIGNER

CONSUMER = "consumer"
EMPTY, STABLE, RECONCILING = "Empty", "Stable", "Reconciling"
_MOST_DELETIONS = 1_000
"""Calls that the deletion of one group may take, each of which deletes thousands of records."""

log = get_logger("assigner.gateway.modern")


class ModernViews:
    def __init__(self, parts: InstanceParts, members: Members) -> None:
        self._parts = parts
        self._members = members

    # --- looking -------------------------------------------------------------------------------------------------

    async def describe_modern(self, request: Request, entity: Entity) -> Entity:
        """ConsumerGroupDescribe."""
        found = [await self._view(request, group) for group in entity.group_ids]
        return description(request.version, found, self._parts.topics)

    async def _view(self, request: Request, group: str) -> tuple[GroupView, GroupState | None]:
        if reason := request.client.reason(Action.DESCRIBE_GROUP, group=group):
            return GroupView(group=group, error=KafkaError.GROUP_AUTHORIZATION_FAILED, message=reason), None
        qualified = qualified_group(request.client.org, group)
        try:
            async with self._parts.mirrors.of(qualified) as mirror:
                if self._parts.directory.mirrored_kind(qualified) != ASSIGNER:
                    message = f"Group {group} is not a consumer group."
                    return GroupView(group=group, error=KafkaError.GROUP_ID_NOT_FOUND, message=message), None
                return self._view_of(group, mirror.state), mirror.state
        except UnknownGroup:
            message = f"Group {group} not found."
            return GroupView(group=group, error=KafkaError.GROUP_ID_NOT_FOUND, message=message), None
        except AssignerError as error:
            log.warning("group_not_described", group=qualified, error=str(error))
            message = str(error)
            return GroupView(group=group, error=KafkaError.COORDINATOR_LOAD_IN_PROGRESS, message=message), None

    def _view_of(self, group: str, state: GroupState) -> GroupView:
        return GroupView(
            group=group,
            state=EMPTY if not state.consumers else RECONCILING if state.handoffs else STABLE,
            generation=state.plan.generation,
            strategy=state.options.strategy,
            members=tuple(self._member(state, state.consumers[name].record) for name in sorted(state.consumers)),
        )

    def _member(self, state: GroupState, record: Consumer) -> MemberView:
        name, is_kafka = record.consumer_name, record.kind == KAFKA_MEMBER
        here = self._members.get(state.keys.group, record.session)
        owned, leaving = state.owned[name], state.outgoing[name]
        return MemberView(
            member_id=record.session if is_kafka else session_digest(record.session) or name,
            instance_id=instance_id_of(record) if is_kafka else name,
            rack=record.rack,
            epoch=here.machine.epoch if here else state.plan.generation,
            client_id=record.client_id or name,
            host=f"/{record.host}" if record.host else record.address,
            topics=record.topics,
            pattern=record.pattern,
            assigned=tuple(sorted(owned)),
            target=tuple(sorted(owned - leaving | state.incoming[name])) if record.status is Status.READY else (),
        )

    async def listed(self, request: Request) -> Sequence[Listed]:
        ours = self._parts.directory.names(ASSIGNER)
        found = []
        for one in await self._parts.administration.groups():
            org, group = org_and_group(one.group)
            if org == request.client.org and one.group in ours:
                found.append(Listed(group=group, state=_state_of(one), kind=CONSUMER))
        return found

    async def describe(self, request: Request, group: str) -> ClassicGroupDescription:
        """What the call for classic groups says of such a group: that it is not one."""
        return ClassicGroupDescription(group=group, error=KafkaError.GROUP_ID_NOT_FOUND)

    # --- deleting ------------------------------------------------------------------------------------------------

    async def delete(self, request: Request, group: str) -> KafkaError:
        qualified = qualified_group(request.client.org, group)
        try:
            for _ in range(_MOST_DELETIONS):
                _, more = await self._parts.administration.delete_group(qualified, force=False)
                if not more:
                    return KafkaError.NONE
        except UnknownGroup:
            return KafkaError.GROUP_ID_NOT_FOUND
        except FailedPrecondition as error:
            log.info("group_not_deleted", group=qualified, error=str(error))
            return KafkaError.NON_EMPTY_GROUP
        return KafkaError.COORDINATOR_LOAD_IN_PROGRESS

    async def delete_offsets(self, request: Request, call: OffsetDeletion) -> OffsetDeletionAnswer:
        qualified = qualified_group(request.client.org, call.group)
        try:
            async with self._parts.mirrors.of(qualified) as mirror:
                subscribed = _subscribed(mirror.state)
                wanted = [TopicPartition(topic, partition) for topic, partition in call.partitions]
                errors = {tp: _deletion_error(mirror.state, subscribed, tp) for tp in wanted}
            gone = dict.fromkeys(tp for tp, error in errors.items() if not error)
            if gone:
                await self._parts.administration.set_offsets(qualified, gone, force=False)
        except (UnknownGroup, UnknownTopic):
            return OffsetDeletionAnswer(error=KafkaError.GROUP_ID_NOT_FOUND)
        except FailedPrecondition as error:
            log.info("offsets_not_deleted", group=qualified, error=str(error))
            return OffsetDeletionAnswer(error=KafkaError.NON_EMPTY_GROUP)
        return OffsetDeletionAnswer(
            partitions=tuple(PartitionError(tp.topic, tp.partition, error) for tp, error in errors.items())
        )


def _state_of(summary: GroupSummary) -> str:
    return EMPTY if not summary.consumers else RECONCILING if summary.handoffs else STABLE


def _subscribed(state: GroupState) -> frozenset[str]:
    """The topics that some member of the group subscribes to."""
    records: Iterable[Consumer] = (one.record for one in state.consumers.values())
    return frozenset(topic for record in records for topic in state.topics if record.wants(topic))


def _deletion_error(state: GroupState, subscribed: frozenset[str], tp: TopicPartition) -> KafkaError:
    if tp.topic in subscribed:
        return KafkaError.GROUP_SUBSCRIBED_TO_TOPIC
    topic = state.topics.get(tp.topic)
    exists = topic is not None and 0 <= tp.partition < topic.record.partition_count
    return KafkaError.NONE if exists else KafkaError.UNKNOWN_TOPIC_OR_PARTITION
