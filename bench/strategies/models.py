"""Models of two published algorithms, to compare ours with: the upstream assigner's and faust's.

They are written down anew from a description of what these do, for groups whose members are all alike: no caps, holds,
pins, racks or weights. `faust` leaves out how standbys are placed: with standbys, a partition that lost its owner goes
where the round robin says instead of to a standby holder, which changes who gets it and not how many move. What is
dropped first is the highest number; faust drops whatever its set yields, so its figures differ by a few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle

import numpy as np

from assigner.strategy import NONE, IntArray, Problem

Model = Callable[[Problem], IntArray]


def upstream(problem: Problem) -> IntArray:
    """Each topic by itself: whoever has most keeps most, the highest numbers are dropped, the emptiest is filled first.

    Ties go to the first names, in every topic anew."""
    owner = problem.owner.copy()
    offsets = problem.offsets
    for topic in range(problem.topics.count):
        mine = owner[offsets[topic] : offsets[topic + 1]]
        who = np.flatnonzero(problem.members.subscription[:, topic]).astype(np.int32)
        mine[:] = _upstream_topic(mine, who, problem.members.count)
    return owner


def _upstream_topic(owner: IntArray, who: IntArray, members: int) -> IntArray:
    if not len(who):
        return np.full(len(owner), NONE, np.int32)
    rank = np.full(members + 1, NONE, np.int32)
    rank[who] = np.arange(len(who))
    place = rank[owner]  # nobody is the last entry, which has no rank
    has = np.bincount(place[place != NONE], minlength=len(who))
    floor, extras = divmod(len(owner), len(who))
    goal = np.full(len(who), floor)
    goal[np.argsort(-has, kind="stable")[:extras]] += 1
    kept = _keep_lowest(place, goal)
    place = np.where(kept, place, np.int32(NONE))
    pool = np.flatnonzero(place == NONE)
    place[pool] = _emptiest_first(np.minimum(has, goal), goal)
    return who[place]


def _keep_lowest(place: IntArray, goal: IntArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Of each owner's partitions the first ones, as many as it may have."""
    order = np.argsort(place, kind="stable")
    grouped = place[order]
    position = np.arange(len(place)) - np.searchsorted(grouped, grouped)
    kept = np.zeros(len(place), np.bool_)
    kept[order] = (grouped != NONE) & (position < goal[grouped])
    return kept


def _emptiest_first(has: IntArray, goal: IntArray) -> IntArray:
    """Who gets the next partition, one after the other, until all have what they should."""
    missing = goal - has
    member = np.repeat(np.arange(len(has)), missing)
    level = np.repeat(has, missing) + _count_up(missing)
    return member[np.lexsort((member, level))].astype(np.int32)


def _count_up(lengths: IntArray) -> IntArray:
    """0, 1, ... for each length, one after the other."""
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.asarray(np.arange(int(lengths.sum())) - starts, np.int32)


def faust(problem: Problem) -> IntArray:
    """Topics of equal size and equal subscribers move as one; see `_faust_set`."""
    return _faust(problem, standbys=False)


def faust_with_standbys(problem: Problem) -> IntArray:
    """Members then keep up to the ceiling, so that a newcomer gets what is left over: often nothing."""
    return _faust(problem, standbys=True)


def _faust(problem: Problem, *, standbys: bool) -> IntArray:
    owner = problem.owner.copy()
    offsets = problem.offsets
    for topics, who in _sets(problem):
        rows = np.array([owner[offsets[topic] : offsets[topic + 1]] for topic in topics])
        owned = [_first_held(rows, member) for member in who]
        shares = _faust_set(rows.shape[1], owned, standbys=standbys)
        slots = np.full(rows.shape[1], NONE, np.int32)
        for member, share in zip(who, shares, strict=True):
            slots[share] = member
        for topic in topics:
            owner[offsets[topic] : offsets[topic + 1]] = slots
    return owner


def _sets(problem: Problem) -> Iterator[tuple[list[int], list[int]]]:
    found: dict[tuple[int, bytes], list[int]] = {}
    for topic, size in enumerate(problem.topics.partitions.tolist()):
        found.setdefault((size, problem.members.subscription[:, topic].tobytes()), []).append(topic)
    for topics in found.values():
        who = np.flatnonzero(problem.members.subscription[:, topics[0]]).tolist()
        if who and problem.topics.partitions[topics[0]]:
            yield topics, who


def _first_held(rows: IntArray, member: int) -> list[int]:
    """What the member had of the first topic it had anything of; the others are taken to be the same."""
    has = (rows == member).any(axis=1)
    return np.flatnonzero(rows[has.argmax()] == member).tolist() if has.any() else []


def _faust_set(slots: int, owned: list[list[int]], *, standbys: bool) -> list[list[int]]:
    """Without standbys everybody is first cut to the floor; then a round robin, which starts at the emptiest, fills
    everybody up to the ceiling. The round robin does not look again at who is emptiest."""
    clients = len(owned)
    floor, ceiling = slots // clients, -(-slots // clients)
    keep = ceiling if standbys or slots < clients else floor
    shares = [held[:keep] for held in owned]
    taken = {slot for share in shares for slot in share}
    robin = cycle(sorted(range(clients), key=lambda client: len(shares[client])))
    for slot in range(slots):
        if slot not in taken:
            shares[next(client for client in robin if len(shares[client]) < ceiling)].append(slot)
    return shares


MODELS: dict[str, Model] = {
    "upstream (model)": upstream,
    "faust (model)": faust,
    "faust with standbys (model)": faust_with_standbys,
}
