"""Defines the `LeaderElector` interface: one instance at a time leads a group, and its term fences each of its writes.

- **Per group.** Groups are led independently, so that they spread over the instances.
- **One lease per instance.** All leader keys of an instance and its presence key are attached to the same lease: an
  idle group costs one key, no lease and no stream of its own.
- **Candidates watch the leader key** and do not poll: a free key is taken at once, a held one costs nothing.
- **A term is a fence, not a promise.** Holding the lease does not mean that no other instance leads: this process may
  have been frozen. So every write of a leader has `Term.fence` as a precondition, which fails once another term began.
- **Loss is noticed** when a renewal finds the lease gone, or when two thirds of its TTL passed without a confirmed
  renewal. From then on `held()` is False, for ever, for that term.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from assigner.store import CreateRevisionIs


class Leader(msgspec.Struct, frozen=True):
    """The leader of a group, as its leader key names it."""

    holder: str
    address: str
    revision: int
    """Create revision of the leader key: the term."""


class Term(ABC):
    """The time in which this instance leads one group."""

    group: str
    fence: CreateRevisionIs
    """Compare that every leader write of this term carries."""

    @property
    def revision(self) -> int:
        return self.fence.revision

    @abstractmethod
    def held(self) -> bool:
        """Whether the instance may still act as the leader, by its own clock."""

    @abstractmethod
    async def wait_lost(self) -> str:
        """Wait until the term is over, and return the reason (lease lost, key gone, resigned)."""

    @abstractmethod
    async def resign(self) -> None:
        """End the term now: delete the leader key if it is still ours, so that a candidate takes over at once."""


class LeaderElector(ABC):
    @abstractmethod
    async def campaign(self, group: str, *, stagger: Callable[[], Awaitable[None]] | None = None) -> Term:
        """Wait until this instance leads `group`. Cancel to stop waiting; nothing is left behind.

        `stagger` is awaited each time the group is found free, before it is taken, so that the preferred leader can
        take it first. Raises `Superseded` when another process took over this instance's name."""

    @abstractmethod
    async def leader(self, group: str) -> Leader | None:
        """Read from the store who leads the group now."""

    @abstractmethod
    async def drain(self) -> None:
        """Announce that this instance is about to leave, so that no group is handed to it."""

    @abstractmethod
    def healthy(self) -> bool:
        """Whether the instance still holds its lease, by its own clock."""

    def restarts(self) -> Mapping[str, int]:
        """How often each loop of the elector has failed and was restarted, by its name; for metrics."""
        return {}

    def problems(self) -> Sequence[str]:
        """The reasons why this elector can never work again in this process, for `/livez`."""
        return ()

    @abstractmethod
    async def close(self) -> None:
        """Resign every term, remove the instance's presence, revoke the lease."""
