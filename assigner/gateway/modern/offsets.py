"""Commits and fetches of offsets of assigner groups: by their members, and by callers that are no members.

A commit names the member's epoch; the gateway fills in the epoch of the ownership, and the service admits the commit by
owner, session and that epoch. A commit of nobody is what an operator may do: it is accepted while nobody owns the
partitions, and creates the group. A fetch is always served unless it names a member that is not one any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from assigner.api import NewOffset, OffsetCommit, WantedOffsets
from assigner.core.kafka_groups.modern.offsets import (
    check_commit,
    check_fetch,
    is_by_nobody,
    refusal_of_commit,
)
from assigner.errors import (
    AssignerError,
    FailedPrecondition,
    InvalidInput,
    InvalidName,
    LimitReached,
    NotRegistered,
    PermissionDenied,
    SourceUnavailable,
    Superseded,
    UnknownGroup,
    UnknownTopic,
)
from assigner.gateway.modern.member import Member
from assigner.gateway.modern.members import Members
from assigner.gateway.modern.parts import InstanceParts
from assigner.gateway.requests import Request
from assigner.logs import get_logger
from assigner.model.kafka_groups import (
    ClassicCommit,
    ClassicFetch,
    ClassicOffset,
    CommitAnswer,
    FetchAnswer,
    FetchedOffset,
    KafkaError,
    PartitionError,
)
from assigner.model.keys import TopicPartition
from assigner.model.names import check_topic, qualified_group
from assigner.model.records import Offset

_NEWER = 9
"""A version of OffsetCommit that knows member epochs; `ClassicCommit` says whether it is one."""
_OLDER = 8

log = get_logger("assigner.gateway.modern")


class ModernOffsets:
    def __init__(self, parts: InstanceParts, members: Members) -> None:
        self._parts = parts
        self._members = members

    # --- commits -------------------------------------------------------------------------------------------------

    async def commit(self, request: Request, call: ClassicCommit) -> CommitAnswer:
        group = qualified_group(request.client.org, call.group)
        try:
            if is_by_nobody(call.member_id, call.generation):
                return _answer(call, await self._set(group, call.offsets))
            return _answer(call, await self._commit(group, request, call))
        except AssignerError as error:
            return all_with(call, _error_of(error))

    async def _commit(self, group: str, request: Request, call: ClassicCommit) -> dict[TopicPartition, KafkaError]:
        member = await self._members.find(group, call.member_id, request)
        refused = check_commit(
            _NEWER if call.knows_missing_groups else _OLDER, call.generation, member.machine if member else None
        )
        if refused or member is None:
            return dict.fromkeys(map(_tp, call.offsets), refused)
        member.heard_at = self._parts.clock.now()
        errors: dict[TopicPartition, KafkaError] = {}
        commits: list[OffsetCommit] = []
        for one in call.offsets:
            tp = _tp(one)
            if self._is_missing(group, tp):
                errors[tp] = KafkaError.UNKNOWN_TOPIC_OR_PARTITION
                continue
            epoch = member.machine.commit_epoch(tp, call.generation)
            if epoch is None:
                errors[tp] = KafkaError.STALE_MEMBER_EPOCH
            else:
                commits.append(OffsetCommit(tp, epoch, one.offset, one.leader_epoch, one.metadata or ""))
        if commits:
            errors |= await self._write(group, member, commits)
        return errors

    async def _write(
        self, group: str, member: Member, commits: Sequence[OffsetCommit]
    ) -> dict[TopicPartition, KafkaError]:
        try:
            refused = await self._parts.offsets.commit(
                group, member.name, member.session, commits, principal=member.principal
            )
        except AssignerError as error:
            return dict.fromkeys((one.tp for one in commits), _error_of(error))
        return {one.tp: refusal_of_commit(one) for one in refused}

    def _is_missing(self, group: str, tp: TopicPartition) -> bool:
        mirror = self._parts.mirrors.get(group)
        if mirror is None:
            return False
        topic = mirror.state.topics.get(tp.topic)
        return topic is None or not 0 <= tp.partition < topic.record.partition_count

    async def _set(self, group: str, offsets: Sequence[ClassicOffset]) -> dict[TopicPartition, KafkaError]:
        """Set offsets for a caller that is no member."""
        if not offsets:
            return {}
        await self._parts.directory.enter(group)
        missing = [topic for topic in sorted({one.topic for one in offsets}) if not await self._exists(group, topic)]
        errors = {_tp(one): KafkaError.UNKNOWN_TOPIC_OR_PARTITION for one in offsets if one.topic in missing}
        async with self._parts.mirrors.of(group):
            errors |= {
                _tp(one): KafkaError.UNKNOWN_TOPIC_OR_PARTITION for one in offsets if self._is_past_end(group, _tp(one))
            }
        new = {
            _tp(one): NewOffset(one.offset, one.leader_epoch, one.metadata or "")
            for one in offsets
            if _tp(one) not in errors
        }
        if new:
            try:
                await self._parts.administration.set_offsets(group, new, force=False)
            except FailedPrecondition as error:
                log.info("kafka_commit_refused", group=group, error=str(error))
                errors |= dict.fromkeys(new, KafkaError.UNKNOWN_MEMBER_ID)
        return errors

    async def _exists(self, group: str, topic: str) -> bool:
        try:
            check_topic(topic)
            await self._parts.ensure_topics(group, [topic])
        except (UnknownTopic, InvalidName):
            return False
        return True

    def _is_past_end(self, group: str, tp: TopicPartition) -> bool:
        """Whether the topic is known not to have the partition. Its record may be too new to be mirrored."""
        mirror = self._parts.mirrors.get(group)
        topic = mirror.state.topics.get(tp.topic) if mirror else None
        return tp.partition < 0 or (topic is not None and tp.partition >= topic.record.partition_count)

    # --- fetches -------------------------------------------------------------------------------------------------

    async def fetch(
        self, request: Request, call: ClassicFetch, member_id: str | None, member_epoch: int
    ) -> FetchAnswer:
        group = qualified_group(request.client.org, call.group)
        try:
            if not is_by_nobody(member_id, member_epoch):
                refused = await self._check_fetch(group, request, member_id or "", member_epoch)
                if refused:
                    return FetchAnswer(error=refused)
            return FetchAnswer(offsets=tuple(await self._fetch(group, call)))
        except AssignerError as error:
            return FetchAnswer(error=_error_of(error))

    async def _check_fetch(self, group: str, request: Request, member_id: str, member_epoch: int) -> KafkaError:
        try:
            await self._parts.directory.check(group)
        except UnknownGroup:
            # Served as by a broker: there is nothing committed.
            return KafkaError.NONE
        member = await self._members.find(group, member_id, request)
        return check_fetch(member_id, member_epoch, member.machine if member else None)

    async def _fetch(self, group: str, call: ClassicFetch) -> Iterable[FetchedOffset]:
        if call.every:
            return [_fetched(tp, offset) for tp, offset in await self._all(group) if offset is not None]
        if not call.partitions:
            return []
        named = tuple(TopicPartition(topic, partition) for topic, partition in call.partitions)
        asked = tuple(tp for tp in dict.fromkeys(named) if _is_partition(tp))
        found = dict(await self._pages(group, asked)) if asked else {}
        return [_fetched(tp, found.get(tp)) for tp in named]

    async def _all(self, group: str) -> list[tuple[TopicPartition, Offset | None]]:
        found: list[tuple[TopicPartition, Offset | None]] = []
        after: TopicPartition | None = None
        while True:
            page = await self._parts.offsets.fetch(group, WantedOffsets(after=after))
            found += page.offsets
            if page.last is None:
                return found
            after = page.last

    async def _pages(self, group: str, asked: tuple[TopicPartition, ...]) -> list[tuple[TopicPartition, Offset | None]]:
        found: list[tuple[TopicPartition, Offset | None]] = []
        while asked:
            page = await self._parts.offsets.fetch(group, WantedOffsets(partitions=asked))
            found += page.offsets
            if page.last is None:
                break
            asked = asked[asked.index(page.last) + 1 :]
        return found


def _tp(one: ClassicOffset) -> TopicPartition:
    return TopicPartition(one.topic, one.partition)


def _is_partition(tp: TopicPartition) -> bool:
    try:
        check_topic(tp.topic)
    except InvalidName:
        return False
    return tp.partition >= 0


def _fetched(tp: TopicPartition, offset: Offset | None) -> FetchedOffset:
    if offset is None:
        return FetchedOffset(topic=tp.topic, partition=tp.partition)
    return FetchedOffset(
        topic=tp.topic,
        partition=tp.partition,
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
    )


def _answer(call: ClassicCommit, errors: dict[TopicPartition, KafkaError]) -> CommitAnswer:
    return CommitAnswer(
        partitions=tuple(
            PartitionError(one.topic, one.partition, errors.get(_tp(one), KafkaError.NONE)) for one in call.offsets
        )
    )


def all_with(call: ClassicCommit, error: KafkaError) -> CommitAnswer:
    """The answer that has the same code for each partition."""
    return CommitAnswer(partitions=tuple(PartitionError(one.topic, one.partition, error) for one in call.offsets))


def _error_of(error: AssignerError) -> KafkaError:
    match error:
        case NotRegistered() | Superseded() | UnknownGroup():
            return KafkaError.UNKNOWN_MEMBER_ID
        case PermissionDenied():
            return KafkaError.GROUP_AUTHORIZATION_FAILED
        case InvalidName():
            return KafkaError.INVALID_GROUP_ID
        case InvalidInput():
            # What a commit can have too much of is metadata.
            return KafkaError.OFFSET_METADATA_TOO_LARGE
        case LimitReached() | SourceUnavailable():
            return KafkaError.COORDINATOR_LOAD_IN_PROGRESS
        case FailedPrecondition():
            return KafkaError.UNKNOWN_MEMBER_ID
        case _:
            return KafkaError.COORDINATOR_LOAD_IN_PROGRESS
