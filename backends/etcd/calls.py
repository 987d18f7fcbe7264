"""Sends one request: with a deadline, retries where they are safe, and a typed error for every failure.

A read is retried on another member until the deadline. A write is retried only while it is certain that no member has
received it; after that it raises `OutcomeUnknown`, and the caller reads again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn, assert_never

import anyio

from assigner.aio.wakeup import Wakeup
from assigner.backends.etcd import rpc
from assigner.backends.etcd.auth import Login
from assigner.backends.etcd.connection import Connection
from assigner.backends.etcd.errors import Failure, Final, NoEffect, TokenStale, TooMuchToRead, Unknown, classify
from assigner.backends.etcd.member import MemberConnection, pause_before
from assigner.clock import Clock
from assigner.errors import AssignerError, OutcomeUnknown, StoreUnavailable

MAX_IN_FLIGHT = 1024

Observer = Callable[[str, float, str], None]
"""Called with the kind of request, its seconds and how it ended: `ok` or the error's name."""


class Effect(Enum):
    NONE = "a read, or a write whose leftover ends by itself"
    REPEATABLE = "a write that may happen twice, with the same result"
    ONCE = "a write that must not happen twice"


class AnswerTooLarge(AssignerError):
    """The answer is too large for this client; the store asks for less. Not raised outside this package."""


class EtcdCalls:
    def __init__(self, member: MemberConnection, login: Login, clock: Clock, timeout: float) -> None:
        self._member = member
        self._login = login
        self._clock = clock
        self._timeout = timeout
        self._slots = anyio.Semaphore(MAX_IN_FLIGHT, fast_acquire=True)
        self._ended = Wakeup()
        self.observe: Observer | None = None
        self.requests: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()

    @property
    def in_flight(self) -> int:
        return MAX_IN_FLIGHT - self._slots.value

    async def send(self, kind: str, request: Any, effect: Effect) -> Any:
        """Send `request` by the method called `kind` and return etcd's answer."""
        started = self._clock.now()
        outcome = "cancelled"
        try:
            answer = await self._send(kind, request, effect, started + self._timeout)
            outcome = "ok"
        except AssignerError as error:
            outcome = type(error).__name__
            self.failures[outcome] += 1
            raise
        finally:
            self.requests[kind] += 1
            if self.observe is not None:
                self.observe(kind, self._clock.now() - started, outcome)
        return answer

    async def _send(self, kind: str, request: Any, effect: Effect, deadline: float) -> Any:
        try:
            self._slots.acquire_nowait()
        except anyio.WouldBlock:
            with anyio.move_on_after(deadline - self._clock.now()) as waiting:
                await self._slots.acquire()
            if waiting.cancelled_caught:
                raise StoreUnavailable(
                    f"{MAX_IN_FLIGHT} requests to etcd are waiting for answers; slow down and retry"
                ) from None
        try:
            return await _Attempts(self, kind, effect, deadline).run(request)
        finally:
            self._slots.release()
            self._ended.notify()

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._ended.until(lambda: not self.in_flight)


class _Attempts:
    """The attempts of one request."""

    def __init__(self, calls: EtcdCalls, kind: str, effect: Effect, deadline: float) -> None:
        self._member, self._login, self._clock = calls._member, calls._login, calls._clock
        self._kind = kind
        self._effect = effect
        self._deadline = deadline
        self._failed = 0
        self._renewed_token = False
        self._reason = ""
        self._maybe_applied = False

    async def run(self, request: Any) -> Any:
        while True:
            connection, metadata = await self._connect_and_log_in()
            sent = self._clock.now()
            if sent >= self._deadline:
                self._fail(self._reason or self._member.problem())
            method = connection.methods[self._kind]
            try:
                with connection.in_use():
                    answer = await method(request, timeout=self._deadline - sent, metadata=metadata)
            except rpc.RpcError as error:
                failure = classify(error, answered_meanwhile=connection.last_answer > sent)
                await self._react(failure, connection, metadata)
            else:
                connection.record_answer(self._clock.now())
                return answer

    async def _connect_and_log_in(self) -> tuple[Connection, rpc.Metadata]:
        while True:
            try:
                connection = await self._member.connection(self._deadline)
            except StoreUnavailable as unavailable:
                self._fail(str(unavailable))
            try:
                metadata = await self._login.metadata(connection, self._deadline - self._clock.now())
            except StoreUnavailable as unavailable:
                self._member.report(connection, str(unavailable))
                await self._pause(str(unavailable))
                continue
            # The login may have taken a while, and may have been made on another connection.
            if not connection.failed.is_set():
                return connection, metadata

    async def _react(self, failure: Failure, connection: Connection, metadata: rpc.Metadata) -> None:
        """Return if the request may be retried, else raise."""
        match failure:
            case Final(error):
                connection.record_answer(self._clock.now())
                raise error
            case TooMuchToRead(reason):
                raise AnswerTooLarge(reason)
            case TokenStale(reason):
                if self._renewed_token or not self._login.can_renew:
                    raise self._login.refusal(reason)
                self._renewed_token = True
                self._login.forget(metadata)
            case NoEffect(reason, member_failed):
                if member_failed:
                    self._member.report(connection, reason)
                await self._pause(reason)
            case Unknown(reason, member_failed):
                if member_failed:
                    self._member.report(connection, reason)
                self._maybe_applied = self._effect is not Effect.NONE
                if self._effect is Effect.ONCE:
                    self._fail(reason)
                await self._pause(reason)
            case _:
                assert_never(failure)

    async def _pause(self, reason: str) -> None:
        self._reason = reason
        left = self._deadline - self._clock.now()
        # The first retry goes to another connection, so it need not wait.
        if self._failed:
            await anyio.sleep(max(0.0, min(left, pause_before(self._failed))))
        self._failed += 1

    def _fail(self, reason: str) -> NoReturn:
        if self._maybe_applied:
            raise OutcomeUnknown(f"the {self._kind} may or may not have happened ({reason}); read again")
        raise StoreUnavailable(f"etcd did not serve the {self._kind} in time: {reason}")
