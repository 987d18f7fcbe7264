"""Shares the event loop's time between the connections, so that no peer can take it from the others.

Two kinds of work are queued: pieces of calls, and received bytes to be processed. Each round of the loop does a few
milliseconds of either; the rest waits, so that timers, pings and other tasks run in between. The next turn goes to the
connection that has used least (start-time fair queueing): a connection that needs little is served at once, one that
needs more than its share waits for its own earlier work only. Connections with registered consumers have a queue of
their own and are weighted by their number of consumers.

A piece of a call is not measured but charged as `PIECE`; processing of received bytes is measured. Work is delayed,
never refused.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

PIECE = 0.0005
"""Seconds charged for a piece of a call; with a budget of eight of them, eight calls proceed per round."""
_CONSUMERS_BUDGET, _OTHERS_BUDGET = 8 * PIECE, 4 * PIECE
"""Seconds of work per round, for each queue."""
_LATE = 1.0
"""Seconds in which work waited without a break, after which the instance counts as overloaded."""


class ConnectionShare:
    """One connection's use of the event loop, and its queued work."""

    __slots__ = ("consumers", "ordinary", "queued", "reading", "served", "urgent")

    def __init__(self) -> None:
        self.consumers = 0
        """Consumers registered over the connection now."""
        self.served = 0.0
        """The connection's time on its queue's virtual clock."""
        self.urgent: deque[asyncio.Future[None]] = deque()
        self.ordinary: deque[asyncio.Future[None]] = deque()
        self.reading: Callable[[], None] | None = None
        self.queued = False

    def waits(self) -> bool:
        return bool(self.urgent or self.ordinary or self.reading)

    def forget(self) -> None:
        """Drop the queued work of a connection that has ended."""
        self.reading = None
        self.urgent.clear()
        self.ordinary.clear()


class _FairQueue:
    """Connections that wait for their turn, ordered by what they have used."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.spent = 0.0
        self._now = 0.0
        """The virtual clock: the time of the connection that is being served."""
        self._order = 0
        self._queue: list[tuple[float, int, ConnectionShare]] = []

    def __bool__(self) -> bool:
        return bool(self._queue)

    def free(self) -> bool:
        """Whether work may be done at once."""
        return not self._queue and self.spent < self.budget

    def charge(self, share: ConnectionShare, seconds: float) -> None:
        self.spent += seconds
        share.served = max(share.served, self._now) + seconds / max(1, share.consumers)

    def push(self, share: ConnectionShare) -> None:
        if share.queued:
            return
        share.queued = True
        # A connection that was idle gets no credit for that, and a new one starts at the present.
        share.served = max(share.served, self._now)
        self._order += 1
        heappush(self._queue, (share.served, self._order, share))

    def pop(self) -> ConnectionShare:
        self._now, _, share = heappop(self._queue)
        share.queued = False
        return share


class FairTurns:
    def __init__(self, per_round: int = 8) -> None:
        scale = per_round / 8
        self._consumers, self._others = _FairQueue(_CONSUMERS_BUDGET * scale), _FairQueue(_OTHERS_BUDGET * scale)
        self._default = ConnectionShare()
        self._default.consumers = 1
        self._waiting = 0
        self._armed = False
        self._pressed_since: float | None = None

    def __len__(self) -> int:
        """How many pieces of calls wait."""
        return self._waiting

    @property
    def late(self) -> bool:
        """Whether the instance is overloaded: work has waited without a break for `_LATE`."""
        return self._pressed_since is not None and time.monotonic() - self._pressed_since > _LATE

    async def take(self, share: ConnectionShare | None = None, *, urgent: bool = False) -> None:
        """Wait until it is the connection's turn to work for up to about a millisecond."""
        share = share or self._default
        queue = self._queue_of(share)
        self._arm()
        if queue.free():
            queue.charge(share, PIECE)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A connection without a consumer has no urgent calls.
        (share.urgent if urgent and share.consumers else share.ordinary).append(turn)
        self._waiting += 1
        queue.push(share)
        try:
            await turn
        finally:
            self._waiting -= 1

    def read(self, share: ConnectionShare, work: Callable[[], None]) -> bool:
        """Process received bytes now if no other work waits, else return False."""
        queue = self._queue_of(share)
        self._arm()
        if not queue.free() or share.waits():
            return False
        self._measure(queue, share, work)
        return True

    def read_later(self, share: ConnectionShare, work: Callable[[], None]) -> None:
        """Process received bytes when the connection's turn comes."""
        self._arm()
        share.reading = work
        self._queue_of(share).push(share)

    def _measure(self, queue: _FairQueue, share: ConnectionShare, work: Callable[[], None]) -> None:
        began = time.perf_counter()
        work()
        queue.charge(share, time.perf_counter() - began)

    def _queue_of(self, share: ConnectionShare) -> _FairQueue:
        return self._consumers if share.consumers else self._others

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._armed = False
        pressed = bool(self._consumers or self._others)
        if not pressed:
            self._pressed_since = None
        elif self._pressed_since is None:
            self._pressed_since = time.monotonic()
        worked = False
        for queue in (self._consumers, self._others):
            queue.spent = 0.0
            while queue and queue.spent < queue.budget:
                self._serve(queue, queue.pop())
            worked = worked or queue.spent > 0
        if worked or self._consumers or self._others:
            self._arm()

    def _serve(self, queue: _FairQueue, share: ConnectionShare) -> None:
        """Do one piece of the connection's work: calls in progress come before received bytes, which begin new ones."""
        for turns in (share.urgent, share.ordinary):
            while turns:
                turn = turns.popleft()
                if not turn.done():
                    turn.set_result(None)
                    queue.charge(share, PIECE)
                    return self._again(share)
        if share.reading is not None:
            work, share.reading = share.reading, None
            self._measure(queue, share, work)
        return self._again(share)

    def _again(self, share: ConnectionShare) -> None:
        if share.waits():
            self._queue_of(share).push(share)
