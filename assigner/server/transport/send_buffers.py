"""Bounds what is ready to be sent and not read: by one peer, and by all of them together.

A response waits in memory until its reader has made room for all of it. A connection that has enough waiting gets no
more: its next responses are refused. When all together have too much, the connection that has most, of those that
stopped reading, is cut off. Consumers' streams do not count: each has one piece waiting, and is closed if it is not
read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from assigner.clock import Clock
from assigner.errors import LimitReached

MAX_UNREAD_PER_CONNECTION = 8 * 1024 * 1024
"""Bytes. A single response may be longer."""
MAX_UNREAD = 64 * 1024 * 1024
_STALLED = 1.0
"""Seconds without reading anything after which a peer may be cut off for the others' sake."""


class Unread:
    """What one connection has waiting."""

    __slots__ = ("_all", "bytes", "cut", "over", "taken")

    def __init__(self, all_of_them: Sending, now: float) -> None:
        self._all = all_of_them
        self.bytes = 0
        self.taken = now
        """When the peer last took something."""
        self.over = False
        """Whether it was cut off already: its calls take a moment to end."""
        self.cut: Callable[[], None] = lambda: None

    @contextmanager
    def waiting(self, size: int) -> Iterator[None]:
        """Count a response of so many bytes as unread while it is sent. Raises `LimitReached`."""
        if self.bytes and self.bytes + size > MAX_UNREAD_PER_CONNECTION:
            self._all.on_refused()
            raise LimitReached(
                f"{self.bytes} bytes of responses wait to be read on this connection, {size} more would be too many: "
                "read them and call again"
            )
        self._add(size)
        try:
            self._all.relieve()
            yield
        finally:
            self._add(-size)

    def _add(self, count: int) -> None:
        self.bytes += count
        self._all.bytes += count
        (self._all.owing.add if self.bytes else self._all.owing.discard)(self)


class Sending:
    """What all connections have waiting."""

    def __init__(self, clock: Clock, on_refused: Callable[[], None]) -> None:
        self.clock = clock
        self.on_refused = on_refused
        self.bytes = 0
        self.owing: set[Unread] = set()

    def connection(self) -> Unread:
        return Unread(self, self.clock.now())

    def relieve(self) -> None:
        """Cut off who leaves most unread, if it is too much in all."""
        if self.bytes <= MAX_UNREAD:
            return
        now, here = self.clock.now(), [one for one in self.owing if not one.over]
        stalled = [one for one in here if now - one.taken >= _STALLED]
        if stalled and sum(one.bytes for one in here) > MAX_UNREAD:
            worst = max(stalled, key=lambda one: one.bytes)
            worst.over = True
            self.on_refused()
            worst.cut()
