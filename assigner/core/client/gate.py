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
from collections.abc import Callable
from enum import Enum

from assigner.errors import AssignerError
from assigner.model.defaults import SAFE_SHARE
from assigner.model.keys import TopicPartition


class Shut(str, Enum):
    """Why a gate is not open."""

    NOT_OWNED = "not_owned"
    NOT_YET = "not_yet"
    """Work of a newer epoch than this consumer was granted: whoever gave it the epoch heard of it first."""
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
    CROWDED = "crowded"
    """Too much work waits for the gate to open."""


_PASSING = frozenset({Shut.NOT_YET, Shut.PREPARING, Shut.CROWDED})


class GateClosed(AssignerError):
    """Work on a partition that this consumer may not work on now."""

    def __init__(self, tp: TopicPartition, reason: Shut) -> None:
        remedy = "try again" if reason in _PASSING else "drop the work, its owner will do it"
        super().__init__(f"the gate of {tp} is shut ({reason.value}); {remedy}")
        self.tp = tp
        self.reason = reason

    @property
    def is_passing(self) -> bool:
        """Whether the gate may soon admit the same work, without a change of the owner."""
        return self.reason in _PASSING


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

    __slots__ = ("_epoch_and_shut", "_lease", "on_change", "tp")

    def __init__(self, tp: TopicPartition, lease: Lease) -> None:
        self.tp = tp
        self.on_change: Callable[[], None] | None = None
        """Called after each opening and closing; set by who waits for one."""
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

    def refuse_stale(self, epoch: int) -> None:
        """Raise `StaleEpoch` if the gate was prepared for a later epoch than this one, open or not."""
        current = self._epoch_and_shut[0]
        if current is not None and epoch < current:
            raise StaleEpoch(self.tp, epoch, current)

    def may_open_for(self, epoch: int) -> bool:
        """Whether the gate, shut for this epoch now, may open for it: the epoch is being prepared, or is newer than
        any that this consumer knows of."""
        current, shut = self._epoch_and_shut
        if shut is Shut.CLOSED:
            return False
        return current is None or epoch > current or (epoch == current and shut is Shut.PREPARING)

    def _confirm(self, now: float, current: int, epoch: int | None) -> int:
        if epoch is not None and epoch != current:
            if epoch > current:
                raise GateClosed(self.tp, Shut.NOT_YET)
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

    def forget(self) -> None:
        """Shut the gate and forget its epoch, because epochs are counted from the beginning again."""
        self._set(None, Shut.NOT_OWNED)

    def _set(self, epoch: int | None, shut: Shut | None) -> None:
        self._epoch_and_shut = (epoch, shut)
        if self.on_change is not None:
            self.on_change()
