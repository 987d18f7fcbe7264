"""What is wrong with a ledger: records that nobody processed, records processed twice, partitions with two owners.

A duplicate is explained if one of the two members had an accident while it worked on that record: one record per
accident for those that commit each, everything since the last commit for those that work in batches. Whatever else was
processed twice is a fault, also while a gateway was away.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from tests.support.kafka_groups.ledger import Accident, Ledger, Mishap, Processing, Record, Span


class Duplicate(msgspec.Struct, frozen=True):
    record: Record
    first: str
    again: str
    because: str
    """The accident that explains it; empty: nothing does."""


class DoubleOwner(msgspec.Struct, frozen=True):
    partition: str
    members: tuple[str, str]
    seconds: float
    """How long both owned it."""


class Move(msgspec.Struct, frozen=True):
    """A partition's change from one member's processing to another's."""

    partition: str
    source: str
    target: str
    pause: float
    """Seconds from the last record of the one to the first of the other."""
    is_planned: bool
    """Whether the source was alive."""


class Findings(msgspec.Struct, frozen=True):
    produced: int
    processed: int
    """Distinct records."""
    lost: Sequence[Record]
    unknown: Sequence[Record]
    """Processed, although nobody produced them."""
    duplicates: Sequence[Duplicate]
    double_owners: Sequence[DoubleOwner]
    unowned: Sequence[Processing]
    """Processed by a member that says what it owns and did not own that partition then, nor had an accident."""
    moves: Sequence[Move]

    @property
    def unexplained(self) -> list[Duplicate]:
        return [one for one in self.duplicates if not one.because]

    @property
    def faults(self) -> list[str]:
        """One line for each kind of fault; none: all is well."""
        found = {
            "lost": self.lost,
            "processed but never produced": self.unknown,
            "duplicates without an explanation": self.unexplained,
            "partitions with two live owners": self.double_owners,
            "processed without owning the partition": self.unowned,
        }
        return [f"{what}: {len(which)}, such as {which[0]}" for what, which in found.items() if which]


def check(ledger: Ledger) -> Findings:
    by_record: defaultdict[Record, list[Processing]] = defaultdict(list)
    for one in ledger.processed:
        by_record[one.record].append(one)
    in_flight = _in_flight(ledger)
    return Findings(
        produced=len(ledger.produced),
        processed=len(by_record),
        lost=sorted(ledger.produced - by_record.keys()),
        unknown=sorted(by_record.keys() - ledger.produced),
        duplicates=[
            _duplicate(first, again, in_flight) for several in by_record.values() for first, again in pairwise(several)
        ],
        double_owners=_double_owners(ledger.spans),
        unowned=_unowned(ledger, in_flight),
        moves=_moves(ledger, by_record),
    )


# --- duplicates --------------------------------------------------------------------------------------------------

_InFlight = dict[tuple[str, Record], str]
"""What members worked on when they had an accident, and which that was."""


def _in_flight(ledger: Ledger) -> _InFlight:
    found: _InFlight = {}
    for accident in ledger.accidents:
        own = [one for one in ledger.processed if one.member == accident.member]
        before = [one for one in own if one.at <= accident.at]
        for one in _uncommitted_tail(before, many=accident.member in ledger.in_batches):
            found[accident.member, one.record] = accident.mishap.value
        if accident.mishap is Mishap.FROZEN:
            # It goes on in the middle of one piece of work, and finds out afterwards what it has lost.
            after = [one for one in own if one.at >= accident.until][:1]
            for one in after:
                if not one.is_committed:
                    found[accident.member, one.record] = accident.mishap.value
    return found


def _uncommitted_tail(processed: Sequence[Processing], *, many: bool) -> list[Processing]:
    if many:
        return [one for one in processed if not one.is_committed]
    return [one for one in processed[-1:] if not one.is_committed]


def _duplicate(first: Processing, again: Processing, in_flight: _InFlight) -> Duplicate:
    whys = [
        f"{one.member} was {in_flight[one.member, one.record]}"
        for one in (first, again)
        if (one.member, one.record) in in_flight
    ]
    return Duplicate(first.record, first.member, again.member, whys[0] if whys else "")


# --- owners ------------------------------------------------------------------------------------------------------


def _double_owners(spans: Sequence[Span]) -> list[DoubleOwner]:
    found = []
    by_partition: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_partition[span.partition].append(span)
    for partition, several in by_partition.items():
        ordered = sorted(several, key=lambda span: span.begin)
        for at, span in enumerate(ordered):
            for later in ordered[at + 1 :]:
                if later.begin >= span.end:
                    break
                both = min(span.end, later.end) - later.begin
                if later.member != span.member and both > 0:
                    found.append(DoubleOwner(partition, (span.member, later.member), both))
    return found


def _unowned(ledger: Ledger, in_flight: _InFlight) -> list[Processing]:
    owned: defaultdict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in ledger.spans:
        owned[span.member, span.partition].append(span)
    telling = {span.member for span in ledger.spans}
    return [
        one
        for one in ledger.processed
        if one.member in telling
        and (one.member, one.record) not in in_flight
        and not any(span.begin <= one.at <= span.end for span in owned[one.member, one.record.partition])
    ]


# --- moves -------------------------------------------------------------------------------------------------------


def _moves(ledger: Ledger, by_record: dict[Record, list[Processing]]) -> list[Move]:
    firsts: defaultdict[str, list[Processing]] = defaultdict(list)
    for several in by_record.values():
        firsts[several[0].record.partition].append(several[0])
    found = []
    for partition, processed in sorted(firsts.items()):
        ordered = sorted(processed, key=lambda one: one.at)
        for before, after in pairwise(ordered):
            if before.member != after.member:
                planned = not any(_struck(accident, before, after) for accident in ledger.accidents)
                found.append(Move(partition, before.member, after.member, after.at - before.at, planned))
    return found


def _struck(accident: Accident, before: Processing, after: Processing) -> bool:
    return accident.member == before.member and before.at <= accident.at <= after.at


# --- as a table --------------------------------------------------------------------------------------------------


def table(findings: Findings) -> str:
    """Counts and pauses, as lines of text."""
    explained = Counter(one.because.partition(" was ")[2] for one in findings.duplicates if one.because)
    told = ", ".join(f"{count} {why}" for why, count in sorted(explained.items()))
    rows = [
        ("records produced", str(findings.produced)),
        ("processed", str(findings.processed)),
        ("lost", str(len(findings.lost))),
        ("duplicates", f"{len(findings.duplicates)}" + (f" (in flight: {told})" if told else "")),
        ("duplicates without an explanation", str(len(findings.unexplained))),
        ("partitions with two live owners", str(len(findings.double_owners))),
        ("processed without owning", str(len(findings.unowned))),
        ("moves of a live member's partition", _pauses([one for one in findings.moves if one.is_planned])),
        ("moves of a dead or frozen one's", _pauses([one for one in findings.moves if not one.is_planned])),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)


def _pauses(moves: Sequence[Move]) -> str:
    if not moves:
        return "0"
    pauses = [one.pause for one in moves]
    return f"{len(moves)}, pause median {statistics.median(pauses):.2f} s, longest {max(pauses):.2f} s"
