"""Finds in a recording what must not be, and how long partitions rested when they changed hands.

Pure arithmetic over `recording`. A move is seen by its requests: the last one that the old owner served and the first
of the new one. Why a partition moved is seen by its old owner: killed, drained, or still there, so that it moved for
one that joined.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec
import numpy as np

from bench.cutover.course import SECOND, Action
from bench.cutover.recording import Happened, Outcome, Recording, Sent, Served

LAST_SERVED = SECOND
"""A pod that leaves may have served a partition's last request so long before: requests come only now and then, and a
busy machine holds them up."""


class Move(msgspec.Struct, frozen=True):
    """A partition's change of hands."""

    partition: int
    old: str
    new: str
    cause: Action
    stopped: int
    """When the old owner had served its last request."""
    resumed: int
    """When the new owner began with its first one."""

    @property
    def pause(self) -> float:
        """Seconds."""
        return max(0, self.resumed - self.stopped) / SECOND


class Handovers(msgspec.Struct, frozen=True):
    moves: tuple[Move, ...]
    stale: int
    """Requests served under an epoch that was over."""
    doubled: int
    """Requests served while another owner served the partition, or under an epoch that had another owner."""


class Order(msgspec.Struct, frozen=True):
    broken: int
    """Requests that had their effect after a later one of their key."""
    repeated: int
    """Requests that had their effect more than once."""


class Spread(msgspec.Struct, frozen=True):
    """A distribution, in seconds."""

    p50: float
    p99: float
    most: float
    count: int


class Latencies(msgspec.Struct, frozen=True):
    quiet: Spread | None
    moving: Spread | None
    """While partitions moved for pods that joined or drained."""
    killed: Spread | None
    """From a kill until its last partition had moved."""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    contestant: str
    load: tuple[float, float]
    requests: int
    lost: int
    """Neither answered nor failed by a typed error, or answered without an effect."""
    stale: int
    doubled: int
    disordered: int
    repeated: int
    failed: int
    cut: int
    """In flight to a pod that was killed."""
    refused: int
    """Refused by an owner and sent again."""
    waited: int
    """Waited for the next owner, because there was none that could be reached."""
    stashed: int
    longest_stash: float
    moves: int
    pauses: dict[Action, Spread]
    latencies: Latencies


def analyse(recording: Recording) -> Findings:
    moved = handovers(recording.served, recording.happened)
    kept = order(recording.served)
    sent = recording.sent
    return Findings(
        contestant=recording.contestant,
        load=recording.load,
        requests=len(sent),
        lost=lost(sent, recording.served),
        stale=moved.stale,
        doubled=moved.doubled,
        disordered=kept.broken,
        repeated=kept.repeated,
        failed=sum(one.outcome is Outcome.FAILED for one in sent),
        cut=sum(one.outcome is Outcome.CUT for one in sent),
        refused=sum(one.refused > 0 for one in sent),
        waited=sum(one.waited > 0 for one in sent),
        stashed=sum(one.stashed > 0 for one in sent),
        longest_stash=max((one.stashed for one in sent), default=0) / SECOND,
        moves=len(moved.moves),
        pauses={cause: found for cause in Action if (found := spread(_pauses(moved.moves, cause))) is not None},
        latencies=latencies(sent, recording.happened, moved.moves),
    )


def spread(seconds: Iterable[float]) -> Spread | None:
    """None: there was nothing to measure."""
    values = np.array(list(seconds))
    if not values.size:
        return None
    p50, p99, most = np.percentile(values, (50, 99, 100))
    return Spread(float(p50), float(p99), float(most), int(values.size))


def _pauses(moves: Iterable[Move], cause: Action) -> Iterable[float]:
    return (move.pause for move in moves if move.cause is cause)


# --- what must not be ------------------------------------------------------------------------------------------------


def lost(sent: Iterable[Sent], served: Iterable[Served]) -> int:
    done = {(one.key, one.sequence) for one in served}
    return sum(
        one.outcome is Outcome.LOST or (one.outcome is Outcome.ANSWERED and (one.key, one.sequence) not in done)
        for one in sent
    )


def order(served: Iterable[Served]) -> Order:
    """Whether the requests of each key had their effects in the order in which they were made."""
    broken = repeated = 0
    highest: dict[str, int] = {}
    done: set[tuple[str, int]] = set()
    for one in sorted(served, key=lambda one: one.ended):
        if (one.key, one.sequence) in done:
            repeated += 1
            continue
        done.add((one.key, one.sequence))
        broken += one.sequence < highest.get(one.key, -1)
        highest[one.key] = max(one.sequence, highest.get(one.key, -1))
    return Order(broken, repeated)


def handovers(served: Iterable[Served], happened: Sequence[Happened]) -> Handovers:
    by_partition: dict[int, list[Served]] = defaultdict(list)
    for one in served:
        by_partition[one.partition].append(one)
    found = [_handovers(sorted(ones, key=lambda one: one.began), happened) for ones in by_partition.values()]
    return Handovers(
        tuple(chain.from_iterable(one.moves for one in found)),
        sum(one.stale for one in found),
        sum(one.doubled for one in found),
    )


def _handovers(served: Sequence[Served], happened: Sequence[Happened]) -> Handovers:
    """Of one partition, whose requests are in the order in which they began."""
    moves: list[Move] = []
    stale = doubled = 0
    latest, ended = served[0], served[0].ended
    for one in served[1:]:
        if one.epoch < latest.epoch:
            stale += 1
            continue
        if one.owner != latest.owner:
            if one.epoch == latest.epoch:
                doubled += 1
                continue
            doubled += one.began < ended
            cause = _cause(latest.owner, ended, happened)
            moves.append(Move(one.partition, latest.owner, one.owner, cause, ended, one.began))
            ended = one.ended
        latest, ended = one, max(ended, one.ended)
    return Handovers(tuple(moves), stale, doubled)


def _cause(old: str, stopped: int, happened: Iterable[Happened]) -> Action:
    """Why a partition left its owner, who served it until then."""
    for step in happened:
        if step.pod == old and step.action is not Action.JOIN and step.at <= stopped + LAST_SERVED:
            return step.action
    return Action.JOIN


# --- latency ---------------------------------------------------------------------------------------------------------


class Window(msgspec.Struct, frozen=True):
    begin: int
    end: int
    is_kill: bool


def windows(happened: Sequence[Happened], moves: Iterable[Move]) -> list[Window]:
    """From each step of the course to the moment when the last partition that it moved was served again."""
    ends = [step.at for step in happened]
    for move in moves:
        causes = [number for number, step in enumerate(happened) if step.at < move.resumed and _explains(step, move)]
        if causes:
            ends[causes[-1]] = max(ends[causes[-1]], move.resumed)
    return [Window(step.at, end, step.action is Action.KILL) for step, end in zip(happened, ends, strict=True)]


def _explains(step: Happened, move: Move) -> bool:
    if step.action is not move.cause:
        return False
    # Partitions that move for balance may also go to a pod that was there before.
    return step.action is Action.JOIN or step.pod == move.old


def latencies(sent: Iterable[Sent], happened: Sequence[Happened], moves: Iterable[Move]) -> Latencies:
    """Of the answered requests, by what went on when they were due."""
    found = windows(happened, moves)
    quiet: list[float] = []
    moving: list[float] = []
    killed: list[float] = []
    for one in sent:
        if one.outcome is not Outcome.ANSWERED:
            continue
        during = [window.is_kill for window in found if window.begin <= one.scheduled <= window.end]
        place = killed if any(during) else moving if during else quiet
        place.append((one.finished - one.scheduled) / SECOND)
    return Latencies(spread(quiet), spread(moving), spread(killed))
