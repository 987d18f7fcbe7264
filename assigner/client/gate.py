"""The gate of a partition for programs: bound to the consumer's clock, it counts the work in progress on any thread.

    with gate.enter() as epoch:
        rows = transform(batch)
        gate.check(epoch)
        sink.write(rows, epoch=epoch)

Not promised: that the sink is reached before the lease ends. Give it the epoch and let it refuse older ones.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from assigner.aio.wakeup import Wakeup
from assigner.clock import Clock
from assigner.core.client.gate import Gate
from assigner.model.keys import TopicPartition


class PartitionGate:
    def __init__(self, gate: Gate, clock: Clock, changes: Wakeup) -> None:
        self._gate = gate
        self._clock = clock
        self._changes = changes
        # Held while work is admitted and counted, and while the count is read. So the count that is read after a close
        # includes all work that was admitted before it, and nothing slips in between.
        self._lock = threading.Lock()
        self._inside = 0

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

    def admit(self, epoch: int | None = None) -> int:
        """Return the epoch under which work may begin now. Raises `GateClosed`, or `StaleEpoch` if it is not
        `epoch`."""
        return self._gate.admit(self._clock.now(), epoch)

    def check(self, epoch: int) -> int:
        """Check that work that began under `epoch` may still have its effect: like `admit`, and also while
        releasing."""
        return self._gate.check(self._clock.now(), epoch)

    @contextmanager
    def enter(self, epoch: int | None = None) -> Iterator[int]:
        """Admit work and count it as in progress until the block is left. A release waits for it."""
        with self._lock:
            admitted = self._gate.admit(self._clock.now(), epoch)
            self._inside += 1
        try:
            yield admitted
        finally:
            with self._lock:
                self._inside -= 1
                is_last = self._inside == 0
            if is_last:
                self._changes.notify_from_any_thread(self.partition)

    async def drained(self) -> None:
        """Wait until no work is in progress. On the consumer's event loop only."""
        await self._changes.until_about(self.partition, lambda: self.inside == 0)

    def __repr__(self) -> str:
        shut = self._gate.shut(self._clock.now())
        return f"<gate of {self.partition}: {'open' if shut is None else shut.value}, epoch {self._gate.epoch}>"
