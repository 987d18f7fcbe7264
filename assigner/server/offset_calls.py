"""The calls about offsets. They check and translate; `Offsets` does the rest.

Answers are built in protobuf's C runtime, in steps, because one may tell of ten thousand partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, cast

import anyio.lowlevel

from assigner.api import FoundOffsets, Offsets, Refusal, RefusedCommit
from assigner.keys import TopicPartition
from assigner.proto.kafka_assigner import v1
from assigner.records import Offset
from assigner.server.messages import message_class
from assigner.server.offset_requests import NONE, commits, wanted
from assigner.server.requests import Requests

_STEP = 500
_ABSENT = Offset(offset=NONE)
_REFUSALS = {
    Refusal.FENCED: v1.CommitRefusal.FENCED,
    Refusal.UNKNOWN_PARTITION: v1.CommitRefusal.UNKNOWN_PARTITION,
    Refusal.FAILED: v1.CommitRefusal.FAILED,
}
Told = tuple[TopicPartition, Offset | None]


class OffsetCalls:
    def __init__(self, offsets: Offsets, requests: Requests) -> None:
        self._offsets = offsets
        self._requests = requests

    async def commit(self, request: v1.CommitOffsetsRequest) -> bytes:
        wishes = commits(request)
        refused = await self._offsets.commit(*self._requests.caller(request), wishes)
        reply = message_class("CommitOffsetsResponse")(committed=len(wishes) - len(refused))
        for part in _in_parts(_by_reason(refused)):
            for one in part:
                reply.refused.add(**one)
            await anyio.lowlevel.checkpoint()
        return cast(bytes, reply.SerializeToString())

    async def fetch(self, request: v1.FetchOffsetsRequest) -> bytes:
        found = await self._offsets.fetch(self._requests.group(request.group), wanted(request))
        return await _found(found)


def _by_reason(refused: Iterable[RefusedCommit]) -> Iterator[dict[str, Any]]:
    """Those alike together, so that ten thousand partitions lost to one owner take little room."""
    alike: dict[tuple[Any, ...], list[RefusedCommit]] = {}
    for one in refused:
        alike.setdefault((one.tp.topic, one.why, one.owner, one.reason), []).append(one)
    for (topic, why, owner, reason), members in alike.items():
        yield {
            "topic": topic,
            "why": int(_REFUSALS[why]),
            "partitions": [one.tp.partition for one in members],
            "epochs": [one.epoch for one in members],
            "owner": owner,
            "reason": reason,
        }


async def _found(found: FoundOffsets) -> bytes:
    reply = message_class("FetchOffsetsResponse")()
    for part in _in_parts(found.offsets):
        for topic, members in groupby(part, lambda told: told[0].topic):
            reply.topics.add(**_topic_fields(topic, list(members)))
        await anyio.lowlevel.checkpoint()
    for tp in found.unreadable:
        reply.unreadable.add(topic=tp.topic, partition=tp.partition)
    if found.last is not None:
        reply.last.topic, reply.last.partition = found.last.topic, found.last.partition
    return cast(bytes, reply.SerializeToString())


def _topic_fields(topic: str, members: Sequence[Told]) -> dict[str, Any]:
    records = [record or _ABSENT for _, record in members]
    fields: dict[str, Any] = {
        "topic": topic,
        "partitions": [tp.partition for tp, _ in members],
        "epochs": [record.epoch for record in records],
        "offsets": [record.offset for record in records],
        "committed_at": [record.committed_at for record in records],
    }
    if any(record.leader_epoch != NONE for record in records):
        fields["leader_epochs"] = [record.leader_epoch for record in records]
    if any(record.metadata for record in records):
        fields["metadata"] = [record.metadata for record in records]
    return fields


def _in_parts(items: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(items)
    while part := list(islice(rest, _STEP)):
        yield part
