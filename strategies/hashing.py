"""Assigns units by hashes of their numbers, within pins, holds and caps, for the strategies that hash.

A hash decides among the members that may be given a row (a cohort). Pinned units stay; members on hold keep what they
have, get nothing new and are not eligible; units above a member's cap are hashed again over the members that have
room.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from assigner.strategies.problem.current_owners import CurrentOwners
from assigner.strategies.problem.units import Units
from assigner.strategy import NONE, BoolArray, IntArray, KeyArray, Members

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Choice(Protocol):
    def __call__(self, keys: KeyArray, who: IntArray) -> IntArray:
        """Choose the member of `who` (in index order, not empty) that each key goes to."""
        ...


def splitmix64(state: KeyArray) -> KeyArray:
    """Compute Vigna's splitmix64 of a state: neighbouring states give unrelated numbers."""
    mixed = state + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def unit_keys(units: Units) -> KeyArray:
    """Compute a key per unit, from its topic's key and its number, which other topics don't change."""
    number = np.arange(len(units.owner)) - np.repeat(units.offsets[:-1], units.partitions)
    return splitmix64(np.repeat(units.key, units.partitions) + number.astype(np.uint64) * _GOLDEN)


def assign_by_hash(units: Units, members: Members, now: CurrentOwners, choose: Choice) -> IntArray:
    """Compute the owner of every unit, by `choose` among the eligible members."""
    owner = np.where(now.fixed, now.owner, np.int32(NONE))
    keys = unit_keys(units)
    eligible = units.wanted & ~members.hold
    if (members.cap != NONE).any():
        return _within_caps(units, members, now, owner, keys, eligible, choose)
    for who, rows in _cohorts(eligible):
        mine = np.flatnonzero(~now.fixed & rows[now.row])
        owner[mine] = choose(keys[mine], who)
    return owner


def _cohorts(eligible: BoolArray) -> list[tuple[IntArray, BoolArray]]:
    """Group rows by their eligible members: (members, rows). Rows without eligible members are left out."""
    if not eligible.size:
        return []
    _, first, kind = np.unique(np.packbits(eligible, axis=1), axis=0, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    cohorts = ((np.flatnonzero(eligible[row]).astype(np.int32), kind == n) for n, row in enumerate(first))
    return [(who, rows) for who, rows in cohorts if len(who)]


def _within_caps(
    units: Units,
    members: Members,
    now: CurrentOwners,
    owner: IntArray,
    keys: KeyArray,
    eligible: BoolArray,
    choose: Choice,
) -> IntArray:
    """Assign in rounds: a member takes the units that fit, in order, and is not eligible any more once a unit did not
    fit. Each round but the last excludes a member, so this ends."""
    size = units.size[now.row]
    room = np.where(members.cap == NONE, np.iinfo(np.int32).max, members.cap).astype(np.int64)
    immovable = owner != NONE
    room -= np.bincount(owner[immovable], size[immovable], members.count).astype(np.int64)
    listed = eligible & (room > 0)
    while True:
        full = np.zeros(members.count, np.bool_)
        for who, rows in _cohorts(listed):
            mine = np.flatnonzero((owner == NONE) & ~now.fixed & rows[now.row])
            chosen = choose(keys[mine], who)
            for member in np.unique(chosen).tolist():
                wanted = mine[chosen == member]
                fits = np.cumsum(size[wanted]) <= room[member]
                owner[wanted[fits]] = member
                room[member] -= int(size[wanted[fits]].sum())
                full[member] |= not fits.all()
        if not full.any():
            return owner
        listed = listed & ~full
