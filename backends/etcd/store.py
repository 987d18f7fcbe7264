"""Implements the Store on etcd. Each method sends one etcd request; the other modules of the package handle failures.

- `member` keeps a connection to a healthy member, `calls` gives every request a deadline and a typed error, `leases`
  and `watches` have one stream each.
- Reads are linearizable, and an answer with a lower revision than was already seen is rejected: a store restored from a
  backup must not be mistaken for the one before it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec

from assigner.aio.supervision import Supervisor, Work
from assigner.backend import StoreSettings
from assigner.backends.etcd import rpc
from assigner.backends.etcd.auth import Login
from assigner.backends.etcd.calls import AnswerTooLarge, Effect, EtcdCalls, Observer
from assigner.backends.etcd.convert import (
    prefix_range,
    to_compare,
    to_entry,
    to_get_result,
    to_key,
    to_operation,
    to_read,
)
from assigner.backends.etcd.leases import KeepAlives
from assigner.backends.etcd.member import REQUIRE_LEADER, MemberConnection
from assigner.backends.etcd.watch import Buffer
from assigner.backends.etcd.watches import Watches
from assigner.clock import Clock
from assigner.errors import Compacted, InvalidInput, LeaseNotFound, StoreUnavailable, TransactionTooLarge
from assigner.store import (
    NO_LEASE,
    Committed,
    Compare,
    Conflict,
    Deleted,
    GetResult,
    Granted,
    KeepAliveResult,
    LeaseGone,
    Limits,
    Operation,
    Page,
    Put,
    Remaining,
    RemainingResult,
    Renewed,
    Store,
    TransactionResult,
    WatchItem,
    Written,
)

MAX_PAGE = 10_000
CLOSING_GRACE = 1.0
"""Seconds for which `close` waits for requests in flight."""
_CLOSED = "the etcd store is closed; open a new one"


class EtcdStatistics(msgspec.Struct, frozen=True):
    endpoint: str | None
    """The member in use, None while there is none."""
    connects: int
    logins: int
    requests: dict[str, int]
    failures: dict[str, int]
    """By the error's name."""
    in_flight: int
    keep_alives_pending: int
    keep_alive_streams: int
    watches: int
    watch_streams: int
    watch_pauses: int
    """How often a watch was cancelled on the stream because its reader lagged."""


class EtcdStore(Store):
    limits = Limits()

    def __init__(self, settings: StoreSettings, clock: Clock, *, buffer: Buffer | None = None) -> None:
        if settings.request_timeout <= 0 or settings.hang_timeout <= 0:
            raise InvalidInput("request_timeout and hang_timeout must be above 0 seconds")
        timeout = settings.request_timeout
        self._clock = clock
        self._timeout = timeout
        self._member = MemberConnection(settings, clock)
        self._login = Login(self._member, settings.user, settings.password, settings.password_file)
        self._member.metadata = lambda: self._login.current or REQUIRE_LEADER
        self._calls = EtcdCalls(self._member, self._login, clock, timeout)
        self._keep_alives = KeepAlives(self._member, self._login, clock, self._calls, timeout)
        self._watches = Watches(self._member, self._login, clock, self._calls, buffer or Buffer(), timeout)
        self._highest = 0
        self._closing = anyio.Event()
        self._supervisor = Supervisor(longest_pause=2.0)
        self._running: asyncio.Task[None] | None = None

    # -- life ------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect and log in. Raises `StoreUnavailable` or `StoreRefused`, and then leaves no task or connection
        open."""
        self._running = asyncio.create_task(self._run(), name="etcd store")
        try:
            deadline = self._clock.now() + self._timeout
            connection = await self._member.connection(deadline)
            await self._login.metadata(connection, deadline - self._clock.now())
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close()
            raise

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                for name, work in self._loops().items():
                    tasks.start_soon(self._supervisor.keep, name, work, name=name)
                await self._closing.wait()
                self._member.close(_CLOSED)
                with anyio.move_on_after(CLOSING_GRACE):
                    await self._calls.idle()
                tasks.cancel_scope.cancel()
        finally:
            self._member.close(_CLOSED)
            self._keep_alives.close(_CLOSED)
            self._watches.close_all(_CLOSED)

    def _loops(self) -> dict[str, Work]:
        """Map names to the loops that run while the store is open."""
        return {
            "etcd connection": self._member.run,
            "etcd keep-alives": self._keep_alives.run,
            "etcd watches": self._watches.run,
        }

    def restarts(self) -> Mapping[str, int]:
        return self._supervisor.restarts

    def problems(self) -> Sequence[str]:
        if self._running is not None and self._running.done() and not self._closing.is_set():
            return ["the etcd store has ended by itself"]
        return self._supervisor.problems()

    async def close(self) -> None:
        self._closing.set()
        if self._running is not None:
            await asyncio.shield(self._running)

    @property
    def observe(self) -> Observer | None:
        """Observe a request, after it has ended, by its kind, its seconds and `ok` or the error's name."""
        return self._calls.observe

    @observe.setter
    def observe(self, observer: Observer | None) -> None:
        self._calls.observe = observer

    def statistics(self) -> EtcdStatistics:
        return EtcdStatistics(
            endpoint=self._member.endpoint,
            connects=self._member.connects,
            logins=self._login.logins,
            requests=dict(self._calls.requests),
            failures=dict(self._calls.failures),
            in_flight=self._calls.in_flight,
            keep_alives_pending=self._keep_alives.pending,
            keep_alive_streams=self._keep_alives.streams,
            watches=self._watches.count,
            watch_streams=self._watches.streams,
            watch_pauses=self._watches.pauses,
        )

    # -- reads -----------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> GetResult:
        answer = await self._read(rpc.RangeRequest(key=to_key(key)))
        return to_get_result(answer.header.revision, answer.kvs)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000, revision: int = 0) -> Page:
        if limit < 1 or revision < 0:
            raise InvalidInput(f"a page needs a limit from 1 and a revision from 0, not {limit} and {revision}")
        start, end = prefix_range(prefix, after)
        size = min(limit, MAX_PAGE)
        try:
            answer = await self._read_smaller(start, end, size, revision)
        except Compacted:
            raise Compacted(revision) from None
        entries = tuple([to_entry(item) for item in answer.kvs])
        return Page(revision or answer.header.revision, entries, answer.more)

    async def _read_smaller(self, start: bytes, end: bytes, size: int, revision: int) -> Any:
        """Read a range, with fewer entries if the answer would be too large."""
        while True:
            try:
                return await self._read(rpc.RangeRequest(key=start, range_end=end, limit=size, revision=revision))
            except AnswerTooLarge as too_large:
                if size == 1:
                    raise TransactionTooLarge(f"a value past {start!r} is too large to be read: {too_large}") from None
                size = max(1, size // 4)

    async def _read(self, request: Any) -> Any:
        floor = self._highest
        answer = await self._calls.send("range", request, Effect.NONE)
        if answer.header.revision < floor:
            raise StoreUnavailable(
                f"etcd answered at revision {answer.header.revision} after {floor} was seen: stale, or restored"
                " from a backup; restart the service if that was intended"
            )
        self._saw(answer)
        return answer

    def _saw(self, answer: Any) -> int:
        revision: int = answer.header.revision
        self._highest = max(self._highest, revision)
        return revision

    # -- writes ----------------------------------------------------------------------------------------------------

    async def put(self, key: str, value: bytes, *, lease: int = NO_LEASE) -> Written:
        self._check_size(len(value))
        request = rpc.PutRequest(key=to_key(key), value=value, lease=lease)
        return Written(self._saw(await self._calls.send("put", request, Effect.ONCE)))

    async def delete(self, key: str) -> Deleted:
        answer = await self._calls.send("delete", rpc.DeleteRangeRequest(key=to_key(key)), Effect.ONCE)
        return Deleted(self._saw(answer), answer.deleted)

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        self._check_transaction(compares, operations, otherwise)
        request = rpc.TxnRequest(
            compare=[to_compare(compare) for compare in compares],
            success=[to_operation(operation) for operation in operations],
            failure=[to_read(key) for key in otherwise],
        )
        effect = Effect.ONCE if operations else Effect.NONE
        answer = await self._calls.send("transaction", request, effect)
        revision = self._saw(answer)
        if answer.succeeded:
            return Committed(revision)
        reads = tuple([to_get_result(revision, response.response_range.kvs) for response in answer.responses])
        return Conflict(revision, reads)

    def _check_transaction(
        self, compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[str]
    ) -> None:
        for what, count in (("compares", compares), ("operations", operations), ("reads", otherwise)):
            if len(count) > self.limits.operations:
                raise TransactionTooLarge(
                    f"a transaction of {len(count)} {what}; the limit is {self.limits.operations}: split it"
                )
        if len({operation.key for operation in operations}) < len(operations):
            raise InvalidInput("a transaction may write a key once; merge the writes to the same key")
        self._check_size(sum(len(operation.value) for operation in operations if isinstance(operation, Put)))

    def _check_size(self, size: int) -> None:
        if size > self.limits.value_bytes:
            raise TransactionTooLarge(f"{size} bytes in one write; the limit is {self.limits.value_bytes}: split it")

    # -- liveness --------------------------------------------------------------------------------------------------

    async def grant(self, ttl: float) -> Granted:
        if not 0 < ttl < 1e9:
            raise InvalidInput(f"a lease's TTL must be above 0 seconds, not {ttl:g}")
        # A lease whose answer was lost has no keys and expires, so a retry is safe.
        answer = await self._calls.send("grant", rpc.LeaseGrantRequest(TTL=math.ceil(ttl)), Effect.NONE)
        return Granted(answer.header.revision, answer.ID, float(answer.TTL))

    async def keep_alive(self, lease: int) -> KeepAliveResult:
        answer = await self._keep_alives.renew(lease)
        # etcd reports an expired lease not as an error but as a TTL of 0.
        if answer.TTL <= 0:
            return LeaseGone(answer.header.revision)
        return Renewed(answer.header.revision, float(answer.TTL))

    async def revoke(self, lease: int) -> None:
        try:
            await self._calls.send("revoke", rpc.LeaseRevokeRequest(ID=lease), Effect.REPEATABLE)
        except LeaseNotFound:
            return

    async def remaining(self, lease: int) -> RemainingResult:
        try:
            answer = await self._calls.send("remaining", rpc.LeaseTimeToLiveRequest(ID=lease), Effect.NONE)
        except LeaseNotFound:
            return LeaseGone(self._highest)
        if answer.TTL < 0:
            return LeaseGone(answer.header.revision)
        return Remaining(answer.header.revision, float(answer.TTL))

    # -- watches ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def watch(self, prefix: str, *, start_revision: int) -> AsyncIterator[AsyncIterator[WatchItem]]:
        watch = self._watches.open(prefix, start_revision)
        try:
            yield watch
        finally:
            self._watches.close(watch)
