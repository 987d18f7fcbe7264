"""Decides which instance a client tries next, how long it waits for that one, and how long it pauses between tries.

Consumers and routers share it: they stay registered at one address after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import anyio

from assigner.aio.backoff import Backoff
from assigner.client.channel import Address

SHORTEST_TIMEOUT = 0.25
"""Seconds that any registration has for its first message: less would only add load to instances that are busy."""


class AddressTurns:
    """The addresses of the service, and what the last tries came to."""

    def __init__(
        self, addresses: Sequence[Address], name: str, session: str, *, first_pause: float, longest_pause: float
    ) -> None:
        """`name`: spreads the pauses of different clients. `session`: each begins somewhere else, so that clients
        spread over the instances."""
        self.current = addresses[0]
        self.last_failure = ""
        self.failed_tries = 0
        """How often a connection failed or was lost."""
        self.tries = 0
        """Failed tries in a row."""
        self._addresses = addresses
        self._first_pause = first_pause
        self._pauses = Backoff(name, first=first_pause, most=longest_pause)
        self._turn = int.from_bytes(session.encode(), "big") % len(addresses)
        self._untried = len(addresses)

    def next(self) -> Address:
        self.current = self._addresses[self._turn]
        self._turn = (self._turn + 1) % len(self._addresses)
        return self.current

    def all_from_current(self) -> Iterator[Address]:
        """Every address once, beginning with the one that was tried last."""
        for turn in range(len(self._addresses)):
            yield self._addresses[(self._turn - 1 + turn) % len(self._addresses)]

    def first_message_timeout(self, most: float, lease_left: float) -> float:
        """Seconds for a stream's first message. While the lease holds, an instance that hangs must not use up the rest
        of it: every untried address gets an equal part, and so does the renewal that follows."""
        if lease_left <= 0:
            return most
        return min(most, max(SHORTEST_TIMEOUT, lease_left / (max(self._untried, 1) + 1)))

    def succeeded(self) -> None:
        """A registration was renewed at least once."""
        self.tries = 0
        self._pauses.reset()
        self._untried = len(self._addresses)

    def failed(self, reason: str) -> bool:
        """Note a failure; returns whether to log it: the 1st, 2nd, 4th, 8th ... in a row, so that an outage of an hour
        is a handful of lines."""
        self.last_failure = f"{self.current}: {reason}"
        self.failed_tries += 1
        self.tries += 1
        return self.tries & (self.tries - 1) == 0

    async def pause(self) -> None:
        self._untried -= 1
        if self._untried > 0:
            # An untried address may be alive, and the lease is running out: do not pause.
            await anyio.sleep(self._first_pause / 10)
        else:
            await self._pauses.pause()
