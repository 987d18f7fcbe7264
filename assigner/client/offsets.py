"""Commits and fetches a consumer's offsets, in as many calls as the service's limits require.

A commit of many partitions is several calls, and each partition has its own outcome. If some are not committed, an
error names them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

import msgspec

from assigner.client.channel import Unavailable
from assigner.client.rpc import ConsumerRpc
from assigner.core.client.messages import Ownership
from assigner.errors import AssignerError, InvalidInput, UnreadableRecord
from assigner.model.keys import TopicPartition
from assigner.proto.runtime import enum_number

IN_A_CALL = 5_000
IN_A_LIST = 500
BYTES_IN_A_CALL = 512 * 1024
"""Bytes of metadata in one call."""
_NAMED = 5
"""Partitions that an error's text names."""
_LARGEST = 2**63 - 1
_FENCED = enum_number("CommitRefusal", "COMMIT_REFUSAL_FENCED")
_UNKNOWN_PARTITION = enum_number("CommitRefusal", "COMMIT_REFUSAL_UNKNOWN_PARTITION")
_M = TypeVar("_M")


class OffsetAndMetadata(msgspec.Struct, frozen=True):
    offset: int
    """The next one to read."""
    metadata: str = ""
    leader_epoch: int = -1
    """Kafka's, of the last record; -1: not known."""


class CommittedOffset(msgspec.Struct, frozen=True):
    offset: int
    """The next one to read."""
    epoch: int
    """Of the ownership under which it was committed; 0: set by an operator."""
    metadata: str
    leader_epoch: int
    committed_at: int
    """Seconds since 1970 by the service's clock, for display only."""


CurrentRpc = Callable[[], ConsumerRpc]
"""Returns the calls to the instance that serves the stream now; raises `Unavailable` while there is none."""
Owned = TypeVar("Owned", bound=Ownership | TopicPartition)
Commit = tuple[TopicPartition, int, OffsetAndMetadata]
"""Partition, epoch, offset."""


class Fenced(msgspec.Struct, frozen=True):
    """A commit was refused because another consumer, or no consumer, owns the partition."""

    owner: str
    """Empty: the partition has no owner, or the owner is not known."""
    epoch: int


class CommitFailed(AssignerError):
    """Some offsets were not committed."""

    def __init__(
        self,
        committed: frozenset[TopicPartition],
        fenced: dict[TopicPartition, Fenced],
        unknown: frozenset[TopicPartition],
        failed: dict[TopicPartition, str],
    ) -> None:
        parts = [
            _listed("not this consumer's, or not under that epoch any more: drop the work on", fenced),
            _listed("no such partitions:", unknown),
            _listed(f"not stored ({next(iter(failed.values()), '')}), commit again:", failed),
        ]
        text = "; ".join(part for part in parts if part)
        super().__init__(f"{len(fenced) + len(unknown) + len(failed)} offsets were not committed: {text}")
        self.committed = committed
        """Partitions whose offsets are stored."""
        self.fenced = fenced
        """Partitions that this consumer no longer owns. Their owner repeats the work since the last commit."""
        self.unknown = unknown
        """Partitions that do not exist."""
        self.failed = failed
        """Partitions whose commit failed or may have failed, with the reason. Commit them again."""


def tp_of(partition: Ownership | TopicPartition) -> TopicPartition:
    return partition.tp if isinstance(partition, Ownership) else partition


# --- committing --------------------------------------------------------------------------------------------------


async def commit(
    rpc: CurrentRpc, offsets: Mapping[TopicPartition, tuple[int | None, OffsetAndMetadata]]
) -> frozenset[TopicPartition]:
    """Commit offsets. `offsets`: with the epoch of each; None for a partition that the caller never owned, which fails
    without a call."""
    outcome = _Outcome()
    commits: list[Commit] = []
    for tp, (epoch, offset) in sorted(offsets.items()):
        _check(tp, offset)
        if epoch is None:
            outcome.fenced[tp] = Fenced("", 0)
        else:
            commits.append((tp, epoch, offset))
    for part in _calls(commits):
        if outcome.error is None:
            try:
                outcome.add(part, await rpc().commit(list(_lists(part))))
                continue
            except Unavailable as error:
                outcome.error = error
        outcome.failed.update((tp, str(outcome.error)) for tp, _, _ in part)
    return outcome.result()


class _Outcome:
    def __init__(self) -> None:
        self.committed: set[TopicPartition] = set()
        self.fenced: dict[TopicPartition, Fenced] = {}
        self.unknown: set[TopicPartition] = set()
        self.failed: dict[TopicPartition, str] = {}
        self.error: Unavailable | None = None

    def add(self, part: Sequence[Commit], reply: Any) -> None:
        self.committed.update(tp for tp, _, _ in part)
        for refused in reply.refused:
            tps = [TopicPartition(refused.topic, partition) for partition in refused.partitions]
            self.committed.difference_update(tps)
            if refused.why == _FENCED:
                held = zip(tps, refused.epochs, strict=True)
                self.fenced.update((tp, Fenced(refused.owner, epoch)) for tp, epoch in held)
            elif refused.why == _UNKNOWN_PARTITION:
                self.unknown.update(tps)
            else:
                self.failed.update((tp, refused.reason) for tp in tps)

    def result(self) -> frozenset[TopicPartition]:
        if self.error and not (self.committed or self.fenced or self.unknown):
            raise self.error
        if self.fenced or self.unknown or self.failed:
            raise CommitFailed(frozenset(self.committed), self.fenced, frozenset(self.unknown), self.failed)
        return frozenset(self.committed)


def _check(tp: TopicPartition, entry: OffsetAndMetadata) -> None:
    if not 0 <= entry.offset <= _LARGEST:
        raise InvalidInput(f"the offset of {tp} is {entry.offset}; it must be a number from 0 up")
    if not -1 <= entry.leader_epoch < 2**31:
        raise InvalidInput(f"the leader epoch of {tp} is {entry.leader_epoch}; it must be from 0 up, or -1 for none")


def _calls(commits: Sequence[Commit]) -> Iterator[list[Commit]]:
    part: list[Commit] = []
    size = 0
    for one in commits:
        size += len(one[2].metadata.encode())
        if part and (len(part) >= IN_A_CALL or size > BYTES_IN_A_CALL):
            yield part
            part, size = [], len(one[2].metadata.encode())
        part.append(one)
    if part:
        yield part


def _lists(part: Sequence[Commit]) -> Iterator[dict[str, Any]]:
    """Build the fields of TopicOffsets messages."""
    for topic, of_topic in groupby(part, lambda one: one[0].topic):
        for members in _parts(list(of_topic)):
            offsets = [offset for _, _, offset in members]
            fields: dict[str, Any] = {
                "topic": topic,
                "partitions": [tp.partition for tp, _, _ in members],
                "epochs": [epoch for _, epoch, _ in members],
                "offsets": [offset.offset for offset in offsets],
            }
            if any(offset.leader_epoch >= 0 for offset in offsets):
                fields["leader_epochs"] = [offset.leader_epoch for offset in offsets]
            if any(offset.metadata for offset in offsets):
                fields["metadata"] = [offset.metadata for offset in offsets]
            yield fields


# --- reading -----------------------------------------------------------------------------------------------------


async def committed(rpc: CurrentRpc, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
    found: dict[TopicPartition, CommittedOffset] = {}
    rest = sorted(set(partitions))
    while rest:
        part = rest[:IN_A_CALL]
        reply = await rpc().fetch(list(_wanted(part)))
        if reply.unreadable:
            raise UnreadableRecord(
                _listed("the offsets on record can't be read; have them repaired or set anew:", _tps(reply.unreadable))
            )
        for entry in reply.topics:
            found.update(_found(entry))
        rest = rest[_covered(part, reply) :]
    return found


def _covered(part: Sequence[TopicPartition], reply: Any) -> int:
    """Count the requested partitions that the reply covers."""
    if not reply.HasField("last"):
        return len(part)
    last = TopicPartition(reply.last.topic, reply.last.partition)
    if last not in part:
        raise Unavailable(f"the service's reply ends with {last}, which was not asked for; try again")
    return part.index(last) + 1


def _wanted(part: Sequence[TopicPartition]) -> Iterator[dict[str, Any]]:
    """Build the fields of TopicPartitions messages."""
    for topic, of_topic in groupby(part, lambda tp: tp.topic):
        for members in _parts(list(of_topic)):
            yield {"topic": topic, "partitions": [tp.partition for tp in members]}


def _found(entry: Any) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
    count = len(entry.partitions)
    texts = entry.metadata or [""] * count
    leader_epochs = entry.leader_epochs or [-1] * count
    lists = (entry.partitions, entry.offsets, entry.epochs, texts, leader_epochs, entry.committed_at)
    for partition, offset, epoch, text, leader_epoch, at in zip(*lists, strict=True):
        if offset >= 0:
            yield TopicPartition(entry.topic, partition), CommittedOffset(offset, epoch, text, leader_epoch, at)


def _tps(partitions: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(one.topic, one.partition) for one in partitions]


def _parts(members: list[_M]) -> Iterator[list[_M]]:
    for start in range(0, len(members), IN_A_LIST):
        yield members[start : start + IN_A_LIST]


def _listed(what: str, tps: Collection[TopicPartition]) -> str:
    named = ", ".join(str(tp) for tp in sorted(tps)[:_NAMED])
    more = f" and {len(tps) - _NAMED} more" if len(tps) > _NAMED else ""
    return f"{what} {named}{more}" if tps else ""
