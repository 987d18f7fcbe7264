"""The gate of a partition for programs: bound to the consumer's clock, it counts the work in progress on any thread.

    with gate.enter() as epoch:
        rows = transform(batch)
        gate.check(epoch)
        sink.write(rows, epoch=epoch)

A service that gets requests from routers admits each by the epoch that came with it:

    async with gate.entering(epoch):
        answer = table[key]

Not promised: that the sink is reached before the lease ends. Give it the epoch and let it refuse older ones.
"""

from __future__ import annotations

import threading
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType

import anyio

from assigner.aio.wakeup import Wakeup
from assigner.clock import Clock
from assigner.core.client.gate import Gate, GateClosed, Shut
from assigner.model.keys import TopicPartition

ADMIT_WITHIN = 5.0
"""Seconds that a request waits for a gate that is about to open for its epoch."""
MAX_WAITING = 1_000
"""Requests that wait at one gate; further ones are refused at once."""


class PartitionGate:
    def __init__(self, gate: Gate, clock: Clock, changes: Wakeup) -> None:
        self._gate = gate
        self._clock = clock
        self._changes = changes
        # Held while work is admitted and counted, and while the count is read. So the count that is read after a close
        # includes all work that was admitted before it, and nothing slips in between.
        self._lock = threading.Lock()
        self._inside = 0
        self._waiting = 0
        self._changed: anyio.Event | None = None
        """Set when the gate opens or closes; exists while a request waits for that."""

    @property
    def partition(self) -> TopicPartition:
        return self._gate.tp

    @property
    def is_open(self) -> bool:
        return self._gate.is_open(self._clock.now())

    @property
    def epoch(self) -> int | None:
        """The epoch that work may begin under now; None while the gate is shut."""
        return self._gate.epoch if self.is_open else None

    @property
    def inside(self) -> int:
        """How much work is in progress."""
        with self._lock:
            return self._inside

    @property
    def waiting(self) -> int:
        """How many requests wait for the gate to open."""
        return self._waiting

    def admit(self, epoch: int | None = None) -> int:
        """Return the epoch under which work may begin now. Raises `GateClosed`, or `StaleEpoch` if it is not
        `epoch`."""
        return self._gate.admit(self._clock.now(), epoch)

    def check(self, epoch: int) -> int:
        """Check that work that began under `epoch` may still have its effect: like `admit`, and also while
        releasing."""
        return self._gate.check(self._clock.now(), epoch)

    def enter(self, epoch: int | None = None) -> AbstractContextManager[int]:
        """Admit work and count it as in progress until the block is left. A release waits for it."""
        return _Work(self, epoch)

    def entering(self, epoch: int, *, within: float = ADMIT_WITHIN) -> AbstractAsyncContextManager[int]:
        """Admit a request that a router sent under `epoch`, as `enter` does, and wait up to `within` seconds for a gate
        that is about to open for it: a router may hear of a new owner before the owner does.

        Raises `StaleEpoch` at once if the epoch is over, and `GateClosed` at once if the gate can't open for it any
        more; either way nothing was done, and the router has to look again. On the consumer's event loop only."""
        return _Request(self, epoch, within)

    async def drained(self) -> None:
        """Wait until no work is in progress. On the consumer's event loop only."""
        await self._changes.until_about(self.partition, lambda: self.inside == 0)

    # --- the steps of the two context managers -------------------------------------------------------------------

    def _begin(self, epoch: int | None) -> int:
        with self._lock:
            admitted = self._gate.admit(self._clock.now(), epoch)
            self._inside += 1
        return admitted

    def _end(self) -> None:
        with self._lock:
            self._inside -= 1
            is_last = self._inside == 0
        if is_last:
            self._changes.notify_from_any_thread(self.partition)

    async def _begin_within(self, epoch: int, within: float) -> int:
        if self._waiting >= MAX_WAITING:
            raise GateClosed(self.partition, Shut.CROWDED)
        self._waiting += 1
        self._gate.on_change = self._wake
        try:
            with anyio.move_on_after(within):
                while self._gate.may_open_for(epoch):
                    if self._changed is None:
                        self._changed = anyio.Event()
                    await self._changed.wait()
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._gate.on_change = self._changed = None
        self._gate.refuse_stale(epoch)
        return self._begin(epoch)

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def __repr__(self) -> str:
        shut = self._gate.shut(self._clock.now())
        return f"<gate of {self.partition}: {'open' if shut is None else shut.value}, epoch {self._gate.epoch}>"


class _Work:
    """The block of `enter`."""

    __slots__ = ("_epoch", "_gate")

    def __init__(self, gate: PartitionGate, epoch: int | None) -> None:
        self._gate = gate
        self._epoch = epoch

    def __enter__(self) -> int:
        return self._gate._begin(self._epoch)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate._end()


class _Request:
    """The block of `entering`."""

    __slots__ = ("_epoch", "_gate", "_within")

    def __init__(self, gate: PartitionGate, epoch: int, within: float) -> None:
        self._gate = gate
        self._epoch = epoch
        self._within = within

    async def __aenter__(self) -> int:
        try:
            return self._gate._begin(self._epoch)
        except GateClosed:
            self._gate._gate.refuse_stale(self._epoch)
            if not self._gate._gate.may_open_for(self._epoch):
                raise
        return await self._gate._begin_within(self._epoch, self._within)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate._end()
