"""What classic groups answer to the calls that groups of both kinds have: offsets, listing, describing, deleting.

Groups that do not exist are answered for here too: a commit of a consumer that is in no group brings one into being.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from assigner.api import ClassicGroups
from assigner.errors import SourceUnavailable, StoreUnavailable
from assigner.gateway.groups import Listed
from assigner.gateway.requests import Request
from assigner.gateway.topics import KafkaTopics
from assigner.logs import get_logger
from assigner.model.kafka_groups import (
    ClassicCommit,
    ClassicFetch,
    ClassicGroupDescription,
    ClassicOffset,
    CommitAnswer,
    FetchAnswer,
    KafkaError,
    OffsetDeletion,
    OffsetDeletionAnswer,
    PartitionError,
)

KIND = "classic"

log = get_logger("assigner.gateway.classic")


class ClassicShared:
    """Implements `assigner.gateway.groups.KafkaGroups`."""

    def __init__(self, groups: ClassicGroups, topics: KafkaTopics) -> None:
        self._groups = groups
        self._topics = topics

    async def commit(self, request: Request, call: ClassicCommit) -> CommitAnswer:
        missing = await self._missing(call.offsets)
        known = tuple(one for one in call.offsets if one not in missing)
        if not known and missing:
            return CommitAnswer(partitions=tuple(map(_unknown, call.offsets)))
        part = msgspec.structs.replace(call, offsets=known)
        answer = await self._groups.commit(request.client.org, part, principal=request.client.identity)
        return CommitAnswer(partitions=(*answer.partitions, *map(_unknown, missing)))

    async def _missing(self, offsets: Sequence[ClassicOffset]) -> Sequence[ClassicOffset]:
        """The offsets of partitions that the brokers do not have. They are asked again only for partitions that no list
        has had yet."""
        unseen = self._unseen(offsets)
        if not unseen:
            return unseen
        try:
            listed = await self._topics.current()
        except SourceUnavailable as error:
            log.info("classic_topics_not_listed", error=str(error))
            return ()
        return () if listed is None else self._unseen(unseen)

    def _unseen(self, offsets: Sequence[ClassicOffset]) -> Sequence[ClassicOffset]:
        return [one for one in offsets if not self._topics.has(one.topic, one.partition)]

    async def fetch(
        self, request: Request, call: ClassicFetch, member_id: str | None, member_epoch: int
    ) -> FetchAnswer:
        return await self._groups.fetch(request.client.org, call, principal=request.client.identity)

    async def listed(self, request: Request) -> Sequence[Listed]:
        listing = await self._groups.list_groups(request.client.org, principal=request.client.identity)
        if listing.error:
            raise StoreUnavailable(f"classic groups can't be listed now ({listing.error.name}); try again")
        return [
            Listed(group=one.group, protocol_type=one.protocol_type, state=one.state.value, kind=KIND)
            for one in listing.groups
        ]

    async def describe(self, request: Request, group: str) -> ClassicGroupDescription:
        return await self._groups.describe(request.client.org, group, principal=request.client.identity)

    async def delete(self, request: Request, group: str) -> KafkaError:
        return await self._groups.delete(request.client.org, group, principal=request.client.identity)

    async def delete_offsets(self, request: Request, call: OffsetDeletion) -> OffsetDeletionAnswer:
        return await self._groups.delete_offsets(request.client.org, call, principal=request.client.identity)


def _unknown(one: ClassicOffset) -> PartitionError:
    return PartitionError(one.topic, one.partition, KafkaError.UNKNOWN_TOPIC_OR_PARTITION)
