"""Who processed which record, and who owned which partition when, gathered from what the members said.

An ownership lasts from `assigned` to `revoked`, `lost` or the member's end. A member that was killed owns nothing from
that moment; one that was frozen for longer than its session owns nothing from when it was frozen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice

import msgspec

from tests.support.kafka_groups.events import Event, Kind


class Record(msgspec.Struct, frozen=True, order=True):
    """A record's place in Kafka."""

    partition: str
    offset: int


class Mishap(str, Enum):
    KILLED = "killed"
    FROZEN = "frozen"


class Accident(msgspec.Struct, frozen=True):
    """What was done to a member."""

    member: str
    mishap: Mishap
    at: float
    until: float = math.inf
    """When it was thawed."""
    outlasted_session: bool = True
    """Whether its partitions had time to be given away."""


class Processing(msgspec.Struct, frozen=True):
    """A member's effect of one record."""

    record: Record
    member: str
    at: float
    is_committed: bool
    """Whether the member heard that the commit of this record is done."""


class Span(msgspec.Struct, frozen=True):
    """A member's ownership of a partition."""

    partition: str
    member: str
    begin: float
    end: float


class Ledger(msgspec.Struct, frozen=True):
    produced: frozenset[Record]
    processed: Sequence[Processing]
    """In the order of time."""
    spans: Sequence[Span]
    """Of those members that say what they own."""
    accidents: Sequence[Accident] = ()
    in_batches: frozenset[str] = frozenset()
    """Members that commit many records at once."""


def gather(
    produced: frozenset[Record],
    said: Mapping[str, Sequence[Event]],
    accidents: Sequence[Accident] = (),
    in_batches: frozenset[str] = frozenset(),
) -> Ledger:
    """`said`: by member, in its own order."""
    processed = sorted((one for member, events in said.items() for one in _processed(member, events)), key=_at)
    spans = [one for member, events in said.items() for one in _spans(member, events, accidents)]
    return Ledger(produced, processed, spans, tuple(accidents), in_batches)


def _at(one: Processing) -> float:
    return one.at


def _processed(member: str, events: Sequence[Event]) -> list[Processing]:
    return [
        Processing(
            Record(event.partition, event.offset), member, event.at, _is_committed(event, islice(events, at + 1, None))
        )
        for at, event in enumerate(events)
        if event.event is Kind.RECORD
    ]


def _is_committed(record: Event, later: Iterable[Event]) -> bool:
    for event in later:
        if event.partition != record.partition:
            continue
        if event.event is Kind.COMMITTED and event.offset > record.offset:
            return True
        if event.event is Kind.RECORD and event.offset <= record.offset:
            # It came back and was done again: what is committed from here on says nothing of the first time.
            return False
    return False


def _spans(member: str, events: Sequence[Event], accidents: Sequence[Accident]) -> list[Span]:
    own = [one for one in accidents if one.member == member]
    begun: dict[str, float] = {}
    found = []
    for event in events:
        if event.event is Kind.ASSIGNED:
            for partition in event.partitions:
                begun.setdefault(partition, event.at)
        elif event.event in (Kind.REVOKED, Kind.LOST):
            ended = [partition for partition in event.partitions if partition in begun]
            found += [Span(partition, member, begun.pop(partition), event.at) for partition in ended]
        elif event.event is Kind.CLOSED:
            found += [Span(partition, member, begin, event.at) for partition, begin in begun.items()]
            begun.clear()
    found += [Span(partition, member, begin, math.inf) for partition, begin in begun.items()]
    return [_cut(span, own) for span in found]


def _cut(span: Span, accidents: Sequence[Accident]) -> Span:
    ends = [
        one.at
        for one in accidents
        if span.begin <= one.at < span.end and (one.mishap is Mishap.KILLED or one.outlasted_session)
    ]
    return msgspec.structs.replace(span, end=min([span.end, *ends]))
