"""Generates ownership event logs, with the exact list of findings that an audit of them must report.

Each partition goes through random scenarios: moves, crashes, takeovers, changes of the leader, lost lines, and at a
chosen rate faults that the assigner would never commit. Each scenario records the findings that it causes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from assigner.errors import InvalidInput

EVENTS = pa.schema(
    [
        ("ts_us", pa.int64()),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("member", pa.string()),
        ("session", pa.string()),
        ("epoch", pa.int64()),
        ("event", pa.string()),
        ("cause", pa.string()),
        ("instance", pa.string()),
        ("mode", pa.string()),
        ("term", pa.int64()),
        ("part", pa.int32()),
        ("seq", pa.int64()),
    ]
)
BEGIN_US = 1_700_000_000_000_000
SECOND = 1_000_000
SHORTEST_LIMIT = 0.001


class Finding(NamedTuple):
    part: str
    kind: str
    group: str
    topic: str
    partition: int
    start_us: int
    end_us: int | None
    """None: it lasts until the end of the log, or is a single event."""


class Holder(NamedTuple):
    member: str
    session: str
    epoch: int


@dataclass
class SampleLog:
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    expected: list[Finding] = field(default_factory=list)

    def table(self) -> pa.Table:
        columns = list(zip(*self.rows, strict=True)) or [()] * len(EVENTS)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, EVENTS, strict=True)]
        return pa.Table.from_arrays(arrays, schema=EVENTS)

    def counts(self) -> Counter[tuple[str, str]]:
        return Counter((finding.part, finding.kind) for finding in self.expected)


def sample_log(
    *,
    seed: int = 1,
    groups: int = 4,
    partitions: int = 64,
    scenarios: int = 40,
    faults: float = 0.02,
    overlap_limit: float = 120.0,
) -> SampleLog:
    """Generate a log. `faults`: the fraction of scenarios that are faults. Every other group is exclusive."""
    if overlap_limit < SHORTEST_LIMIT:
        raise InvalidInput(
            f"no sample has overlaps of {overlap_limit:g} s; give an --overlap-limit of {SHORTEST_LIMIT} s or more"
        )
    rng = random.Random(seed)
    log = SampleLog()
    for number in range(groups):
        mode = "exclusive" if number % 2 else "overlap"
        for partition in range(partitions):
            history = _PartitionHistory(log, rng, f"group-{number}", partition, mode, int(overlap_limit * SECOND))
            history.generate(scenarios, faults)
    rng.shuffle(log.rows)
    return log


class _PartitionHistory:
    """The history of one partition. Between two scenarios it has exactly one owner."""

    def __init__(
        self, log: SampleLog, rng: random.Random, group: str, partition: int, mode: str, limit_us: int
    ) -> None:
        self._log = log
        self._rng = rng
        self._partition = (group, "orders", partition)
        self._mode = mode
        self._limit = limit_us
        self._now = BEGIN_US
        self._term, self._part, self._seq = 1, 0, 0
        self._highest = 0
        self._names = 0

    def generate(self, scenarios: int, faults: float) -> None:
        self._log_event("unowned", Holder("", "", 0))
        self._owner = self._next()
        self._expect("gaps", "start", self._now, self._advance())
        self._log_event("assigned", self._owner, "joined")
        for _ in range(scenarios):
            self._advance()
            self._choose_scenario(faults)()
        self._end()

    def _choose_scenario(self, faults: float) -> Callable[[], None]:
        if self._rng.random() < faults:
            of_mode = self.overlap_in_exclusive if self._mode == "exclusive" else self.late_release
            of_both = (
                self.two_owners_one_epoch,
                self.two_owners_old_epoch,
                self.epoch_back,
                self.released_and_back,
                self.reassigned_same_epoch,
            )
            return self._rng.choice((of_mode, self.late_first_release, *of_both))
        usual: Sequence[Callable[[], None]] = (
            *(self.move, self.move, self.move, self.crash, self.brief_absence, self.takeover),
            *(self.new_leader, self.lost_lines, self.lost_lines_and_owner, self.new_leader_in_a_gap),
            *(
                (self.new_leader_in_a_move, self.three_owners, self.late_first_release)
                if self._mode == "overlap"
                else ()
            ),
        )
        return self._rng.choice(usual)

    # --- what happens --------------------------------------------------------------------------------------------

    def move(self) -> None:
        if self._mode == "exclusive":
            self._log_event("released", self._owner, "joined")
            self._vacant_until_assigned("handover")
        else:
            self._hand_over("handover", self._rng.randint(1, self._limit))

    def crash(self) -> None:
        self._log_event("away", self._owner, "left")
        self._vacant_until_assigned("failover")

    def brief_absence(self) -> None:
        """The owner leaves, and returns with the same session before another owner is chosen."""
        self._log_event("away", self._owner, "left")
        self._expect("gaps", "failover", self._now, self._advance())
        self._log_event("back", self._owner)

    def takeover(self) -> None:
        self._log_event("lost", self._owner, "takeover")
        self._highest += 1
        self._owner = Holder(self._owner.member, f"{self._owner.member}-{self._highest}", self._highest)
        self._log_event("assigned", self._owner, "takeover")

    def new_leader(self) -> None:
        self._begin_run(self._owner)

    def new_leader_in_a_move(self) -> None:
        before, start = self._owner, self._now
        self._owner = self._next()
        self._log_event("assigned", self._owner, "joined")
        self._advance(self._limit // 2)
        self._begin_run(before, self._owner)
        self._expect("overlaps", "handover", start, self._advance(self._limit // 2))
        self._log_event("released", before, "joined")

    def new_leader_in_a_gap(self) -> None:
        start = self._now
        self._log_event("away", self._owner, "left")
        self._advance()
        self._begin_run()
        self._expect("gaps", "failover", start, self._advance())
        self._grant("left")

    def lost_lines(self) -> None:
        """The partition has another owner after lines were lost."""
        self._owner = self._next()
        self._begin_run(self._owner, new_term=False)

    def lost_lines_and_owner(self) -> None:
        self._begin_run(new_term=False)
        self._expect("gaps", "unseen", self._now, self._advance())
        self._grant("left")

    def three_owners(self) -> None:
        first, start = self._owner, self._now
        second, third = self._next(), self._next()
        self._log_event("assigned", second, "joined")
        later = self._advance(self._limit // 4)
        self._log_event("assigned", third, "joined")
        gone = self._advance(self._limit // 4)
        self._log_event("released", second, "joined")
        self._expect("overlaps", "handover", start, gone)
        self._expect("overlaps", "handover", later, gone)
        end = self._advance(self._limit // 4)
        self._log_event("released", first, "joined")
        self._expect("overlaps", "handover", later, end)
        self._owner = third

    def late_first_release(self) -> None:
        """The first owner releases late, after three moves: the owner after the third move does not overlap with the
        second."""
        kind = "exclusive" if self._mode == "exclusive" else "handover"
        first, begins = self._owner, []
        for _ in range(3):
            before = self._owner
            begins.append(self._now)
            self._grant("joined")
            if before != first:
                since = begins[-1]
                self._advance(self._limit // 8)
                self._log_event("released", before, "joined")
                self._expect("overlaps", kind, since, self._now)
                self._expect("overlaps", kind, begins[-2], self._now)
            self._advance(self._limit // 8)
        self._log_event("released", first, "joined")
        self._expect("overlaps", kind, begins[-1], self._now)

    # --- what must not happen ------------------------------------------------------------------------------------

    def two_owners_one_epoch(self) -> None:
        """Two owners under one epoch: no sink can tell them apart."""
        twin = Holder(self._name(), f"twin-{self._seq}", self._owner.epoch)
        start = self._now
        self._log_event("assigned", twin, "joined")
        self._expect("epochs", "repeated" if twin.epoch == self._highest else "back", start, None)
        self._expect("overlaps", "double", start, self._advance())
        self._log_event("released", twin, "joined")

    def two_owners_old_epoch(self) -> None:
        """A second owner with an old epoch."""
        if self._owner.epoch < 2:
            return self.two_owners_one_epoch()
        stale = Holder(self._name(), f"stale-{self._seq}", self._rng.randint(1, self._owner.epoch - 1))
        start = self._now
        self._log_event("assigned", stale, "joined")
        self._expect("epochs", "back", start, None)
        self._expect("overlaps", "double", start, self._advance())
        self._log_event("lost", stale, "joined")
        return None

    def reassigned_same_epoch(self) -> None:
        """The same session is assigned under the same epoch again, after its release."""
        self._log_event("released", self._owner, "joined")
        self._expect("gaps", "handover", self._now, self._advance())
        self._expect("epochs", "repeated", self._now, None)
        self._log_event("assigned", self._owner, "joined")

    def overlap_in_exclusive(self) -> None:
        self._hand_over("exclusive", self._rng.randint(1, self._limit))

    def late_release(self) -> None:
        self._hand_over("late", self._limit + self._rng.randint(1, self._limit))

    def epoch_back(self) -> None:
        if self._highest < 2:
            return self.move()
        self._log_event("released", self._owner, "joined")
        self._expect("gaps", "handover", self._now, self._advance())
        self._owner = Holder(self._name(), f"stale-{self._seq}", self._rng.randint(1, self._highest - 1))
        self._expect("epochs", "back", self._now, None)
        self._log_event("assigned", self._owner, "joined")
        return None

    def released_and_back(self) -> None:
        self._log_event("released", self._owner, "joined")
        self._expect("gaps", "handover", self._now, self._advance())
        self._expect("epochs", "repeated", self._now, None)
        self._log_event("back", self._owner)

    # --- pieces --------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self._advance()
        ending = self._rng.choice(("stays", "stays", "removed", "orphaned"))
        if ending == "removed":
            self._log_event("lost", self._owner, "removed")
        elif ending == "orphaned":
            self._log_event("away", self._owner, "left")
            self._expect("gaps", "failover", self._now, None)

    def _hand_over(self, kind: str, duration: int) -> None:
        before, start = self._owner, self._now
        self._grant("joined")
        self._now += duration
        self._log_event("released", before, "joined")
        self._expect("overlaps", kind, start, self._now)

    def _vacant_until_assigned(self, kind: str) -> None:
        self._expect("gaps", kind, self._now, self._advance())
        self._grant("left")

    def _grant(self, cause: str) -> None:
        self._owner = self._next()
        self._log_event("assigned", self._owner, cause)

    def _begin_run(self, *holders: Holder, new_term: bool = True) -> None:
        """Begin a new run of the log. `new_term`: by another leader; otherwise the same leader lost lines."""
        if new_term:
            self._term, self._part = self._term + self._rng.randint(1, 1_000), 0
        else:
            self._part += 1
        for holder in holders:
            self._log_event("held", holder)
        if not holders:
            self._log_event("unowned", Holder("", "", 0))

    def _next(self) -> Holder:
        self._highest += self._rng.choice((1, 1, 1, 7))
        return Holder(self._name(), f"s{self._highest}", self._highest)

    def _name(self) -> str:
        self._names = (self._names + self._rng.randint(1, 4)) % 8
        return f"worker-{self._names}"

    def _advance(self, most: int = 30 * SECOND) -> int:
        self._now += self._rng.randint(1, most)
        return self._now

    def _expect(self, part: str, kind: str, start: int, end: int | None) -> None:
        self._log.expected.append(Finding(part, kind, *self._partition, start, end))

    def _log_event(self, event: str, holder: Holder, cause: str = "") -> None:
        self._seq += 1
        self._log.rows.append(
            (
                *(self._now, *self._partition, holder.member, holder.session, holder.epoch, event, cause),
                *("sample", self._mode, self._term, self._part, self._seq),
            )
        )


def scenarios() -> Iterator[str]:
    """The names of all scenarios, for tests that need each of them."""
    return (name for name in vars(_PartitionHistory) if not name.startswith("_") and name != "generate")
