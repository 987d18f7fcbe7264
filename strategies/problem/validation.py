"""Checks that a problem is well-formed, before anything is computed from it.

A strategy must not answer malformed input (a capacity of NaN, an owner that is no member) with a plausible plan. An
empty group or an empty topic list is well-formed: its plan has no owners.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assigner.errors import InvalidInput
from assigner.strategy import NONE, Members, Problem, Topics

MAX_PARTITIONS = 2**31 - 1


def check(problem: Problem) -> None:
    """Raise `InvalidInput` for a malformed problem."""
    _check_members(problem.members, problem.topics.count)
    total = _check_topics(problem.topics)
    _check_ownership(problem, total)


def _check_members(members: Members, topics: int) -> None:
    count = members.count
    _shape("member racks", members.rack, (count,))
    _shape("member holds", members.hold, (count,))
    _shape("member caps", members.cap, (count,))
    _shape("subscriptions", members.subscription, (count, topics))
    _positive("capacity of member", members.capacity)
    _at_least("cap of member", members.cap, NONE)
    _at_least("rack of member", members.rack, NONE)
    if members.load is not None:
        _shape("member loads", members.load, (count,))
        _not_negative("load of member", members.load)
    if members.key is not None:
        _shape("member keys", members.key, (count,))


def _check_topics(topics: Topics) -> int:
    _at_least("partition count of topic", topics.partitions, 0)
    total = int(topics.partitions.sum(dtype=np.int64))
    if total > MAX_PARTITIONS:
        raise InvalidInput(f"{total} partitions are more than one plan can hold ({MAX_PARTITIONS}); split the group")
    if topics.weight is not None:
        _shape("weights", topics.weight, (total,))
        _positive("weight of partition", topics.weight)
    if topics.copartition is not None:
        _shape("co-partition sets", topics.copartition, (topics.count,))
        _at_least("co-partition set of topic", topics.copartition, NONE)
    if topics.key is not None:
        _shape("topic keys", topics.key, (topics.count,))
    if topics.replica_racks is not None:
        _check_replica_racks(*topics.replica_racks, total)
    return total


def _check_replica_racks(starts: NDArray[np.int32], racks: NDArray[np.int32], total: int) -> None:
    _shape("starts of replica racks", starts, (total + 1,))
    if starts[0] != 0 or starts[-1] != len(racks) or bool(np.any(np.diff(starts) < 0)):
        raise InvalidInput(f"starts of replica racks must rise from 0 to the number of rack ids ({len(racks)})")


def _check_ownership(problem: Problem, total: int) -> None:
    _shape("owners", problem.owner, (total,))
    _shape("pins", problem.pinned, (total,))
    _member("owner of partition", problem.owner, problem.members.count)
    if problem.standby_count < 0:
        raise InvalidInput(f"standby count {problem.standby_count} is negative; use 0 for none")
    if problem.standbys.size:
        if problem.standbys.ndim != 2 or len(problem.standbys) != total:
            raise InvalidInput(
                f"standbys have shape {problem.standbys.shape}; one row per partition ({total}) is needed"
            )
        _member("standby of partition", problem.standbys, problem.members.count)


def _shape(what: str, array: NDArray[np.generic], shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise InvalidInput(f"{what} have shape {array.shape}; {shape} is needed")


def _positive(what: str, values: NDArray[np.float64]) -> None:
    # Written so that NaN fails too.
    bad = np.flatnonzero(~((values > 0) & np.isfinite(values)))
    if len(bad):
        raise InvalidInput(f"{what} {bad[0]} is {values[bad[0]]}; it must be finite and more than 0")


def _not_negative(what: str, values: NDArray[np.float64]) -> None:
    """Refuse negative values. NaN is allowed and means unknown."""
    bad = np.flatnonzero((values < 0) | np.isinf(values))
    if len(bad):
        raise InvalidInput(f"{what} {bad[0]} is {values[bad[0]]}; it must be finite and at least 0, or NaN for unknown")


def _at_least(what: str, values: NDArray[np.int32], least: int) -> None:
    if values.min(initial=least) < least:
        bad = np.flatnonzero(values < least)
        raise InvalidInput(f"{what} {bad[0]} is {values[bad[0]]}; it must be at least {least}")


def _member(what: str, ids: NDArray[np.int32], members: int) -> None:
    if ids.min(initial=NONE) < NONE or ids.max(initial=NONE) >= members:
        bad = np.argwhere((ids < NONE) | (ids >= members))
        place = tuple(int(index) for index in bad[0])
        raise InvalidInput(
            f"{what} {place[0]} is {ids[place]}; it must be a member (0 to {members - 1}) or {NONE} for none"
        )
