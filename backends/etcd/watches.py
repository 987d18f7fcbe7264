"""Multiplexes all watches over one stream, so that an idle watch costs an id on the server and nothing else.

The client chooses the watch ids and never uses one twice, so a response can't reach the wrong watch, however creation
and cancellation cross on the wire. The stream is reopened whenever it ends, and each watch resumes at the revision
after the last that it received; the reader gets an error only if resuming can't help. The stream requires a leader, so
a member that lost the quorum ends it instead of falling unavailable.
"""

from __future__ import annotations

import itertools
from typing import Any

import anyio
import anyio.abc

from assigner.aio.wakeup import Wakeup
from assigner.backends.etcd import rpc
from assigner.backends.etcd.auth import Login
from assigner.backends.etcd.calls import Effect, EtcdCalls
from assigner.backends.etcd.connection import Connection
from assigner.backends.etcd.errors import Final, NoEffect, TokenStale, TooMuchToRead, Unknown, classify
from assigner.backends.etcd.member import MemberConnection, pause_before
from assigner.backends.etcd.streams import run_stream
from assigner.backends.etcd.watch import Buffer, EtcdWatch
from assigner.clock import Clock
from assigner.errors import Compacted, LimitReached, StoreError, StoreRefused, StoreUnavailable, WatchEnded

MAX_WATCHES = 20_000
MAX_REFUSALS = 3
MAX_TOO_LARGE = 3

PROGRESS_SECONDS = 3.0
ASK_FOR_PROGRESS = 0
"""Key of a progress request in the outbox, where creations have their watch ids and cancellations the negative ids."""
EVERY_WATCH = -1
"""Watch id in etcd's answers to progress requests, and in its rejections of new watches."""


def orders_progress(version: tuple[int, ...]) -> bool:
    """Whether this etcd answers a progress request only after all earlier events. Older releases may answer too
    early."""
    return version >= (3, 5, 8) or (3, 4, 25) <= version < (3, 5)


class Watches:
    def __init__(
        self, member: MemberConnection, login: Login, clock: Clock, calls: EtcdCalls, buffer: Buffer, timeout: float
    ) -> None:
        self._member = member
        self._login = login
        self._clock = clock
        self._calls = calls
        self._buffer = buffer
        self._timeout = timeout
        self._open: set[EtcdWatch] = set()
        self._on_stream: dict[int, EtcdWatch] = {}
        self._outbox: dict[int, Any] = {}
        """Requests in order: a creation by its watch id, a cancellation by the negative id, a progress request."""
        self._creating: dict[int, EtcdWatch] = {}
        """Creations sent and not yet answered. etcd answers them in order."""
        self._ids = itertools.count(1)
        self._metadata: rpc.Metadata | None = None
        """The metadata of the present stream; None while there is none."""
        self._work = Wakeup()
        self._restart = anyio.Event()
        self._too_large = 0
        """Streams that failed by a response above our limit. After the first one etcd is asked to fragment responses:
        not before, as that takes it seconds for some ten thousand small events (quadratic time)."""
        self._closed = False
        self._tasks: anyio.abc.TaskGroup | None = None
        self.streams = 0
        self.pauses = 0

    @property
    def count(self) -> int:
        return len(self._open)

    # -- for the store ---------------------------------------------------------------------------------------------

    def open(self, prefix: str, start_revision: int) -> EtcdWatch:
        if self._closed:
            raise StoreUnavailable(self._member.problem())
        if len(self._open) >= MAX_WATCHES:
            raise LimitReached(f"{MAX_WATCHES} watches are open on this store; close some first")
        watch = EtcdWatch(prefix, start_revision, self._buffer, self._resume)
        self._open.add(watch)
        self._create(watch)
        self._work.notify()
        return watch

    def close(self, watch: EtcdWatch) -> None:
        self._open.discard(watch)
        self._cancel(watch)

    # -- requests --------------------------------------------------------------------------------------------------

    def _create(self, watch: EtcdWatch) -> None:
        if self._metadata is None:
            return  # The next stream creates all open watches.
        watch_id = next(self._ids)
        self._on_stream[watch_id] = watch
        self._outbox[watch_id] = watch.create_request(watch_id, fragment=self._too_large > 0)
        self._work.notify()

    def _cancel(self, watch: EtcdWatch) -> None:
        """Cancel a watch on the stream; it may be created again later under another id."""
        watch_id, watch.watch_id = watch.watch_id, 0
        if self._on_stream.pop(watch_id, None) is None:
            return
        if self._outbox.pop(watch_id, None) is None:
            cancel = rpc.WatchCancelRequest(watch_id=watch_id)
            self._outbox[-watch_id] = rpc.WatchRequest(cancel_request=cancel)
            self._work.notify()

    def _resume(self, watch: EtcdWatch) -> None:
        watch.paused = False
        if watch in self._open:
            self._create(watch)

    async def _next_request(self) -> Any:
        await self._work.until(lambda: bool(self._outbox))
        watch_id = next(iter(self._outbox))
        request = self._outbox.pop(watch_id)
        if watch_id > 0:
            self._creating[watch_id] = self._on_stream[watch_id]
        return request

    # -- responses -------------------------------------------------------------------------------------------------

    def _receive(self, response: Any) -> None:
        if response.created:
            self._receive_created(response)
            return
        if response.watch_id == EVERY_WATCH:
            self._receive_progress(response.header.revision)
            return
        watch = self._on_stream.get(response.watch_id)
        if watch is None:
            return  # Cancelled already.
        if response.compact_revision or response.canceled:
            del self._on_stream[response.watch_id]
            watch.watch_id = 0
            if response.compact_revision:
                self._end(watch, Compacted(response.compact_revision))
            else:
                self._start_diagnosis(watch, response.cancel_reason)
            return
        watch.accept(response)
        if watch.is_full:
            watch.paused = True
            self.pauses += 1
            self._cancel(watch)

    def _receive_created(self, response: Any) -> None:
        watch_id = next(iter(self._creating), 0)
        watch = self._creating.pop(watch_id, None)
        if watch is None or response.watch_id not in (watch_id, EVERY_WATCH):
            self._restart.set()  # etcd answers in order; this stream does not.
        elif not response.canceled:
            watch.refusals = 0
        elif self._on_stream.pop(watch_id, None) is not None:
            watch.watch_id = 0
            self._start_diagnosis(watch, response.cancel_reason)

    def _receive_progress(self, revision: int) -> None:
        for watch_id, watch in self._on_stream.items():
            # A watch that etcd has not confirmed yet may still get earlier events after this.
            if watch_id not in self._creating and watch_id not in self._outbox:
                watch.accept_progress(revision)

    def _end(self, watch: EtcdWatch, error: StoreError) -> None:
        self._open.discard(watch)
        self._cancel(watch)
        watch.end(error)

    def _end_all(self, error: StoreError) -> None:
        for watch in list(self._open):
            self._end(watch, error)

    # -- refusals --------------------------------------------------------------------------------------------------

    def _start_diagnosis(self, watch: EtcdWatch, reason: str) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(self._diagnose_refusal, watch, reason, self._metadata)

    async def _diagnose_refusal(self, watch: EtcdWatch, reason: str, metadata: rpc.Metadata | None) -> None:
        """Find out by a read why etcd cancelled a watch: it does not say whether the token or the permission was the
        reason. The read also renews the token."""
        watch.refusals += 1
        try:
            await self._revision(watch)
        except StoreRefused as refused:
            self._end(watch, WatchEnded(f"the watch on {watch.prefix!r} was refused ({reason}): {refused}"))
            return
        except StoreError:
            await anyio.sleep(pause_before(watch.refusals))
        if watch not in self._open or watch.watch_id:
            return
        if watch.refusals > MAX_REFUSALS:
            self._end(
                watch, WatchEnded(f"etcd keeps ending the watch on {watch.prefix!r}: {reason or 'no reason given'}")
            )
        elif self._metadata is metadata and self._login.current is not metadata:
            self._restart.set()  # A stream can't change its token.
        elif not watch.paused:
            self._create(watch)

    async def _revision(self, watch: EtcdWatch) -> int:
        """Read the store's revision, with the permission that the watch itself needs."""
        request = rpc.RangeRequest(key=watch.key, range_end=watch.range_end, limit=1, keys_only=True)
        answer = await self._calls.send("range", request, Effect.NONE)
        revision: int = answer.header.revision
        return revision

    # -- the stream ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve watches until cancelled. May be run again after a failure: each watch resumes at its position."""
        failures = 0
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            while True:
                await self._work.until(lambda: bool(self._open))
                connection = await self._member.next_connection()
                with connection.in_use():
                    failures = 0 if await self._serve(connection) else failures + 1
                await anyio.sleep(pause_before(failures) if failures else 0)

    def close_all(self, reason: str) -> None:
        """Accept no more watches and end those that are open."""
        self._closed = True
        self._end_all(WatchEnded(reason))

    async def _serve(self, connection: Connection) -> bool:
        """Run one stream to its end; return whether it received anything."""
        metadata = await self._prepare(connection)
        if metadata is None:
            return False
        self._restart = anyio.Event()
        heard = False

        def receive(response: Any) -> None:
            nonlocal heard
            heard = True
            connection.record_answer(self._clock.now())
            self._receive(response)

        self._begin(metadata)
        try:
            async with anyio.create_task_group() as progress_requests:
                progress_requests.start_soon(self._ask_for_progress, connection)
                error = await run_stream(
                    connection,
                    lambda: connection.watch(metadata=metadata),
                    next_request=self._next_request,
                    receive=receive,
                    stop=self._restart,
                )
                progress_requests.cancel_scope.cancel()
        finally:
            self._metadata = None
        if error is not None:
            self._react(error, connection, metadata)
        return heard

    async def _ask_for_progress(self, connection: Connection) -> None:
        """Request progress at an interval, so that compaction does not overtake quiet watches. etcd itself reports it
        rarely."""
        while True:
            await anyio.sleep(PROGRESS_SECONDS)
            if orders_progress(connection.version):
                self._outbox[ASK_FOR_PROGRESS] = rpc.WatchRequest(progress_request=rpc.WatchProgressRequest())
                self._work.notify()

    async def _prepare(self, connection: Connection) -> rpc.Metadata | None:
        try:
            await self._end_watches_ahead()
            return await self._login.metadata(connection, self._timeout)
        except StoreRefused as refused:
            self._end_all(WatchEnded(f"etcd refuses the store's user: {refused}"))
        except StoreUnavailable as unavailable:
            self._member.report(connection, str(unavailable))
        except StoreError:
            pass
        return None

    async def _end_watches_ahead(self) -> None:
        """End watches whose position is above the store's revision. After a restore from a backup, such a watch would
        miss events."""
        furthest = max(self._open, key=lambda watch: watch.seen, default=None)
        if furthest is None or not furthest.seen:
            return
        revision = await self._revision(furthest)
        for watch in list(self._open):
            if watch.seen > revision:
                self._end(watch, WatchEnded(f"etcd went back from revision {watch.seen} to {revision}; list again"))

    def _begin(self, metadata: rpc.Metadata) -> None:
        self.streams += 1
        self._metadata = metadata
        self._outbox.clear()
        self._creating.clear()
        self._on_stream.clear()
        for watch in self._open:
            watch.watch_id = 0
            if not watch.paused:
                self._create(watch)

    def _react(self, error: Any, connection: Connection, metadata: rpc.Metadata) -> None:
        match classify(error, answered_meanwhile=False):
            case TokenStale(reason):
                if not self._login.can_renew:
                    self._end_all(WatchEnded(str(self._login.refusal(reason))))
                self._login.forget(metadata)
            case Final(failure):
                self._end_all(WatchEnded(f"etcd ended the watches: {failure}"))
            case TooMuchToRead(reason):
                self._too_large += 1
                if self._too_large > MAX_TOO_LARGE:
                    self._too_large = 1
                    self._end_all(WatchEnded(f"etcd sends more at once than this client takes ({reason}); list again"))
            case NoEffect(reason, member_failed) | Unknown(reason, member_failed):
                if member_failed:
                    self._member.report(connection, reason)
