"""Keeps one connection to a healthy member: tries the endpoints in turn, probes the one in use, replaces it when it
fails.

All requests go to one member, which must know a leader, so that a partitioned member is left before it can do harm.
After some silence the member is asked for its status: its answers keep etcd from rejecting our frequent pings (it
allows one in 5 s unless it has sent data), and the pings detect a hung server within `hang_timeout`. Not promised:
balance between members; the first healthy one gets all the traffic.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import anyio

from assigner.aio.wakeup import Wakeup
from assigner.backend import StoreSettings
from assigner.backends.etcd import rpc
from assigner.backends.etcd.channel import Endpoint, check_tls, connect, parse_endpoints
from assigner.backends.etcd.connection import Connection
from assigner.clock import Clock
from assigner.errors import StoreUnavailable

REQUIRE_LEADER: rpc.Metadata = (("hasleader", "true"),)
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.5
_NEEDS_LOGIN = (rpc.Code.UNAUTHENTICATED, rpc.Code.PERMISSION_DENIED, rpc.Code.INVALID_ARGUMENT)
"""Answers of a healthy member that shows its status to authenticated users only. INVALID_ARGUMENT: no user was
named."""


class _MemberUnusable(Exception):
    """The member can't be used; the message says why."""


def pause_before(attempt: int) -> float:
    """Compute the seconds before the attempt-th try, jittered so that clients don't retry in step."""
    longest: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(attempt, 16))
    return longest * random.uniform(0.5, 1.0)


def parse_version(text: str) -> tuple[int, ...]:
    """Parse `3.6.16` to (3, 6, 16), and `3.7.0-rc.1` to (3, 7, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", text.partition("-")[0]))


class MemberConnection:
    def __init__(self, settings: StoreSettings, clock: Clock) -> None:
        check_tls(settings)
        self._endpoints = parse_endpoints(settings.endpoints)
        self._settings = settings
        self._clock = clock
        self._current: Connection | None = None
        self._changed = Wakeup()
        self._closed = ""
        self._turn = 0
        self._failures = 0
        self._reasons: dict[str, str] = {}
        self._cluster = 0
        self.metadata: Callable[[], rpc.Metadata] = lambda: REQUIRE_LEADER
        """Returns the metadata of probes; set by the store once it can log in."""
        self.connects = 0

    @property
    def endpoint(self) -> str | None:
        return self._current.endpoint.address if self._current else None

    # -- for those who need a connection ---------------------------------------------------------------------------

    async def connection(self, deadline: float) -> Connection:
        """Wait for a connection. Raises `StoreUnavailable` if there is none by `deadline`."""
        while (connection := self._current) is None:
            left = deadline - self._clock.now()
            if left <= 0 or self._closed:
                raise StoreUnavailable(self.problem())
            with anyio.move_on_after(left):
                await self._changed.next()
        return connection

    async def next_connection(self) -> Connection:
        """Wait for a connection without a deadline, for a stream."""
        while (connection := self._current) is None:
            await self._changed.next()
        return connection

    def report(self, connection: Connection, reason: str) -> None:
        """Report that a member can't serve. The next caller gets another connection."""
        connection.fail(reason)
        if connection is self._current:
            self._withdraw(connection)

    def problem(self) -> str:
        if self._closed:
            return self._closed
        tried = "; ".join(f"{address}: {reason}" for address, reason in self._reasons.items())
        return f"no usable etcd member ({tried or 'still connecting'}); check endpoints, TLS files and the network"

    # -- the keeper ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a connection until cancelled. May be run again after a failure."""
        async with anyio.create_task_group() as closing:
            while True:
                connection = await self._next_healthy()
                try:
                    await self._use(connection)
                finally:
                    # Without the probes a failure of the connection would not be noticed.
                    self.report(connection, self._closed or "is no longer watched over")
                    closing.start_soon(self._close_when_unused, connection)

    def close(self, reason: str) -> None:
        """Refuse all further requests."""
        self._closed = self._closed or reason
        if self._current is not None:
            self._withdraw(self._current)
        self._changed.notify()

    async def _use(self, connection: Connection) -> None:
        self._current = connection
        self._reasons.clear()
        self.connects += 1
        self._changed.notify()
        async with anyio.create_task_group() as probes:
            probes.start_soon(self._probe_when_silent, connection)
            await connection.failed.wait()
            probes.cancel_scope.cancel()

    def _withdraw(self, connection: Connection) -> None:
        connection.fail(self._closed)
        self._current = None
        self._reasons[connection.endpoint.address] = connection.reason
        self._turn += 1
        self._failures = 0 if connection.has_served else self._failures + 1

    async def _close_when_unused(self, connection: Connection) -> None:
        try:
            await connection.wait_unused()
        finally:
            await connection.close()

    async def _next_healthy(self) -> Connection:
        while True:
            rounds, within = divmod(self._failures, len(self._endpoints))
            if rounds and not within:
                await anyio.sleep(pause_before(rounds))
            endpoint = self._endpoints[self._turn % len(self._endpoints)]
            try:
                return await self._try(endpoint)
            except _MemberUnusable as unusable:
                self._reasons[endpoint.address] = str(unusable)
                self._turn += 1
                self._failures += 1

    async def _try(self, endpoint: Endpoint) -> Connection:
        try:
            channel = await connect(self._settings, endpoint)
        except OSError as error:
            raise _MemberUnusable(f"a TLS file can't be read: {error}") from error
        connection = Connection(endpoint, channel, self._clock.now())
        good = False
        try:
            await self._probe(connection, self._settings.hang_timeout / 2)
            good = True
        finally:
            if not good:
                await connection.close()
        return connection

    async def _probe_when_silent(self, connection: Connection) -> None:
        # Shorter than the silence after which the transport pings, so that a healthy connection never pings.
        period = self._settings.hang_timeout / 4
        while True:
            await anyio.sleep(period)
            if self._clock.now() - connection.last_answer < period:
                continue
            try:
                await self._probe(connection, self._settings.hang_timeout)
            except _MemberUnusable as unusable:
                self.report(connection, str(unusable))

    async def _probe(self, connection: Connection, timeout: float) -> None:
        try:
            status = await connection.status(rpc.StatusRequest(), timeout=timeout, metadata=self.metadata())
        except rpc.RpcError as error:
            if error.code() in _NEEDS_LOGIN:
                return
            raise _MemberUnusable(f"{error.code().name}: {error.details()}") from error
        if status.isLearner:
            raise _MemberUnusable("is a learner, which serves no reads")
        connection.version = parse_version(status.version)
        if (foreign_cluster := self.foreign_cluster(status.header)) is not None:
            raise _MemberUnusable(foreign_cluster)

    def foreign_cluster(self, header: Any) -> str | None:
        """Return the problem if the answer came from another cluster than the first answer did; else None."""
        cluster: int = header.cluster_id
        self._cluster = self._cluster or cluster
        if cluster == self._cluster:
            return None
        return (
            f"belongs to the etcd cluster {cluster:x}, but this store was opened on {self._cluster:x}: its"
            " revisions mean nothing here; correct the endpoints, or restart the service if it was replaced"
        )
