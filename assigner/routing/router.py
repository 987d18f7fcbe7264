"""Provides `Router`, a router of a group as an async context manager.

    async with Router(["127.0.0.1:50051"], "billing", "router-1") as router:
        async with router.route("orders", key) as target:
            await send(target.address, request, epoch=target.epoch)

Inside the block the router is registered, renews its registration, follows the table, and acknowledges freezes once
nothing is in flight to the old owner. Leaving the block lets no further request through, waits for those in flight, and
deregisters the router, so that no move waits for it.

Not promised: that a request which is in flight for longer than a lease is served by the owner it was sent to.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import msgspec

from assigner.client.session import Timing
from assigner.clock import Clock
from assigner.core.routing.partitioner import Partitioner
from assigner.core.routing.table import RoutingTable
from assigner.routing.executor import OutgoingRequest
from assigner.routing.handler import CutoverHandler, Target
from assigner.routing.stash import StashLimits

NEWER_WITHIN = 5.0
"""Seconds that a refused request waits for a newer route."""


class RouterStatistics(msgspec.Struct, frozen=True, kw_only=True):
    session: str
    connected: bool
    address: str
    """Address of the instance that serves the stream; empty: none."""
    registrations: int
    """How often the router registered; more than 1 means that it reconnected."""
    failed_tries: int
    may_route: bool
    lease_left: float
    """Seconds for which the router may route without another renewal."""
    lapses: int
    """How often that time passed, or the service did not know the session any more."""
    revision: int
    generation: int
    partitions: int
    """Partitions that have an owner."""
    frozen: int
    draining: int
    """Frozen partitions with requests in flight."""
    pending_acks: int
    acked: int
    refused_acks: int
    overdue_drains: int
    stale_updates: int
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


class Router:
    def __init__(
        self,
        addresses: str | Sequence[str],
        group: str,
        name: str,
        *,
        handler: CutoverHandler | None = None,
        stash: StashLimits = StashLimits(),  # noqa: B008  (frozen)
        partitioner: Partitioner = Partitioner.MURMUR2,
        loads: bool = True,
        drain_timeout: float = 60.0,
        session: str | None = None,
        tls: ssl.SSLContext | bool | None = None,
        clock: Clock | None = None,
        connect_timeout: float | None = None,
        timing: Timing = Timing(),  # noqa: B008  (frozen)
    ) -> None:
        """`addresses`: `host:port` of one or more instances. `group` may be empty for the service's default group.
        `name`: unique among the group's routers. `handler`: instead of the `CutoverExecutor` that `route` uses.
        `loads`: follow the published loads for `pick`. `drain_timeout`: seconds after which a drain that has not ended
        is given up, and its handoff not acknowledged. `connect_timeout`: seconds until the router may route for the
        first time; None: for as long as it takes."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Leave, as leaving the block does. May be called repeatedly."""
        raise NotImplementedError

    async def closed(self) -> None:
        """Wait until the router has ended. Raises `Superseded` if another session of the same name took over, or the
        error that ended it."""
        raise NotImplementedError

    # --- requests ----------------------------------------------------------------------------------------------------

    def route(self, topic: str, key: bytes | str, *, size: int = 0) -> OutgoingRequest:
        """A request with a key: `async with router.route(topic, key) as target`. It counts as in flight while the block
        lasts. `size`: its bytes, for the stash's limits.

        Entering raises `StashOverflow` if it may not wait or waited too long, `UnknownTopic` if the table has no
        such topic, and `RouterClosed` once the router has ended."""
        raise NotImplementedError

    def route_partition(self, topic: str, partition: int, *, size: int = 0) -> OutgoingRequest:
        """The same for a partition that the caller chose."""
        raise NotImplementedError

    def pick(self, topic: str, *, size: int = 0) -> OutgoingRequest:
        """The same for a request without a key: it goes to a partition that is open now, to a lighter one rather than
        to a heavier one where loads are published."""
        raise NotImplementedError

    async def newer_than(self, target: Target, *, within: float = NEWER_WITHIN) -> bool:
        """Wait until the table shows a later epoch, another owner or another address than the target's, for a request
        that the owner refused. False: it did not within that many seconds."""
        raise NotImplementedError

    # --- the table ---------------------------------------------------------------------------------------------------

    @property
    def table(self) -> RoutingTable:
        raise NotImplementedError

    @property
    def may_route(self) -> bool:
        """Whether any request may be sent at this moment, by the clock."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def session(self) -> str:
        raise NotImplementedError

    @property
    def is_connected(self) -> bool:
        raise NotImplementedError

    async def wait_for(self, predicate: Callable[[Router], bool]) -> None:
        """Wait until the condition is true; it is evaluated again whenever the router changes."""
        raise NotImplementedError

    def statistics(self) -> RouterStatistics:
        raise NotImplementedError
