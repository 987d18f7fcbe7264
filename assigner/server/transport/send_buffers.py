"""Bounds the responses that peers have not read yet, for each connection and in all.

A response stays in memory until the flow-control window of its reader has let all of it through. A connection at its
bound gets no more: its next responses are refused. At the total bound, the connection with most unread bytes among
those that stopped reading is closed. Consumers' streams do not count: each has one piece in memory, and is closed if
that is not read.
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
"""Seconds without a read after which a connection may be closed at the total bound."""


class Unread:
    """The unread responses of one connection."""

    __slots__ = ("_all", "bytes", "cut", "over", "taken")

    def __init__(self, all_of_them: Sending, now: float) -> None:
        self._all = all_of_them
        self.bytes = 0
        self.taken = now
        """When the peer last read something."""
        self.over = False
        """Whether it was closed already: its calls take a moment to end."""
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
            self._all.enforce_total()
            yield
        finally:
            self._add(-size)

    def _add(self, count: int) -> None:
        self.bytes += count
        self._all.bytes += count
        (self._all.with_unread.add if self.bytes else self._all.with_unread.discard)(self)


class Sending:
    """The unread responses of all connections."""

    def __init__(self, clock: Clock, on_refused: Callable[[], None]) -> None:
        self.clock = clock
        self.on_refused = on_refused
        self.bytes = 0
        self.with_unread: set[Unread] = set()

    def connection(self) -> Unread:
        return Unread(self, self.clock.now())

    def enforce_total(self) -> None:
        """At the total bound, close the connection with most unread bytes among those that stopped reading."""
        if self.bytes <= MAX_UNREAD:
            return
        now, here = self.clock.now(), [one for one in self.with_unread if not one.over]
        stalled = [one for one in here if now - one.taken >= _STALLED]
        if stalled and sum(one.bytes for one in here) > MAX_UNREAD:
            worst = max(stalled, key=lambda one: one.bytes)
            worst.over = True
            self.on_refused()
            worst.cut()
