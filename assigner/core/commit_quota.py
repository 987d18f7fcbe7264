"""How much one group's commits may write: an even rate, some seconds' worth of it at once, and short metadata.

A store keeps the history of every commit until it is compacted, so who commits without pause fills it for all. Commits
past the rate wait a little, which slows their caller down; only when the wait would get long are they refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from assigner.api import OffsetCommit
from assigner.errors import InvalidInput, LimitReached

AT_ONCE = 10.0
"""Seconds of the rate that may be written at once."""
PATIENCE = 2.0
"""Seconds a commit waits at most."""
OVERHEAD = 150
"""Bytes of an offset's record and key, without topic and metadata."""
MOST_GROUPS = 1_000
"""Groups remembered before those that may write at once again are forgotten."""


class CommitQuota:
    def __init__(self, rate: float, metadata_bytes: int) -> None:
        """`rate`: bytes per second and group."""
        self._rate = rate
        self._metadata_bytes = metadata_bytes
        self._paid_until: dict[str, float] = {}
        """When what a group wrote would be written at its even rate."""

    def check(self, commits: Iterable[OffsetCommit]) -> None:
        """Raises `InvalidInput` for metadata that is too long."""
        for commit in commits:
            size = len(commit.metadata.encode())
            if size > self._metadata_bytes:
                raise InvalidInput(
                    f"the metadata of {commit.tp} is {size} bytes long; {self._metadata_bytes} are kept: shorten it, "
                    "or raise quotas.metadata_bytes"
                )

    def take(self, group: str, commits: Sequence[OffsetCommit], now: float) -> float:
        """Seconds to wait before the commits are written. Raises `LimitReached`, and then counts nothing."""
        size = sum(OVERHEAD + len(commit.tp.topic) + len(commit.metadata) for commit in commits)
        paid_until = max(self._paid_until.get(group, 0.0), now - AT_ONCE) + size / self._rate
        # The first of a full allowance is let through whatever its size: it could never be written otherwise.
        wait = paid_until - now
        if wait > PATIENCE and self._paid_until.get(group, 0.0) > now - AT_ONCE:
            raise LimitReached(
                f"group {group!r} commits more than {self._rate:,.0f} bytes a second at this instance; commit less "
                "often, or raise quotas.commit_rate"
            )
        self._paid_until[group] = paid_until
        if len(self._paid_until) > MOST_GROUPS:
            self._paid_until = {name: at for name, at in self._paid_until.items() if at > now - AT_ONCE}
        return min(max(0.0, wait), PATIENCE)
