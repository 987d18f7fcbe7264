"""Collects what a stream has to say something about, until it can: a set of partitions, and the error that ends it.

What is sent is computed from the present records when the stream is ready for it. So a slow reader gets coalesced
changes, no reader waits for another, and memory is bounded by the partitions of the group.
"""

from __future__ import annotations

from itertools import islice

from assigner.aio.wakeup import Wakeup
from assigner.errors import AssignerError
from assigner.model.keys import TopicPartition


class StreamWake:
    """Wakes one stream for what is new, and for the error that ends it."""

    def __init__(self) -> None:
        self._wake = Wakeup()
        self._ended: AssignerError | None = None

    def end(self, error: AssignerError) -> None:
        """End the stream with this error. The first one counts."""
        if self._ended is None:
            self._ended = error
            self._wake.notify()

    def notify(self) -> None:
        """Have the stream look again."""
        self._wake.notify()

    # --- the stream's loop ---------------------------------------------------------------------------------------

    def look(self) -> int:
        """Begin to look: what comes from now on ends the wait for `news`. Raises the error that ended the stream."""
        if self._ended:
            raise self._ended
        return self._wake.mark()

    async def news(self, mark: int) -> None:
        """Wait until there is something new since that `look`."""
        await self._wake.since(mark)


class Outbox(StreamWake):
    """The partitions of one stream."""

    def __init__(self, most_at_once: int) -> None:
        """`most_at_once`: partitions that are taken out in one go."""
        super().__init__()
        self.waiting: set[TopicPartition] = set()
        self._most = most_at_once

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, tp: TopicPartition) -> None:
        self.waiting.add(tp)
        self._wake.notify()

    def clear(self) -> None:
        self.waiting.clear()

    def take(self) -> list[TopicPartition]:
        """Take partitions out, in order. Of too many, any: to sort them all for each part would take too long."""
        if len(self.waiting) <= self._most:
            taken, self.waiting = self.waiting, set()
            return sorted(taken)
        part = sorted(islice(self.waiting, self._most))
        self.waiting.difference_update(part)
        return part
