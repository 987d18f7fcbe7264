"""Shares the event loop's time between the connections, so that no peer can take it from the others.

Two kinds of work pass here: pieces of calls, which wait for their turn, and bytes that were received, which are worked
off when their connection's turn comes. Per round of the loop only a few milliseconds of either are done; what is left
waits, and timers, pings and everything else go on in between. Whose turn is next is decided by what the connections
have used so far (start-time fair queueing): one that asks for little is served at once, one that asks for more than
its share waits for itself. Connections with registered consumers have a queue of their own, which others do not
enter, and are weighted by their consumers.

A piece of a call is not measured but taken for `PIECE`; reading is measured. Nobody is refused here.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

PIECE = 0.0005
"""Seconds that a piece of a call is taken for; with a budget of eight of them, eight calls go on per round."""
_CONSUMERS_BUDGET, _OTHERS_BUDGET = 8 * PIECE, 4 * PIECE
"""Seconds of work per round, of either queue."""
_LATE = 1.0
"""Seconds of work always waiting after which there is more of it than the instance can do."""


class ConnectionShare:
    """What one connection has used of the loop, and what of it waits."""

    __slots__ = ("consumers", "ordinary", "queued", "reading", "served", "urgent")

    def __init__(self) -> None:
        self.consumers = 0
        """Consumers registered over the connection now."""
        self.served = 0.0
        """Where the connection stands on its queue's virtual clock."""
        self.urgent: deque[asyncio.Future[None]] = deque()
        self.ordinary: deque[asyncio.Future[None]] = deque()
        self.reading: Callable[[], None] | None = None
        self.queued = False

    def waits(self) -> bool:
        return bool(self.urgent or self.ordinary or self.reading)

    def forget(self) -> None:
        """The connection is gone: what waits has nobody left."""
        self.reading = None
        self.urgent.clear()
        self.ordinary.clear()


class _FairQueue:
    """Connections that wait for their turn, ordered by what they have used."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.spent = 0.0
        self._now = 0.0
        """The virtual clock: where the connection that is being served stood."""
        self._order = 0
        self._queue: list[tuple[float, int, ConnectionShare]] = []

    def __bool__(self) -> bool:
        return bool(self._queue)

    def free(self) -> bool:
        """Whether somebody may work at once."""
        return not self._queue and self.spent < self.budget

    def charge(self, share: ConnectionShare, seconds: float) -> None:
        self.spent += seconds
        share.served = max(share.served, self._now) + seconds / max(1, share.consumers)

    def push(self, share: ConnectionShare) -> None:
        if share.queued:
            return
        share.queued = True
        # Who was away has saved nothing up, and who is new owes nothing.
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
        """Whether more is asked for than can be done."""
        return self._pressed_since is not None and time.monotonic() - self._pressed_since > _LATE

    async def take(self, share: ConnectionShare | None = None, *, urgent: bool = False) -> None:
        """Return when it is the connection's turn to work for up to about a millisecond."""
        share = share or self._default
        queue = self._queue_of(share)
        self._arm()
        if queue.free():
            queue.charge(share, PIECE)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Who has no consumer has nothing urgent, whatever it calls.
        (share.urgent if urgent and share.consumers else share.ordinary).append(turn)
        self._waiting += 1
        queue.push(share)
        try:
            await turn
        finally:
            self._waiting -= 1

    def read(self, share: ConnectionShare, work: Callable[[], None]) -> bool:
        """Work off what was received, if nobody waits. Otherwise do nothing and return False."""
        queue = self._queue_of(share)
        self._arm()
        if not queue.free() or share.waits():
            return False
        self._measure(queue, share, work)
        return True

    def read_later(self, share: ConnectionShare, work: Callable[[], None]) -> None:
        """Work off what was received when the connection's turn comes."""
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
        """One piece of the connection's work. What it has begun comes before what it wants to begin."""
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
