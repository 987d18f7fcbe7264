"""Sends the keep-alives of all leases over one shared stream.

etcd answers the renewals of a stream in the order they were sent, so the n-th answer belongs to the n-th request and
a caller is only ever served by a renewal sent after it asked. When the stream breaks, unanswered renewals are sent
again on the next one: renewing twice does no harm.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import anyio

from assigner.aio.wakeup import Wakeup
from assigner.backends.etcd import rpc
from assigner.backends.etcd.auth import Login
from assigner.backends.etcd.calls import EtcdCalls
from assigner.backends.etcd.connection import Connection
from assigner.backends.etcd.errors import Final, NoEffect, TokenStale, TooMuchToRead, Unknown, classify
from assigner.backends.etcd.member import MemberConnection, pause_before
from assigner.backends.etcd.streams import run_stream
from assigner.clock import Clock
from assigner.errors import AssignerError, StoreRefused, StoreUnavailable

MAX_PENDING = 50_000


class _Renewal:
    __slots__ = ("answer", "lease")

    def __init__(self, lease: int) -> None:
        self.lease = lease
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class KeepAlives:
    def __init__(self, member: MemberConnection, login: Login, clock: Clock, calls: EtcdCalls, timeout: float) -> None:
        self._member = member
        self._login = login
        self._clock = clock
        self._calls = calls
        self._timeout = timeout
        self._waiting: deque[_Renewal] = deque()
        """Renewals that are not yet sent on the present stream."""
        self._sent: deque[_Renewal] = deque()
        self._work = Wakeup()
        self._connection: Connection | None = None
        self._restart = anyio.Event()
        self._closed = False
        self.streams = 0

    @property
    def pending(self) -> int:
        return len(self._waiting) + len(self._sent)

    async def renew(self, lease: int) -> Any:
        """Renew `lease` once and return etcd's answer. Raises `StoreUnavailable`: a renewal may be repeated."""
        started = self._clock.now()
        outcome = "cancelled"
        try:
            answer = await self._renew(lease, started)
            outcome = "ok"
        except AssignerError as error:
            outcome = type(error).__name__
            self._calls.failures[outcome] += 1
            raise
        finally:
            self._calls.requests["keep_alive"] += 1
            if self._calls.observe is not None:
                self._calls.observe("keep_alive", self._clock.now() - started, outcome)
        return answer

    async def _renew(self, lease: int, started: float) -> Any:
        if self._closed:
            raise StoreUnavailable(self._member.problem())
        self._make_room()
        renewal = _Renewal(lease)
        self._waiting.append(renewal)
        self._work.notify()
        with anyio.move_on_after(self._timeout):
            return await renewal.answer
        self._suspect(started)
        reason = "no answer in time" if self._connection else self._member.problem()
        raise StoreUnavailable(f"etcd did not renew lease {lease:x}: {reason}; retry before its TTL is over")

    def _make_room(self) -> None:
        if self.pending < MAX_PENDING:
            return
        self._waiting = deque(renewal for renewal in self._waiting if not renewal.answer.done())
        if self.pending >= MAX_PENDING:
            raise StoreUnavailable(f"{MAX_PENDING} lease renewals wait for etcd; it is too slow, retry later")

    def _suspect(self, started: float) -> None:
        connection = self._connection
        if connection is not None and connection.last_answer < started:
            self._member.report(connection, "does not answer lease renewals")
        # A blocked stream blocks every renewal on it.
        self._restart.set()

    # -- the stream ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send renewals until cancelled. May be run again after a failure: waiting renewals are sent then."""
        failures = 0
        while True:
            await self._wait_for_work()
            connection = await self._member.next_connection()
            with connection.in_use():
                failures = 0 if await self._serve(connection) else failures + 1
            await anyio.sleep(pause_before(failures) if failures else 0)

    def close(self, reason: str) -> None:
        """Accept no more renewals and fail those that wait."""
        self._closed = True
        self._fail_all(StoreUnavailable(reason))

    async def _serve(self, connection: Connection) -> bool:
        """Use one stream to its end; return whether it answered anything."""
        try:
            metadata = await self._login.metadata(connection, self._timeout)
        except StoreRefused as refused:
            self._fail_all(refused)
            return False
        except StoreUnavailable as unavailable:
            self._member.report(connection, str(unavailable))
            return False
        self.streams += 1
        self._connection = connection
        self._restart = anyio.Event()
        answered = False

        def receive(answer: Any) -> None:
            nonlocal answered
            answered = True
            self._receive(answer, connection)

        try:
            error = await run_stream(
                connection,
                lambda: connection.keep_alive(metadata=metadata),
                next_request=self._next_request,
                receive=receive,
                stop=self._restart,
            )
        finally:
            self._connection = None
            self._waiting.extendleft(reversed(self._sent))
            self._sent.clear()
        if error is not None:
            self._react(error, connection, metadata)
        return answered

    async def _wait_for_work(self) -> None:
        await self._work.until(lambda: bool(self._waiting))

    async def _next_request(self) -> Any:
        while True:
            await self._wait_for_work()
            renewal = self._waiting.popleft()
            if not renewal.answer.done():
                self._sent.append(renewal)
                return rpc.LeaseKeepAliveRequest(ID=renewal.lease)

    def _receive(self, answer: Any, connection: Connection) -> None:
        connection.record_answer(self._clock.now())
        renewal = self._sent.popleft() if self._sent else None
        if renewal is None or renewal.lease != answer.ID:
            # etcd answers in order; this stream does not, so it is restarted.
            self._restart.set()
        elif not renewal.answer.done():
            renewal.answer.set_result(answer)

    def _react(self, error: Any, connection: Connection, metadata: rpc.Metadata) -> None:
        match classify(error, answered_meanwhile=False):
            case TokenStale(reason):
                if not self._login.can_renew:
                    self._fail_all(
                        StoreRefused(f"etcd wants a login to renew leases ({reason}); set user and password")
                    )
                self._login.forget(metadata)
            case Final(failure):
                self._fail_all(failure)
            case NoEffect(reason, member_failed) | Unknown(reason, member_failed):
                if member_failed:
                    self._member.report(connection, reason)
            case TooMuchToRead(reason):
                self._member.report(connection, reason)

    def _fail_all(self, error: AssignerError) -> None:
        for renewal in (*self._sent, *self._waiting):
            if not renewal.answer.done():
                renewal.answer.set_exception(error)
        self._sent.clear()
        self._waiting.clear()
