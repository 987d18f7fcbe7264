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

import asyncio
import ssl
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import anyio
import msgspec

from assigner.aio.supervision import report_failure
from assigner.aio.wakeup import Wakeup
from assigner.client.channel import Dialer, Unavailable, parse_addresses
from assigner.client.session import Timing, new_session
from assigner.client.tls import tls_context
from assigner.client.token import Token, token_source
from assigner.clock import Clock, SystemClock
from assigner.core.routing.partitioner import Partitioner
from assigner.core.routing.permit import RoutingPermit
from assigner.core.routing.table import RoutingTable
from assigner.errors import AssignerError, FailedPrecondition, Superseded
from assigner.logs import get_logger
from assigner.model.keys import TopicPartition
from assigner.model.names import check_name
from assigner.model.routes import TableChanges
from assigner.routing.cutovers import CutoverTasks
from assigner.routing.executor import CutoverExecutor, OutgoingRequest
from assigner.routing.handler import CutoverHandler, Target
from assigner.routing.registration import RouterState
from assigner.routing.rpc import RouterIdentity
from assigner.routing.session import RouterSession
from assigner.routing.stash import RequestCounts, StashLimits

NEWER_WITHIN = 5.0
"""Seconds that a refused request waits for a newer route."""

_log = get_logger(__name__)


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
    """How often that time passed without a renewal, or the service did not know the session any more."""
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
        token: Token | None = None,
        clock: Clock | None = None,
        connect_timeout: float | None = None,
        timing: Timing = Timing(),  # noqa: B008  (frozen)
    ) -> None:
        """`addresses`: `host:port` of one or more instances. `group` may be empty for the service's default group.
        `name`: unique among the group's routers. `handler`: instead of the `CutoverExecutor` that `route` uses.
        `loads`: follow the published loads for `pick`. `drain_timeout`: seconds after which a drain that has not ended
        is given up, and its handoff not acknowledged. `token`: what the router shows to be recognized, as for a
        consumer. `connect_timeout`: seconds until the router may route for the first time; None: for as long as it
        takes."""
        self._clock = clock or SystemClock()
        self._timing = timing
        self._connect_timeout = connect_timeout
        self._table = RoutingTable()
        self._permit = RoutingPermit()
        self._changes = Wakeup()
        self._executor: CutoverExecutor | None = None
        if handler is None:
            self._executor = handler = CutoverExecutor(
                self._table, self._may_route, self._clock.now, limits=stash, partitioner=partitioner
            )
        self._cutovers = CutoverTasks(handler, self._changes, drain_timeout)
        identity = RouterIdentity(
            group=check_name("group", group) if group else "",
            name=check_name("router", name),
            session=check_name("session", session) if session is not None else new_session(),
            loads=loads and self._executor is not None,
        )
        dialer = Dialer(tls_context(tls), timing.keepalive, timing.keepalive_timeout, token_source(token))
        state = RouterState(self._table, self._permit, self._cutovers, self._changes, self._clock, self._published)
        self._session = RouterSession(parse_addresses(addresses), identity, dialer, state, timing)
        self._task: asyncio.Task[None] | None = None
        self._ended = False
        self._error: BaseException | None = None
        self._is_idle: bool | None = None
        """Whether the requests in flight ended in time after the last was let through."""
        self._resumed_after = -1
        """How many lapses there had been when requests that waited were last let through."""

    # --- the block -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("a Router is entered once; make another one")
        # A task of its own instead of a task group around the block, as for consumers: the block may be left in another
        # task than it was entered in, and an error in here never cancels the program's own work.
        self._task = asyncio.create_task(self._run(), name=f"assigner-router {self.name}")
        self._task.add_done_callback(report_failure)
        try:
            with anyio.move_on_after(self._connect_timeout):
                await self.wait_for(lambda one: one.may_route or one._ended)
        except BaseException:
            await self.close()
            raise
        if self._ended or not self.may_route:
            await self.close()
            if isinstance(self._error, AssignerError):
                raise self._error
            raise Unavailable(
                f"no routing table within {self._connect_timeout} s: "
                f"{self._session.turns.last_failure or 'no answer'}; check the addresses"
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave, as leaving the block does: fail the requests that wait, wait for those in flight, for up to
        `timing.close_timeout` seconds, and deregister. May be called repeatedly."""
        with anyio.CancelScope(shield=True):
            await self._finish_requests("the router is closed")
            self._session.stop()
            if self._task is not None:
                await asyncio.wait([self._task])

    async def closed(self) -> None:
        """Wait until the router has ended. Raises `Superseded` if another session of the same name took over, or the
        error that ended it."""
        await self.wait_for(lambda one: one._ended)
        if self._error is not None:
            raise self._error

    # --- requests ----------------------------------------------------------------------------------------------------

    def route(self, topic: str, key: bytes | str, *, size: int = 0) -> OutgoingRequest:
        """A request with a key: `async with router.route(topic, key) as target`. It counts as in flight while the block
        lasts. `size`: its bytes, for the stash's limits.

        Entering raises `StashOverflow` if it may not wait or waited too long, `UnknownTopic` if the table has no
        such topic, and `RouterClosed` once the router has ended."""
        return self.executor.route(topic, key, size=size)

    def route_partition(self, topic: str, partition: int, *, size: int = 0) -> OutgoingRequest:
        """The same for a partition that the caller chose."""
        return self.executor.route_partition(topic, partition, size=size)

    def pick(self, topic: str, *, size: int = 0) -> OutgoingRequest:
        """The same for a request without a key: it goes to a partition whose requests need not wait; where loads are
        published, more often to one with less load."""
        return self.executor.pick(topic, size=size)

    async def newer_than(self, target: Target, *, within: float = NEWER_WITHIN) -> bool:
        """Wait for a newer route, after the target's owner refused a request: until the table shows a later epoch,
        another owner or another address than the target's. False if it does not within that many seconds."""
        partition = TopicPartition(target.topic, target.partition)

        def is_newer() -> bool:
            route = self._table.route(target.topic, target.partition)
            return route is not None and (
                route.epoch > target.epoch or (route.owner, route.address) != (target.owner, target.address)
            )

        with anyio.move_on_after(within):
            await self._changes.until_about(partition, is_newer)
            return True
        return False

    # --- the table ---------------------------------------------------------------------------------------------------

    @property
    def table(self) -> RoutingTable:
        return self._table

    @property
    def executor(self) -> CutoverExecutor:
        """What routes the requests. Raises `FailedPrecondition` if the router was given a handler of its own."""
        if self._executor is None:
            raise FailedPrecondition("this router was given a handler of its own; let that one route requests")
        return self._executor

    @property
    def may_route(self) -> bool:
        """Whether any request may be sent at this moment, by the clock."""
        return self._may_route()

    def _may_route(self) -> bool:
        return self._permit.holds(self._clock.now())

    @property
    def group(self) -> str:
        """The group's name; empty: the service's default group."""
        return self._session.identity.group

    @property
    def name(self) -> str:
        return self._session.identity.name

    @property
    def session(self) -> str:
        return self._session.identity.session

    @property
    def is_connected(self) -> bool:
        return self._session.is_connected

    async def wait_for(self, predicate: Callable[[Router], bool]) -> None:
        """Wait until the condition is true; it is evaluated again whenever the router changes."""
        await self._changes.until(lambda: predicate(self))

    def statistics(self) -> RouterStatistics:
        now, core = self._clock.now(), self._cutovers.core
        registration = self._session.registration
        counts = self._executor.counts() if self._executor is not None else NO_REQUESTS
        return RouterStatistics(
            session=self.session,
            connected=self.is_connected,
            address=str(registration.address) if registration is not None and registration.opened else "",
            registrations=self._session.registrations,
            failed_tries=self._session.turns.failed_tries,
            may_route=self._permit.holds(now),
            lease_left=max(0.0, self._permit.deadline - now),
            lapses=self._permit.lapses,
            revision=self._table.revision,
            generation=self._table.generation,
            partitions=len(self._table),
            frozen=core.frozen,
            draining=core.draining,
            pending_acks=core.unanswered,
            acked=core.acknowledged_count,
            refused_acks=core.refused,
            overdue_drains=core.overdue_count,
            stale_updates=self._table.stale,
            **msgspec.structs.asdict(counts),
        )

    def _published(self, changes: TableChanges) -> None:
        """A part of an update was applied, or the registration was renewed."""
        if self._executor is None:
            return
        if changes.loads:
            self._executor.balance.published(changes.loads, changes.loads_valid_for, self._clock.now())
        if not changes.more:
            self._executor.forget()
        if self._resumed_after != self._permit.lapses and self._may_route():
            self._resumed_after = self._permit.lapses
            self._executor.resume()

    # --- the task --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._cutovers.begin(tasks)
                try:
                    await self._session.run()
                except AssignerError as error:
                    self._error = error
                    _log.warning("router_ended", router=self.name, error=str(error))
                reason = f"the router has ended: {self._error}" if self._error else "the router is closed"
                if await self._finish_requests(reason):
                    await self._leave()
                tasks.cancel_scope.cancel()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._ended = True
            if self._executor is not None:
                self._executor.close("the router has ended")
            self._changes.notify()

    async def _finish_requests(self, reason: str) -> bool:
        """Fail the requests that wait, and wait for those in flight; False if that takes too long."""
        if self._executor is None:
            return True
        self._executor.close(reason)
        if self._is_idle is None:
            with anyio.move_on_after(self._timing.close_timeout) as waiting:
                await self._executor.until_idle()
            self._is_idle = not waiting.cancelled_caught
            if not self._is_idle:
                _log.warning("requests_in_flight", router=self.name, requests=self._executor.counts().in_flight)
        return self._is_idle

    async def _leave(self) -> None:
        """Deregister. A router that was superseded does so too: moves wait for its session until then."""
        if self._session.registered or isinstance(self._error, Superseded):
            await self._session.deregister()


NO_REQUESTS = RequestCounts(routed=0, held=0, stashed=0, stashed_bytes=0, in_flight=0, overflowed=0, given_up=0)
"""What a router with a handler of its own says of requests, which that handler counts itself."""
