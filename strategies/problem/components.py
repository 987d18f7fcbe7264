"""Splits a problem into components: members without a common topic, not even through others, are solved separately.

Each component often has equal subscriptions, for which there is a fast solver.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from assigner.strategies.problem.shares import Indices
from assigner.strategies.problem.units import Units
from assigner.strategy import NONE, BoolArray, IntArray, Members


@dataclass(frozen=True)
class Component:
    units: Units
    members: Members
    which_units: Indices
    """Their indices among all units."""
    which_members: IntArray


def components(units: Units, members: Members) -> list[Component]:
    """Split the problem into components that have units and eligible members. Units in none have no eligible member."""
    of_row, of_member = labels(units.wanted & (units.partitions > 0)[:, None])
    numbers = np.unique(of_member[of_member < units.count])
    return [_component(units, members, of_row == number, of_member == number) for number in numbers.tolist()]


def labels(wanted: BoolArray) -> tuple[IntArray, IntArray]:
    """Label (rows, members) by component, for `wanted` as [row, member]. A label is the component's lowest row, or the
    number of rows for a member that wants none."""
    rows = len(wanted)
    # A dictionary of bytes is much faster than sorting rows.
    numbers: dict[bytes, int] = {}
    packed = np.packbits(wanted.T, axis=1)
    kind = [numbers.setdefault(row.tobytes(), len(numbers)) for row in packed]
    wants = np.frombuffer(b"".join(numbers), np.uint8).reshape(len(numbers), packed.shape[1])
    of_row, of_pattern = _labels(np.unpackbits(wants, axis=1, count=rows).astype(np.bool_))
    return of_row, of_pattern[kind]


def _labels(patterns: BoolArray) -> tuple[IntArray, IntArray]:
    rows = patterns.shape[1]
    of_row = np.arange(rows, dtype=np.int32)
    while True:
        of_pattern = np.where(patterns, of_row, np.int32(rows)).min(axis=1, initial=rows).astype(np.int32)
        low = np.where(patterns, of_pattern[:, None], np.int32(rows)).min(axis=0, initial=rows)
        lower = np.minimum(of_row, low).astype(np.int32)
        if bool((lower == of_row).all()):
            return of_row, of_pattern
        of_row = lower


def _component(units: Units, members: Members, rows: BoolArray, who: BoolArray) -> Component:
    which = np.flatnonzero(np.repeat(rows, units.partitions))
    chosen = np.flatnonzero(who).astype(np.int32)
    # The last entry is for NONE, which as an index means the last.
    number = np.full(len(who) + 1, NONE, np.int32)
    number[chosen] = np.arange(len(chosen), dtype=np.int32)
    part = replace(
        units,
        rows=None,
        partitions=units.partitions[rows],
        size=units.size[rows],
        key=units.key[rows],
        wanted=units.wanted[np.ix_(rows, who)],
        owner=number[units.owner[which]],
        pinned=units.pinned[which],
        weight=None if units.weight is None else units.weight[which],
        standbys=None,
    )
    return Component(part, _chosen(members, chosen), which, chosen)


def _chosen(members: Members, who: IntArray) -> Members:
    return Members(
        members.capacity[who],
        members.rack[who],
        members.subscription[who],
        members.hold[who],
        members.cap[who],
        None if members.load is None else members.load[who],
        None if members.key is None else members.key[who],
    )
