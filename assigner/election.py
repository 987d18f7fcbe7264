"""The LeaderElector: at most one instance coordinates a group, and every write says in which term it was decided.

- **Per group.** Groups are led independently, so that they spread over the instances.
- **One lease per instance.** All leader keys of an instance and its presence key hang on the same lease: an idle
  group costs one key, no lease and no stream of its own.
- **Standbys wait on the leader key** and never campaign by polling: a free key is taken at once, a held one costs
  nothing.
- **A term is a fence, not a promise.** Holding the lease does not mean that nobody else leads: this process may have
  been frozen. So every leader write carries `Term.fence`, and the store refuses it once another term began.
- **Loss is noticed** when a renewal finds the lease gone, or when two thirds of its TTL passed without a confirmed
  renewal. From then on `held()` is False, for ever, for that term.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from assigner.store import CreateRevisionIs


class Leader(msgspec.Struct, frozen=True):
    """Who leads a group, as the leader key says."""

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
        """Whether the term may still be acted upon, by this instance's own clock."""

    @abstractmethod
    async def wait_lost(self) -> str:
        """Return the reason once the term is over (lease lost, key gone, resigned)."""

    @abstractmethod
    async def resign(self) -> None:
        """Give the group up now: delete the leader key if it is still ours, so that a standby takes over at once."""


class LeaderElector(ABC):
    @abstractmethod
    async def campaign(self, group: str, *, stagger: Callable[[], Awaitable[None]] | None = None) -> Term:
        """Wait until this instance leads `group`. Cancel to stop waiting; nothing is left behind.

        `stagger` is awaited each time the group is found free, before it is taken: so an instance lets those go
        first that should lead it. Raises `Superseded` when another process took over this instance's name."""

    @abstractmethod
    async def leader(self, group: str) -> Leader | None:
        """Who leads now, by a fresh read."""

    @abstractmethod
    async def drain(self) -> None:
        """Tell the other instances that this one is about to leave, so that no group is handed to it."""

    @abstractmethod
    def healthy(self) -> bool:
        """Whether the instance's lease is held, by its own clock: the store was reached lately."""

    def restarts(self) -> Mapping[str, int]:
        """How often each loop of the elector has failed and was restarted, by its name; for metrics."""
        return {}

    def problems(self) -> Sequence[str]:
        """What keeps this elector from ever working again in this process; `/livez` tells it. Empty: nothing does."""
        return ()

    @abstractmethod
    async def close(self) -> None:
        """Resign every term, remove the instance's presence, revoke the lease."""
