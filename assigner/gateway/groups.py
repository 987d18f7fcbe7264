"""Answers the calls that groups of both kinds have: commits and fetches of offsets, listing, describing, deleting.

Decodes them from any version, asks which kind the group is of, has the groups of that kind decide, and encodes the
answer. A request of several groups is answered group by group. What a client may not do is answered with 30, and groups
that it may not see are not listed.

`KafkaGroups` is what groups of one kind answer. Calls of a kind's own protocol are not here: see `modern`, `classic`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

import msgspec

from assigner.auth.actions import Action
from assigner.auth.rules import may_see
from assigner.core.group import GroupState
from assigner.errors import AssignerError, SourceUnavailable
from assigner.gateway.codec import NO_TIME, Schema, error_code, make, nested, response_class
from assigner.gateway.group_entities import by_topic, described_group, fetched_offset
from assigner.gateway.requests import Entity, HandledApi, Handlers, Request
from assigner.gateway.topics import KafkaTopics
from assigner.logs import get_logger
from assigner.model.kafka_groups import (
    ClassicCommit,
    ClassicFetch,
    ClassicGroupDescription,
    ClassicOffset,
    CommitAnswer,
    FetchAnswer,
    FetchedOffset,
    KafkaError,
    OffsetDeletion,
    OffsetDeletionAnswer,
    PartitionError,
)
from assigner.model.names import qualified_group

OFFSET_COMMIT, OFFSET_FETCH, DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE = 8, 9, 15, 16, 42, 47
_KNOWS_MEMBER_EPOCHS = 9
_HAS_TOPIC_IDS = 10
_HAS_GROUPS = 8
"""The version of OffsetFetch from which on one request is about several groups."""
_NO_NAME = ""
_LISTED_WITHIN = 2.0
"""Seconds in which the list of topics is not asked for again, to leave out the offsets of deleted ones."""

log = get_logger("assigner.gateway.groups")


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a listing, under the name that clients know."""

    group: str
    protocol_type: str = "consumer"
    state: str
    kind: str
    """`classic` or `consumer`, as Kafka names the two protocols."""


class KafkaGroups(Protocol):
    """What the groups of one kind answer. Groups have the names that clients use; `request.client.org` says whose.

    What Kafka has an error code for is an answer and not raised. Who may call is checked already."""

    async def commit(self, request: Request, call: ClassicCommit) -> CommitAnswer: ...

    async def fetch(
        self, request: Request, call: ClassicFetch, member_id: str | None, member_epoch: int
    ) -> FetchAnswer: ...

    async def listed(self, request: Request) -> Sequence[Listed]: ...

    async def describe(self, request: Request, group: str) -> ClassicGroupDescription: ...

    async def delete(self, request: Request, group: str) -> KafkaError: ...

    async def delete_offsets(self, request: Request, call: OffsetDeletion) -> OffsetDeletionAnswer: ...


KindOf = Callable[[str], Awaitable[str]]
"""Qualified group -> its kind; empty: there is no such group."""
StateOf = Callable[[str], GroupState | None]
"""Qualified group -> its records, as far as they are at hand."""


class SharedCalls:
    def __init__(
        self,
        kinds: Mapping[str, KafkaGroups],
        unknown: KafkaGroups,
        kind_of: KindOf,
        topics: KafkaTopics,
        state: StateOf,
    ) -> None:
        """`kinds`: kind -> who answers for groups of it. `unknown`: who answers for groups that do not exist."""
        self._kinds = kinds
        self._unknown = unknown
        self._kind_of = kind_of
        self._topics = topics
        self._state = state

    def handlers(self) -> Handlers:
        return {
            OFFSET_COMMIT: HandledApi(2, 10, self.offset_commit),
            OFFSET_FETCH: HandledApi(1, 10, self.offset_fetch),
            DESCRIBE_GROUPS: HandledApi(0, 6, self.describe_groups),
            LIST_GROUPS: HandledApi(0, 5, self.list_groups),
            DELETE_GROUPS: HandledApi(0, 2, self.delete_groups),
            OFFSET_DELETE: HandledApi(0, 0, self.offset_delete),
        }

    async def _groups(self, request: Request, group: str) -> KafkaGroups:
        kind = await self._kind_of(qualified_group(request.client.org, group))
        return self._kinds.get(kind, self._unknown)

    # --- commits -------------------------------------------------------------------------------------------------

    async def offset_commit(self, request: Request, entity: Entity) -> Entity:
        response = response_class(OFFSET_COMMIT, request.version)
        group = _qualified(request, entity.group_id)
        state = self._state(group)
        if request.version >= _HAS_TOPIC_IDS:
            await self._topics.know(state, (topic.topic_id for topic in entity.topics if topic.topic_id))
        names = [self._name(state, topic) for topic in entity.topics]
        errors = await self._commit(request, entity, names)
        topics = []
        for topic, name in zip(entity.topics, names, strict=True):
            partitions = tuple(
                make(
                    nested(response, "OffsetCommitResponsePartition"),
                    partition_index=one.partition_index,
                    error_code=error_code(
                        KafkaError.UNKNOWN_TOPIC_ID
                        if name is None
                        else errors.get((name, one.partition_index), KafkaError.UNKNOWN_SERVER_ERROR)
                    ),
                )
                for one in topic.partitions
            )
            topic_response = nested(response, "OffsetCommitResponseTopic")
            topics.append(make(topic_response, name=name, topic_id=_topic_id(topic), partitions=partitions))
        return make(response, throttle_time=NO_TIME, topics=tuple(topics))

    async def _commit(
        self, request: Request, entity: Entity, names: Sequence[str | None]
    ) -> dict[tuple[str, int], KafkaError]:
        call = ClassicCommit(
            group=entity.group_id,
            offsets=tuple(
                ClassicOffset(
                    topic=name,
                    partition=one.partition_index,
                    offset=one.committed_offset,
                    leader_epoch=getattr(one, "committed_leader_epoch", -1),
                    metadata=one.committed_metadata,
                )
                for topic, name in zip(entity.topics, names, strict=True)
                if name is not None
                for one in topic.partitions
            ),
            member_id=entity.member_id,
            instance_id=getattr(entity, "group_instance_id", None),
            generation=entity.generation_id_or_member_epoch,
            knows_missing_groups=request.version >= _KNOWS_MEMBER_EPOCHS,
        )

        def all_with(error: KafkaError) -> CommitAnswer:
            return CommitAnswer(
                partitions=tuple(PartitionError(one.topic, one.partition, error) for one in call.offsets)
            )

        who = call.instance_id or call.member_id or request.client_id
        if request.client.reason(Action.COMMIT_OFFSETS, group=call.group, name=who):
            answer = all_with(KafkaError.GROUP_AUTHORIZATION_FAILED)
        else:
            try:
                answer = await (await self._groups(request, call.group)).commit(request, call)
            except AssignerError as error:
                answer = all_with(self._error(request, call.group, error))
        return {(one.topic, one.partition): one.error for one in answer.partitions}

    # --- fetches -------------------------------------------------------------------------------------------------

    async def offset_fetch(self, request: Request, entity: Entity) -> Entity:
        response = response_class(OFFSET_FETCH, request.version)
        if request.version >= _HAS_GROUPS:
            groups = [await self._fetch_group(request, response, group) for group in entity.groups]
            return make(response, throttle_time=NO_TIME, groups=tuple(groups))
        wanted = None if entity.topics is None else [(topic.name, topic) for topic in entity.topics]
        answer = await self._fetch(request, entity.group_id, wanted, None, -1)
        found = answer.offsets
        if answer.error and request.version == 1:
            # It has no code but those of partitions.
            found = tuple(
                FetchedOffset(topic=name, partition=partition, error=answer.error)
                for name, topic in wanted or ()
                for partition in topic.partition_indexes
            )
        kinds = nested(response, "OffsetFetchResponseTopic"), nested(response, "OffsetFetchResponsePartition")
        topics = tuple(make(kinds[0], name=name, partitions=found) for name, found in by_topic(kinds[1], found))
        return make(response, throttle_time=NO_TIME, topics=topics, error_code=error_code(answer.error))

    async def _fetch_group(self, request: Request, response: Schema, group: Any) -> Entity:
        state = self._state(_qualified(request, group.group_id))
        by_id = request.version >= _HAS_TOPIC_IDS
        if by_id:
            await self._topics.know(state, (topic.topic_id for topic in group.topics or () if topic.topic_id))
        wanted = None if group.topics is None else [(self._name(state, topic), topic) for topic in group.topics]
        member_id, epoch = getattr(group, "member_id", None), getattr(group, "member_epoch", -1)
        answer = await self._fetch(request, group.group_id, wanted, member_id, epoch)
        kinds = nested(response, "OffsetFetchResponseTopics"), nested(response, "OffsetFetchResponsePartitions")
        topics = []
        asked = {name: topic.topic_id for name, topic in wanted or ()} if by_id else {}
        for name, partitions in by_topic(kinds[1], answer.offsets):
            topic_id = asked.get(name) or self._topics.id_of(state, name) if by_id else None
            if not by_id or topic_id is not None:
                topics.append(make(kinds[0], name=name, topic_id=topic_id, partitions=partitions))
        if by_id and not answer.error:
            topics += self._unknown_ids(kinds, wanted or ())
        return make(
            nested(response, "OffsetFetchResponseGroup"),
            group_id=group.group_id,
            topics=tuple(topics),
            error_code=error_code(answer.error),
        )

    def _unknown_ids(self, kinds: tuple[Schema, Schema], wanted: Iterable[tuple[str | None, Any]]) -> list[Any]:
        found = []
        for name, topic in wanted:
            if name is None:
                unknown = (
                    FetchedOffset(topic=_NO_NAME, partition=partition, error=KafkaError.UNKNOWN_TOPIC_ID)
                    for partition in topic.partition_indexes
                )
                partitions = tuple(fetched_offset(kinds[1], one) for one in unknown)
                found.append(make(kinds[0], topic_id=topic.topic_id, partitions=partitions))
        return found

    async def _fetch(
        self,
        request: Request,
        group: str,
        wanted: Sequence[tuple[str | None, Any]] | None,
        member_id: str | None,
        epoch: int,
    ) -> FetchAnswer:
        if request.client.reason(Action.FETCH_OFFSETS, group=group):
            return FetchAnswer(error=KafkaError.GROUP_AUTHORIZATION_FAILED)
        partitions = tuple(
            (name, partition)
            for name, topic in wanted or ()
            if name is not None
            for partition in topic.partition_indexes
        )
        call = ClassicFetch(group=group, every=wanted is None, partitions=partitions)
        try:
            answer = await (await self._groups(request, group)).fetch(request, call, member_id, epoch)
        except AssignerError as error:
            return FetchAnswer(error=self._error(request, group, error))
        return await self._without_deleted_topics(call, answer)

    async def _without_deleted_topics(self, call: ClassicFetch, answer: FetchAnswer) -> FetchAnswer:
        """Leave out offsets of topics that the brokers do not have any more. A broker deletes them with the topic."""
        if all(one.offset < 0 for one in answer.offsets):
            return answer
        try:
            listed = await self._topics.current(within=_LISTED_WITHIN)
        except SourceUnavailable:
            return answer
        if listed is None or all(one.topic in listed for one in answer.offsets):
            return answer
        offsets = [
            one if one.topic in listed else FetchedOffset(topic=one.topic, partition=one.partition, error=one.error)
            for one in answer.offsets
            if one.topic in listed or not call.every
        ]
        return FetchAnswer(error=answer.error, offsets=tuple(offsets))

    # --- groups --------------------------------------------------------------------------------------------------

    async def list_groups(self, request: Request, entity: Entity) -> Entity:
        response = response_class(LIST_GROUPS, request.version)
        states = {state.lower() for state in getattr(entity, "states_filter", ())}
        kinds = {kind.lower() for kind in getattr(entity, "types_filter", ())}
        error, found = KafkaError.NONE, list[Listed]()
        for groups in self._kinds.values():
            try:
                found += await groups.listed(request)
            except AssignerError as problem:
                error = self._error(request, "", problem)
        shown = [
            one
            for one in found
            if (not states or one.state.lower() in states)
            and (not kinds or one.kind.lower() in kinds)
            and _may_see(request, one.group)
        ]
        listed = nested(response, "ListedGroup")
        return make(
            response,
            throttle_time=NO_TIME,
            error_code=error_code(error),
            groups=tuple(
                make(
                    listed,
                    group_id=one.group,
                    protocol_type=one.protocol_type,
                    group_state=one.state,
                    group_type=one.kind,
                )
                for one in sorted(shown, key=lambda one: one.group)
            ),
        )

    async def describe_groups(self, request: Request, entity: Entity) -> Entity:
        response = response_class(DESCRIBE_GROUPS, request.version)
        described = [
            described_group(response, request.version, await self._describe(request, group)) for group in entity.groups
        ]
        return make(response, throttle_time=NO_TIME, groups=tuple(described))

    async def _describe(self, request: Request, group: str) -> ClassicGroupDescription:
        if request.client.reason(Action.DESCRIBE_GROUP, group=group):
            return ClassicGroupDescription(group=group, error=KafkaError.GROUP_AUTHORIZATION_FAILED)
        try:
            return await (await self._groups(request, group)).describe(request, group)
        except AssignerError as error:
            return ClassicGroupDescription(group=group, error=self._error(request, group, error))

    async def delete_groups(self, request: Request, entity: Entity) -> Entity:
        response = response_class(DELETE_GROUPS, request.version)
        result = nested(response, "DeletableGroupResult")
        results = [
            make(result, group_id=group, error_code=error_code(await self._delete(request, group)))
            for group in entity.groups_names
        ]
        return make(response, throttle_time=NO_TIME, results=tuple(results))

    async def _delete(self, request: Request, group: str) -> KafkaError:
        if request.client.reason(Action.DELETE_GROUP, group=group):
            return KafkaError.GROUP_AUTHORIZATION_FAILED
        try:
            return await (await self._groups(request, group)).delete(request, group)
        except AssignerError as error:
            return self._error(request, group, error)

    async def offset_delete(self, request: Request, entity: Entity) -> Entity:
        response = response_class(OFFSET_DELETE, request.version)
        partitions = tuple((topic.name, one.partition_index) for topic in entity.topics for one in topic.partitions)
        call = OffsetDeletion(group=entity.group_id, partitions=partitions)
        if request.client.reason(Action.SET_OFFSETS, group=call.group):
            answer = OffsetDeletionAnswer(error=KafkaError.GROUP_AUTHORIZATION_FAILED)
        else:
            try:
                answer = await (await self._groups(request, call.group)).delete_offsets(request, call)
            except AssignerError as error:
                answer = OffsetDeletionAnswer(error=self._error(request, call.group, error))
        kinds = nested(response, "OffsetDeleteResponseTopic"), nested(response, "OffsetDeleteResponsePartition")
        found: dict[str, list[Any]] = {}
        for one in answer.partitions:
            code = error_code(one.error)
            found.setdefault(one.topic, []).append(make(kinds[1], partition_index=one.partition, error_code=code))
        topics = tuple(make(kinds[0], name=name, partitions=tuple(parts)) for name, parts in found.items())
        return make(response, error_code=error_code(answer.error), throttle_time=NO_TIME, topics=topics)

    # --- names and errors ----------------------------------------------------------------------------------------

    def _name(self, state: GroupState | None, topic: Any) -> str | None:
        """The name of a topic of a request; None: its id is not known."""
        if hasattr(topic, "name"):
            name: str = topic.name
            return name
        return self._topics.name_of(state, topic.topic_id) if topic.topic_id else None

    def _error(self, request: Request, group: str, error: AssignerError) -> KafkaError:
        """An error that the groups did not turn into an answer: the store is away, or does not let us."""
        log.warning("group_call_failed", api=request.api, group=group, error=str(error))
        return KafkaError.COORDINATOR_LOAD_IN_PROGRESS


def _qualified(request: Request, group: str) -> str:
    return qualified_group(request.client.org, group)


def _topic_id(topic: Any) -> UUID | None:
    found: UUID | None = getattr(topic, "topic_id", None)
    return found


def _may_see(request: Request, group: str) -> bool:
    principal = request.client.principal
    return principal is None or may_see(principal, _qualified(request, group))
