"""Computes the preferred leader of each group: even shares, by a rule that every instance evaluates alone.

Rendezvous hashing with bounded load: each (group, instance) pair has a score. A group goes to the instance with the
highest score; an instance keeps its highest scores up to its share and a little slack, and passes the others on. So no
instance leads far more than another, and an instance that joins or leaves moves little more than its own share.

Not promised: that all instances agree at every moment. They see changes of the sets of groups and instances at slightly
different times. No safety depends on it: who leads is decided by the leader key.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b

import msgspec

_MAX_DOUBLINGS = 6


class SpreadSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How groups are spread over instances. Times in seconds."""

    slack: float = 1.1
    """Most groups of an instance, as a multiple of the even share. Nearer 1: more even, and more moves per change."""
    stagger: float = 0.5
    """How long each rank waits for the rank before it when they campaign for a free group."""
    settle: float = 10.0
    """How long the set of instances must be unchanged before groups are handed over."""
    batch: int = 5
    """Groups handed over at a time."""
    pause: float = 1.0
    """Between two such batches."""
    handover_backoff: float = 60.0
    """How long before a group that came back is handed over once more; doubles each time."""


class LeaderSpread(msgspec.Struct, frozen=True):
    """The preferred leader of each group, for one set of groups and instances."""

    preferred_leaders: Mapping[str, str]
    instances: tuple[str, ...]

    def preferred(self, group: str) -> str | None:
        """The instance that should lead the group; None: there is none."""
        return self.preferred_leaders.get(group)

    def rank(self, group: str, instance: str) -> int:
        """The instance's position among those that may lead the group: 0 is the preferred leader, the others follow by
        score. An instance that is not in the set comes last."""
        preferred = self.preferred(group)
        if instance == preferred:
            return 0
        if instance not in self.instances:
            return len(self.instances)
        mine = score(group, instance)
        ahead = sum(other != preferred and score(group, other) > mine for other in self.instances)
        return ahead + (preferred is not None)


NO_SPREAD = LeaderSpread({}, ())


def spread(groups: Collection[str], instances: Iterable[str], slack: float = 1.1) -> LeaderSpread:
    members = tuple(sorted(set(instances)))
    if not members or not groups:
        return LeaderSpread({}, members)
    # Less an epsilon: 1.1 * 100 / 2 is a little more than 55 in floating point, and must not make 56.
    share = math.ceil(max(1.0, slack) * len(groups) / len(members) - 1e-9)
    accepted: dict[str, list[tuple[int, str]]] = {member: [] for member in members}
    remaining: dict[str, tuple[str, ...]] = {}
    """Per group that was passed on: the instances that have not refused it."""
    unplaced: list[str] = list(groups)
    while unplaced:
        for group in unplaced:
            best, member = max((score(group, member), member) for member in remaining.get(group, members))
            accepted[member].append((best, group))
        unplaced = []
        for member, held in accepted.items():
            if len(held) > share:
                held.sort(reverse=True)
                for _, group in held[share:]:
                    remaining[group] = tuple(other for other in remaining.get(group, members) if other != member)
                    unplaced.append(group)
                del held[share:]
    return LeaderSpread({group: member for member, held in accepted.items() for _, group in held}, members)


@lru_cache(maxsize=1 << 17)
def score(group: str, instance: str) -> int:
    # A digest, not hash(): every instance and every version of Python must come to the same number.
    digest = blake2b(f"{group}\0{instance}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def campaign_delay(group: str, me: str, wanted: LeaderSpread, stagger: float = 0.5) -> float:
    """Seconds to wait before campaigning for a free group: none for its preferred leader."""
    return stagger * wanted.rank(group, me)


class Handover:
    """Decides which led groups to hand over to their preferred leader, and when to check again.

    Only after the set of instances has settled, so that a rolling restart does not move groups back and forth; a few at
    a time, so that not all groups of an instance are without a leader at the same moment; and with a growing backoff
    for a group that keeps coming back, since its preferred leader is evidently not taking it.
    """

    def __init__(self, settings: SpreadSettings, now: float) -> None:
        self._settings = settings
        self._settled_at = now + settings.settle
        self._next_batch_at = now
        self._returns: dict[str, tuple[int, float]] = {}
        """Group -> how often it was handed over in this set of instances, and when it may be again."""

    def instances_changed(self, now: float) -> None:
        self._settled_at = now + self._settings.settle
        self._returns.clear()

    def due(
        self, now: float, me: str, led: Iterable[str], wanted: LeaderSpread
    ) -> tuple[tuple[str, ...], float | None]:
        """The groups to hand over now, and when to ask again unless something changes first."""
        misplaced = sorted(group for group in led if wanted.preferred(group) not in (None, me))
        if not misplaced:
            return (), None
        opens_at = max(self._settled_at, self._next_batch_at)
        if now < opens_at:
            return (), opens_at
        ready = [group for group in misplaced if self._may_go_at(group) <= now]
        chosen = tuple(ready[: self._settings.batch])
        for group in chosen:
            self._handed_over(group, now)
        if chosen:
            self._next_batch_at = now + self._settings.pause
        wake_at = min(self._may_go_at(group) for group in misplaced)
        return chosen, max(wake_at, self._next_batch_at)

    def _may_go_at(self, group: str) -> float:
        return self._returns.get(group, (0, 0.0))[1]

    def _handed_over(self, group: str, now: float) -> None:
        times = self._returns.get(group, (0, 0.0))[0]
        pause = self._settings.handover_backoff * 2 ** min(times, _MAX_DOUBLINGS)
        self._returns[group] = (times + 1, now + pause)
