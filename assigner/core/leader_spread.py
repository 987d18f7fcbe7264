"""Which instance should lead which group: even shares, by a rule every instance works out alone.

Rendezvous hashing with a bounded load: each (group, instance) pair has a score; a group goes where it scores highest,
and an instance keeps the highest scores up to its share and a little slack and sends the others on. So no instance
leads far more than another, and a joining or leaving instance moves little more than its own share.

Not promised: that all instances agree at every moment. They see the same sets of groups and instances a little
apart, and nothing but convenience depends on it: who really leads is decided by the leader key.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b

import msgspec

_MAX_DOUBLINGS = 6


class SpreadSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times in seconds."""

    slack: float = 1.1
    """How far above the even share an instance may go. Nearer 1: more even, and more moves at each change."""
    courtesy: float = 0.5
    """How long each rank lets the ranks before it go first to a free group."""
    settle: float = 10.0
    """How long the set of instances must not have changed before groups are handed over."""
    batch: int = 5
    """Groups handed over at a time."""
    pause: float = 1.0
    """Between two such batches."""
    patience: float = 60.0
    """Before a group that came back is handed over once more; doubles each time."""


class LeaderSpread(msgspec.Struct, frozen=True):
    """The wanted leader of each group, for one set of groups and instances."""

    homes: Mapping[str, str]
    instances: tuple[str, ...]

    def home(self, group: str) -> str | None:
        """Who should lead the group; None while nobody can."""
        return self.homes.get(group)

    def rank(self, group: str, instance: str) -> int:
        """0 for the wanted leader, then by score. An instance that is not in the set comes last."""
        home = self.home(group)
        if instance == home:
            return 0
        if instance not in self.instances:
            return len(self.instances)
        mine = score(group, instance)
        ahead = sum(other != home and score(group, other) > mine for other in self.instances)
        return ahead + (home is not None)


NOWHERE = LeaderSpread({}, ())


def spread(groups: Collection[str], instances: Iterable[str], slack: float = 1.1) -> LeaderSpread:
    members = tuple(sorted(set(instances)))
    if not members or not groups:
        return LeaderSpread({}, members)
    # Less a trifle: 1.1 * 100 / 2 is a little more than 55, and must not make 56.
    share = math.ceil(max(1.0, slack) * len(groups) / len(members) - 1e-9)
    guests: dict[str, list[tuple[int, str]]] = {member: [] for member in members}
    open_to: dict[str, tuple[str, ...]] = {}
    """Per group that was turned away: where it has not been yet."""
    seeking: list[str] = list(groups)
    while seeking:
        for group in seeking:
            best, member = max((score(group, member), member) for member in open_to.get(group, members))
            guests[member].append((best, group))
        seeking = []
        for member, crowd in guests.items():
            if len(crowd) > share:
                crowd.sort(reverse=True)
                for _, group in crowd[share:]:
                    open_to[group] = tuple(other for other in open_to.get(group, members) if other != member)
                    seeking.append(group)
                del crowd[share:]
    return LeaderSpread({group: member for member, crowd in guests.items() for _, group in crowd}, members)


@lru_cache(maxsize=1 << 17)
def score(group: str, instance: str) -> int:
    # A digest, not hash(): every instance and every version of Python must come to the same number.
    digest = blake2b(f"{group}\0{instance}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def campaign_delay(group: str, me: str, wanted: LeaderSpread, courtesy: float = 0.5) -> float:
    """How long to let others go first to a free group: not at all for its home."""
    return courtesy * wanted.rank(group, me)


class Handover:
    """Decides which led groups to give to their home, and when to ask again.

    Only after the set of instances has settled, so that a rolling restart does not chase groups around; a few at
    a time, so that not all groups of an instance are without a leader in the same moment; and ever more rarely for
    a group that keeps coming back, since its home is evidently not taking it.
    """

    def __init__(self, settings: SpreadSettings, now: float) -> None:
        self._settings = settings
        self._settled_at = now + settings.settle
        self._next_batch_at = now
        self._returns: dict[str, tuple[int, float]] = {}
        """How often a group was given away in this set of instances, and when it may be again."""

    def instances_changed(self, now: float) -> None:
        self._settled_at = now + self._settings.settle
        self._returns.clear()

    def due(
        self, now: float, me: str, led: Iterable[str], wanted: LeaderSpread
    ) -> tuple[tuple[str, ...], float | None]:
        """The groups to give up now, and when to ask again unless something changes first."""
        misplaced = sorted(group for group in led if wanted.home(group) not in (None, me))
        if not misplaced:
            return (), None
        opens_at = max(self._settled_at, self._next_batch_at)
        if now < opens_at:
            return (), opens_at
        ready = [group for group in misplaced if self._may_go_at(group) <= now]
        chosen = tuple(ready[: self._settings.batch])
        for group in chosen:
            self._given(group, now)
        if chosen:
            self._next_batch_at = now + self._settings.pause
        wake_at = min(self._may_go_at(group) for group in misplaced)
        return chosen, max(wake_at, self._next_batch_at)

    def _may_go_at(self, group: str) -> float:
        return self._returns.get(group, (0, 0.0))[1]

    def _given(self, group: str, now: float) -> None:
        times = self._returns.get(group, (0, 0.0))[0]
        pause = self._settings.patience * 2 ** min(times, _MAX_DOUBLINGS)
        self._returns[group] = (times + 1, now + pause)
