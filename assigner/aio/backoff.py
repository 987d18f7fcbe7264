"""Provides exponential backoff with jitter derived from a name, so that waiters spread out and runs are repeatable."""

from __future__ import annotations

from hashlib import blake2b

import anyio


class Backoff:
    def __init__(self, name: str, *, first: float = 0.1, most: float = 5.0) -> None:
        self._name = name
        self._first = first
        self._most = most
        self.tries = 0
        """Failed tries since the last success."""

    def reset(self) -> None:
        self.tries = 0

    def next(self) -> float:
        """The next pause in seconds: 50 to 100 percent of a value that doubles with each try, up to `most`."""
        pause = min(self._most, self._first * 2.0 ** min(self.tries, 30))
        self.tries += 1
        digest = blake2b(f"{self._name}\0{self.tries}".encode("utf-8", "surrogatepass"), digest_size=4).digest()
        return pause * (0.5 + int.from_bytes(digest, "big") / 2**33)

    async def pause(self) -> None:
        await anyio.sleep(self.next())
