"""Keeps the requests that wait for their partition, in their order and within limits.

A request that exceeds a limit when it arrives is refused at once, and one that has waited for too long is refused then.
A caller that is cancelled leaves its place at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum

import msgspec

from assigner.errors import AssignerError, InvalidInput
from assigner.model.keys import TopicPartition


class StashBound(str, Enum):
    """Which limit a request met."""

    PARTITION_REQUESTS = "partition_requests"
    PARTITION_BYTES = "partition_bytes"
    REQUESTS = "requests"
    BYTES = "bytes"
    AGE = "age"


class StashLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests may wait, how large they may be together, and for how long each may wait."""

    partition_requests: int = 10_000
    """That wait for one partition."""
    partition_bytes: int = 64 * 2**20
    """Of the requests that wait for one partition, as their callers gave it by `size=`."""
    requests: int = 100_000
    """That wait for any partition."""
    bytes: int = 256 * 2**20
    age: float = 30.0
    """Seconds. Keep it above the group's `freeze_timeout` (10 s), after which a move that waits for routers ends."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise InvalidInput(f"the stash's limit {name} is {getattr(self, name)}; it must be above 0")


_REMEDIES = {
    StashBound.PARTITION_REQUESTS: "let callers retry, or raise StashLimits.partition_requests",
    StashBound.PARTITION_BYTES: "let callers retry, or raise StashLimits.partition_bytes",
    StashBound.REQUESTS: "let callers retry, add routers, or raise StashLimits.requests",
    StashBound.BYTES: "let callers retry, add routers, or raise StashLimits.bytes",
    StashBound.AGE: "let callers retry; find out why the partition has no owner, or is frozen, for so long",
}


class StashOverflow(AssignerError):
    """A request could not wait for its partition, or not any longer. It was not sent."""

    def __init__(self, tp: TopicPartition, bound: StashBound, limit: float) -> None:
        super().__init__(
            f"a request of {tp} met the stash's limit {bound.value} of {limit:g} and was not sent; {_REMEDIES[bound]}"
        )
        self.tp = tp
        self.bound = bound
        self.limit = limit


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the requests so far."""

    routed: int
    """Requests that were given a target."""
    held: int
    """Of these, those that waited in the stash."""
    stashed: int
    """Requests that wait now."""
    stashed_bytes: int
    in_flight: int
    overflowed: int
    """Requests that met a limit of the stash."""
    given_up: int
    """Requests whose caller was cancelled while they waited."""


class Waiting:
    """A request that waits."""

    __slots__ = ("_error", "_future", "_timer", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._future: asyncio.Future[None] | None = None
        self._error: AssignerError | None = None
        self._timer: asyncio.TimerHandle | None = None

    def expire_in(self, seconds: float, error: AssignerError) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self.fail, error)

    async def until_woken(self) -> None:
        """Wait for the next `wake`. Raises the error of a `fail`, before or after the call."""
        if self._error is not None:
            raise self._error
        self._future = asyncio.get_running_loop().create_future()
        await self._future
        if self._error is not None:
            raise self._error

    def wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def fail(self, error: AssignerError) -> None:
        self._error = error
        self.wake()

    def leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class StashQueue:
    """The requests that wait for one partition, in their order."""

    __slots__ = ("_waiting", "bytes", "tp")

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.bytes = 0
        self._waiting: OrderedDict[Waiting, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def first(self) -> Waiting | None:
        return next(iter(self._waiting), None)

    def add(self, waiting: Waiting) -> None:
        self._waiting[waiting] = None
        self.bytes += waiting.size

    def remove(self, waiting: Waiting) -> None:
        del self._waiting[waiting]
        self.bytes -= waiting.size

    def wake_all(self) -> None:
        """Let every request look again. Those that wake up do so in their order."""
        for waiting in list(self._waiting):
            waiting.wake()

    def fail_all(self, error: Callable[[], AssignerError]) -> None:
        for waiting in list(self._waiting):
            waiting.fail(error())


class Stash:
    """All requests that wait, and the queues that they are in."""

    def __init__(self, limits: StashLimits) -> None:
        self.bytes = 0
        self._limits = limits
        self._size = 0
        self._queues: dict[TopicPartition, StashQueue] = {}

    def __len__(self) -> int:
        return self._size

    def __contains__(self, tp: TopicPartition) -> bool:
        """Whether requests wait for a partition."""
        return tp in self._queues

    def enter(self, queue: StashQueue, size: int) -> Waiting:
        """Add a request to the end of a queue. Raises `StashOverflow`."""
        self._check(queue, size)
        waiting = Waiting(size)
        waiting.expire_in(self._limits.age, StashOverflow(queue.tp, StashBound.AGE, self._limits.age))
        queue.add(waiting)
        self._size += 1
        self.bytes += size
        self._queues[queue.tp] = queue
        return waiting

    def leave(self, queue: StashQueue, waiting: Waiting) -> None:
        waiting.leave()
        queue.remove(waiting)
        self._size -= 1
        self.bytes -= waiting.size
        first = queue.first
        if first is None:
            del self._queues[queue.tp]
        else:
            # It may have been woken while another one was before it.
            first.wake()

    def wake(self, tp: TopicPartition) -> None:
        queue = self._queues.get(tp)
        if queue is not None:
            queue.wake_all()

    def wake_all(self) -> None:
        for queue in list(self._queues.values()):
            queue.wake_all()

    def fail_all(self, error: Callable[[], AssignerError]) -> None:
        """Fail every request, each with an error of its own: one that is raised often keeps the frames of each time."""
        for queue in list(self._queues.values()):
            queue.fail_all(error)

    def _check(self, queue: StashQueue, size: int) -> None:
        limits = self._limits
        for bound, would_be, limit in (
            (StashBound.PARTITION_REQUESTS, len(queue) + 1, limits.partition_requests),
            (StashBound.PARTITION_BYTES, queue.bytes + size, limits.partition_bytes),
            (StashBound.REQUESTS, self._size + 1, limits.requests),
            (StashBound.BYTES, self.bytes + size, limits.bytes),
        ):
            if would_be > limit:
                raise StashOverflow(queue.tp, bound, limit)
