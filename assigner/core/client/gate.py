"""Checks at a partition's gate whether work may begin, and whether work that began may still have its effect.

A gate is open for one epoch at a time, and only as long as the session's lease holds by the caller's own clock. No
timer closes it: each question is answered from the time it is asked at, so a process that was frozen finds its gates
shut the moment it wakes up.

Not promised: that an effect which begins right after a yes ends before the lease does. The final authority is the
epoch checked where the effect happens; the gate is the same check made early. Any thread may ask; opening and closing
belong to one. `client.gate.PartitionGate` counts the work under way.
"""

from __future__ import annotations

import math
from enum import Enum

from assigner.errors import AssignerError
from assigner.model.defaults import SAFE_SHARE
from assigner.model.keys import TopicPartition


class Shut(str, Enum):
    """Why a gate is not open."""

    NOT_OWNED = "not_owned"
    PREPARING = "preparing"
    """The handler's `assigned` has not returned yet."""
    RELEASING = "releasing"
    """The partition is being released: nothing new may begin, what has begun may end."""
    RELEASED = "released"
    REVOKED = "revoked"
    """The ownership was lost without a release."""
    LEASE_OVER = "lease_over"
    """No renewal was confirmed for two thirds of the TTL."""
    CLOSED = "closed"
    """The consumer itself is closed."""


class GateClosed(AssignerError):
    """Work on a partition that this consumer may not work on now."""

    def __init__(self, tp: TopicPartition, reason: Shut) -> None:
        super().__init__(f"the gate of {tp} is shut ({reason.value}); drop the work, its owner will do it")
        self.tp = tp
        self.reason = reason


class StaleEpoch(AssignerError):
    """Work that began under an ownership which is over."""

    def __init__(self, tp: TopicPartition, epoch: int, current: int) -> None:
        super().__init__(f"epoch {epoch} of {tp} is over, {current} is in force; drop the work of the old epoch")
        self.tp = tp
        self.epoch = epoch
        self.current = current


class Lease:
    """How long the session may count on being alive. Shared by all gates of a consumer."""

    __slots__ = ("deadline",)

    def __init__(self) -> None:
        self.deadline = -math.inf

    def renewed(self, sent_at: float, ttl: float) -> None:
        """Extend the lease from the moment the request was *sent*: the service counts from a later moment."""
        self.deadline = sent_at + ttl * SAFE_SHARE

    def end(self) -> None:
        self.deadline = -math.inf

    def holds(self, now: float) -> bool:
        return now < self.deadline


class Gate:
    """Open for `epoch` while `shut` is None and the lease holds."""

    __slots__ = ("_epoch_and_shut", "_lease", "tp")

    def __init__(self, tp: TopicPartition, lease: Lease) -> None:
        self.tp = tp
        self._lease = lease
        # One reference, replaced as a whole, so that a reader on another thread never sees half a change.
        self._epoch_and_shut: tuple[int | None, Shut | None] = (None, Shut.NOT_OWNED)

    # --- asked from anywhere -------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int | None:
        """The epoch the gate is, or was last, open for."""
        return self._epoch_and_shut[0]

    def is_open(self, now: float) -> bool:
        return self._epoch_and_shut[1] is None and self._lease.holds(now)

    def shut(self, now: float) -> Shut | None:
        shut = self._epoch_and_shut[1]
        if shut is None and not self._lease.holds(now):
            return Shut.LEASE_OVER
        return shut

    def admit(self, now: float, epoch: int | None = None) -> int:
        """The epoch under which work may begin now; with `epoch`, only if it is that one."""
        current, shut = self._epoch_and_shut
        if shut is not None or current is None:
            raise GateClosed(self.tp, shut or Shut.NOT_OWNED)
        return self._confirm(now, current, epoch)

    def check(self, now: float, epoch: int) -> int:
        """Whether work that began under `epoch` may still have its effect: also while releasing."""
        current, shut = self._epoch_and_shut
        if current is None or shut not in (None, Shut.RELEASING):
            raise GateClosed(self.tp, shut or Shut.NOT_OWNED)
        return self._confirm(now, current, epoch)

    def _confirm(self, now: float, current: int, epoch: int | None) -> int:
        if epoch is not None and epoch != current:
            raise StaleEpoch(self.tp, epoch, current)
        if not self._lease.holds(now):
            raise GateClosed(self.tp, Shut.LEASE_OVER)
        return current

    # --- set by the consumer's state -----------------------------------------------------------------------------

    def prepare(self, epoch: int) -> None:
        """Shut the gate and set the new epoch: work of the old epoch is stale from here on."""
        self._set(epoch, Shut.PREPARING)

    def open(self, epoch: int) -> None:
        self._set(epoch, None)

    def close(self, reason: Shut) -> None:
        self._set(self._epoch_and_shut[0], reason)

    def _set(self, epoch: int | None, shut: Shut | None) -> None:
        self._epoch_and_shut = (epoch, shut)
