"""Counts the requests that are held at this instance until others have done their part, and what they take of memory.

A JoinGroup waits for the slowest member of its group, so there are as many of them as there are members, and each keeps
the metadata that it came with. Past the bounds a request is refused: its client tries again a little later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from assigner.errors import LimitReached

MOST = 20_000
"""Requests that are held at one instance."""
MOST_BYTES = 256 * 1024 * 1024


class HeldRequests:
    def __init__(
        self, most: int = MOST, most_bytes: int = MOST_BYTES, refused: Callable[[str], None] = lambda _: None
    ) -> None:
        """`refused` is called with the reason of each refusal."""
        self._most = most
        self._most_bytes = most_bytes
        self._refused = refused
        self._count = self._bytes = 0

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def one_more(self, size: int) -> Iterator[None]:
        """Count a request of this size while the block runs. Raises `LimitReached`."""
        if self._count >= self._most or self._bytes + size > self._most_bytes:
            self._refused("held_kafka_requests")
            raise LimitReached(
                f"{self._count} requests of Kafka members with {self._bytes} bytes are held at this instance, as many "
                "as it takes; add instances, so that groups spread"
            )
        self._count += 1
        self._bytes += size
        try:
            yield
        finally:
            self._count -= 1
            self._bytes -= size
