"""Provides `CutoverExecutor`: it gives each request its target, or holds it back until there is one.

    async with executor.route("orders", key) as target:
        await send(target.address, request, epoch=target.epoch)

The block is the request: while it lasts, the request counts as in flight to the owner of that epoch. A request waits
while its partition is frozen, has no owner, or the router may not route at all; what waits for a partition goes on in
the order in which it came, and before anything that comes later. So requests of a key begin in their order.

It belongs to one event loop. Not promised: the order of requests that are in flight at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType

from assigner.core.routing.balance import KeylessBalance
from assigner.core.routing.partitioner import Partitioner
from assigner.core.routing.table import RoutingTable
from assigner.errors import InvalidInput, UnknownTopic
from assigner.model.keys import TopicPartition
from assigner.model.routes import Route
from assigner.routing.handler import RouterClosed, Target
from assigner.routing.stash import RequestCounts, Stash, StashLimits, StashOverflow, StashQueue

UNRESOLVED = -1
"""Stands for the partition of requests that wait for the first table, which says how many partitions there are."""


class _Flight:
    """The requests in flight to the owner of one epoch of a partition."""

    __slots__ = ("count", "route", "target")

    def __init__(self, tp: TopicPartition, route: Route) -> None:
        self.count = 0
        self.route = route
        self.target = Target(tp.topic, tp.partition, route.owner, route.address, route.epoch)


class _Lane:
    """The requests of one partition: those in flight, and those that wait."""

    __slots__ = ("drained", "flight", "flights", "is_open", "queue", "route", "tp")

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.is_open = False
        self.route: Route | None = None
        """Where requests go while the lane is open, or went before."""
        self.flight: _Flight | None = None
        """Of `route`."""
        self.flights: list[_Flight] | None = None
        """Those with requests in flight, of any epoch; few, as long as requests end. None: the lane was never used."""
        self.queue: StashQueue | None = None
        self.drained: asyncio.Event | None = None
        """Set when a flight has ended; exists while a drain waits for that."""

    def begin(self, route: Route) -> _Flight:
        flight = self.flight
        if flight is None or flight.route is not route:
            flight = self.flight = _Flight(self.tp, route)
        if flight.count == 0:
            if self.flights is None:
                self.flights = []
            self.flights.append(flight)
        flight.count += 1
        return flight

    def end(self, flight: _Flight) -> None:
        flight.count -= 1
        if flight.count == 0 and self.flights is not None:
            self.flights.remove(flight)
            if self.drained is not None:
                self.drained.set()

    def is_draining(self) -> bool:
        """Whether requests are in flight to the last owner. One that hangs at an owner before that delays nothing."""
        last = self.route
        return last is not None and any(
            one.route.owner == last.owner or one.route.epoch >= last.epoch for one in self.flights or ()
        )


class CutoverExecutor:
    """The requests of one router. A `CutoverHandler`."""

    def __init__(
        self,
        table: RoutingTable,
        may_route: Callable[[], bool],
        now: Callable[[], float],
        *,
        limits: StashLimits = StashLimits(),  # noqa: B008  (frozen)
        partitioner: Partitioner = Partitioner.MURMUR2,
    ) -> None:
        """`may_route`: asked before each request. `now`: the time for which published loads count."""
        self.balance = KeylessBalance()
        self._table = table
        self._may_route = may_route
        self._now = now
        self._partitioner = partitioner
        self._stash = Stash(limits)
        self._lanes: dict[str, dict[int, _Lane]] = {}
        self._unresolved: dict[str, _Lane] = {}
        self._closed = ""
        """Why no further request is let through; empty: they are."""
        self._idle: asyncio.Event | None = None
        self._in_flight = 0
        self._routed = self._held = self._overflowed = self._given_up = 0

    # --- requests --------------------------------------------------------------------------------------------------

    def route(self, topic: str, key: bytes | str, *, size: int = 0) -> OutgoingRequest:
        """A request with a key: `async with executor.route(topic, key) as target`. `size`: its bytes, for the
        stash's limits.

        Entering raises `StashOverflow` if it may not wait or waited too long, `UnknownTopic` if the table has no
        such topic, and `RouterClosed` once the router has ended."""
        data = key.encode() if isinstance(key, str) else key
        return OutgoingRequest(self, topic, partial(self._partitioner.partition_of, data), size)

    def route_partition(self, topic: str, partition: int, *, size: int = 0) -> OutgoingRequest:
        """The same for a partition that the caller chose."""
        return OutgoingRequest(self, topic, partial(_checked, topic, partition), size)

    def pick(self, topic: str, *, size: int = 0) -> OutgoingRequest:
        """The same for a request without a key: it goes to a partition whose requests need not wait; where loads are
        published, more often to one with less load."""
        return OutgoingRequest(self, topic, partial(self._pick, topic), size)

    def _pick(self, topic: str, partitions: int) -> int:
        return self.balance.pick(topic, partitions, self._now(), partial(self._suits, topic))

    def _suits(self, topic: str, partition: int) -> bool:
        lane = self._lanes.get(topic, {}).get(partition)
        return lane is not None and lane.is_open and not lane.queue

    # --- the five steps --------------------------------------------------------------------------------------------

    def stop(self, partition: TopicPartition) -> None:
        self._lane(partition).is_open = False

    def stash(self, partition: TopicPartition) -> None:
        """A lane that is not open keeps requests already."""

    async def drain(self, partition: TopicPartition) -> None:
        lane = self._lane(partition)
        while lane.is_draining():
            if lane.drained is None or lane.drained.is_set():
                lane.drained = asyncio.Event()
            await lane.drained.wait()

    def switch(self, partition: TopicPartition, route: Route) -> None:
        lane = self._lane(partition)
        lane.route, lane.is_open = route, True

    def flush(self, partition: TopicPartition) -> None:
        self._stash.wake(partition)

    # --- the router ------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """The router may route again, or has another table: let every request that waits look again."""
        self._stash.wake_all()

    def forget(self) -> None:
        """Forget the idle partitions of topics that are gone."""
        gone = self._lanes.keys() - self._table.topics.keys()
        for topic in gone:
            busy = {
                partition: lane
                for partition, lane in self._lanes[topic].items()
                if lane.is_open or lane.flights or lane.queue
            }
            if busy:
                self._lanes[topic] = busy
            else:
                del self._lanes[topic]
        self.balance.forget(gone)

    def close(self, reason: str) -> None:
        """Let no further request through, and fail those that wait."""
        if not self._closed:
            self._closed = reason
            self._stash.fail_all(self._closed_error)

    def _closed_error(self) -> RouterClosed:
        return RouterClosed(f"{self._closed}; the request was not sent, send it by another router")

    async def until_idle(self) -> None:
        """Wait until no request is in flight."""
        while self._in_flight:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    def counts(self) -> RequestCounts:
        return RequestCounts(
            routed=self._routed,
            held=self._held,
            stashed=len(self._stash),
            stashed_bytes=self._stash.bytes,
            in_flight=self._in_flight,
            overflowed=self._overflowed,
            given_up=self._given_up,
        )

    # --- one request -----------------------------------------------------------------------------------------------

    async def _enter(self, topic: str, choose: Callable[[int], int], size: int) -> tuple[_Lane, _Flight]:
        if self._is_unresolved(topic):
            await self._resolve(topic, size)
        partitions = self._table.partitions(topic)
        if self._closed:
            raise self._closed_error()
        if not partitions:
            raise UnknownTopic(f"the group has no topic {topic!r}; check the name, or set the topic at the service")
        lane = self._lane_of(topic, choose(partitions))
        flight = None if lane.queue else self._admit(lane)
        if flight is None:
            flight = await self._wait(lane, size, self._admit)
            self._held += 1
        self._routed += 1
        return lane, flight

    def _admit(self, lane: _Lane) -> _Flight | None:
        """Let a request through, if its lane is open and the router may route at this moment."""
        if not lane.is_open or lane.route is None or not self._may_route():
            return None
        self._in_flight += 1
        return lane.begin(lane.route)

    def _leave(self, lane: _Lane, flight: _Flight) -> None:
        lane.end(flight)
        self._in_flight -= 1
        if not self._in_flight and self._idle is not None:
            self._idle.set()
            self._idle = None

    async def _wait(self, lane: _Lane, size: int, attempt: Callable[[_Lane], _Flight | None]) -> _Flight:
        """Wait until the request is the first of its lane and the attempt succeeds."""
        if lane.queue is None:
            lane.queue = StashQueue(lane.tp)
        try:
            waiting = self._stash.enter(lane.queue, size)
        except StashOverflow:
            self._overflowed += 1
            raise
        try:
            while True:
                await waiting.until_woken()
                if lane.queue.first is waiting and (flight := attempt(lane)) is not None:
                    return flight
        except StashOverflow:
            self._overflowed += 1
            raise
        except asyncio.CancelledError:
            self._given_up += 1
            raise
        finally:
            self._stash.leave(lane.queue, waiting)

    # --- requests before the first table ---------------------------------------------------------------------------

    def _is_unresolved(self, topic: str) -> bool:
        # Those that came before the first table go on before those that come later.
        lane = self._unresolved.get(topic)
        return (lane is not None and bool(lane.queue)) or not self._is_known()

    async def _resolve(self, topic: str, size: int) -> None:
        lane = self._unresolved.get(topic)
        if lane is None:
            lane = self._unresolved[topic] = _Lane(TopicPartition(topic, UNRESOLVED))
        try:
            await self._wait(lane, size, self._is_resolved)
        finally:
            if not lane.queue:
                self._unresolved.pop(topic, None)

    def _is_known(self) -> bool:
        return self._table.revision > 0 or bool(self._closed)

    def _is_resolved(self, lane: _Lane) -> _Flight | None:
        return _NO_FLIGHT if self._is_known() else None

    # --- lanes -----------------------------------------------------------------------------------------------------

    def _lane(self, tp: TopicPartition) -> _Lane:
        return self._lane_of(tp.topic, tp.partition)

    def _lane_of(self, topic: str, partition: int) -> _Lane:
        lanes = self._lanes.get(topic)
        if lanes is None:
            lanes = self._lanes[topic] = {}
        lane = lanes.get(partition)
        if lane is None:
            lane = lanes[partition] = _Lane(TopicPartition(topic, partition))
        return lane


_NO_FLIGHT = _Flight(TopicPartition("", UNRESOLVED), Route("", "", 0))


class OutgoingRequest:
    """One request, as a context manager that gives its target. It is entered once."""

    __slots__ = ("_choose", "_executor", "_lane_and_flight", "_size", "_topic")

    def __init__(self, executor: CutoverExecutor, topic: str, choose: Callable[[int], int], size: int) -> None:
        self._executor = executor
        self._topic = topic
        self._choose = choose
        self._size = size
        self._lane_and_flight: tuple[_Lane, _Flight] | None = None

    async def __aenter__(self) -> Target:
        if self._lane_and_flight is not None:
            raise RuntimeError("a routed request is entered once; ask for another one")
        self._lane_and_flight = await self._executor._enter(self._topic, self._choose, self._size)
        return self._lane_and_flight[1].target

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lane_and_flight is not None
        self._executor._leave(*self._lane_and_flight)


def _checked(topic: str, partition: int, partitions: int) -> int:
    if not 0 <= partition < partitions:
        raise InvalidInput(f"topic {topic!r} has no partition {partition}; it has {partitions}, from 0 on")
    return partition
