"""Swaps: two members exchange one unit each, where no single unit has the right weight.

A swap is two moves, so it must be worth twice as much as one: both what it shifts and what is left of the gap must
pass twice the margins. For each member the `_PARTNERS` members furthest on the other side are tried, up to `_PAIRS`
pairs of units. After `_FAILURES` members in a row that found none it is given up, and in parts of more than `_MEMBERS`
members not begun: in groups beyond these sizes a swap may be missed.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import BoolArray, FloatArray
from strategies.weighted_holdings import Holdings

_PARTNERS = 32
_PAIRS = 100_000
_FAILURES = 256
_MEMBERS = 2048


class Swaps:
    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings

    def make(self, members: BoolArray, band: FloatArray, margin: FloatArray, only_look: bool = False) -> bool:
        """Let each of these members that is outside its band swap if it can. Whether any could."""
        excess = self._holdings.excess
        out = np.where(members, np.abs(excess) - band, 0.0)
        line = np.flatnonzero(out > 0) if len(excess) <= _MEMBERS else np.zeros(0, np.int64)
        found, failures = False, 0
        for member in line[np.argsort(-out[line], kind="stable")].tolist():
            pair = self._best(member, margin) if abs(excess[member]) > band[member] else None
            failures = 0 if pair else failures + 1
            if failures == _FAILURES:
                break
            if pair:
                found = True
                if only_look:
                    break
                self._swap(*pair)
        return found

    def _swap(self, heavy: int, light: int) -> None:
        owner = self._holdings.part.owner
        giver, taker = int(owner[heavy]), int(owner[light])
        self._holdings.hand_over(np.array([heavy]), giver, taker)
        self._holdings.hand_over(np.array([light]), taker, giver)

    def _best(self, member: int, margin: FloatArray) -> tuple[int, int] | None:
        """The two units to exchange that lower the potential most, the heavy one first."""
        part, excess = self._holdings.part, self._holdings.excess
        mine = self._holdings.units(member)
        sign = 1.0 if excess[member] > 0 else -1.0
        theirs = np.concatenate([mine[:0], *map(self._holdings.units, self._partners(member, sign))])
        if not len(mine) or not len(theirs):
            return None
        who = part.owner[theirs]
        least = 2 * (margin[member] + margin[who])
        gap = sign * (excess[member] - excess[who])
        shift = sign * (part.weight[mine][:, None] - part.weight[theirs][None, :])
        worth = np.where((shift > least) & (gap - shift > least), shift * (gap - shift), 0.0)
        if len(part.takes) > 1:
            worth *= part.takes[part.kind[mine]][:, who] & part.takes[part.kind[theirs], member]
        if part.capped:
            more = part.size[mine][:, None] - part.size[theirs][None, :]
            worth *= (more <= part.room[who]) & (-more <= part.room[member])
        best = int(worth.argmax())
        if worth.flat[best] <= 0:
            return None
        own, other = int(mine[best // len(theirs)]), int(theirs[best % len(theirs)])
        return (own, other) if sign > 0 else (other, own)

    def _partners(self, member: int, sign: float) -> list[int]:
        """By a rule that does not ask for margins: what is found with wide ones is found with narrow ones too."""
        gap = sign * (self._holdings.excess[member] - self._holdings.excess)
        line = np.flatnonzero(gap > 0)
        if len(line) > _PARTNERS:
            line = line[np.argpartition(-gap[line], _PARTNERS)[:_PARTNERS]]
        units, pairs = len(self._holdings.units(member)), 0
        chosen: list[int] = []
        for partner in line[np.lexsort((line, -gap[line]))].tolist():
            pairs += units * len(self._holdings.units(partner))
            if chosen and pairs > _PAIRS:
                break
            chosen.append(partner)
        return chosen
