"""Provides `AssignerConsumer`, a consumer of a group as an async context manager.

    async with AssignerConsumer(["127.0.0.1:50051"], "billing", "worker-1", ["orders"], MyHandler()) as consumer:
        await consumer.run_until_signal()

Inside the block the consumer is registered, renews its session, calls the handler and sends the acks; the program
asks a partition's gate before it works. Leaving the block shuts the gates, notifies the handler, and deregisters the
consumer, so that its partitions move at once.

Not promised: that no partition is worked on twice. Pass the epoch to every system that the work writes to.
"""

from __future__ import annotations

import asyncio
import math
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Self

import anyio
import msgspec

from assigner.aio.supervision import report_failure
from assigner.client.channel import Dialer, Unavailable, parse_addresses
from assigner.client.gate import ADMIT_WITHIN, PartitionGate
from assigner.client.handler import Handler, warn_of_misspelt
from assigner.client.offsets import CommittedOffset, OffsetAndMetadata, Owned, commit, committed, tp_of
from assigner.client.rpc import Identity
from assigner.client.runner import Runner
from assigner.client.session import Ending, Session, Timing, new_session
from assigner.client.tls import tls_context
from assigner.client.token import Token, token_source
from assigner.clock import Clock, SystemClock
from assigner.core.client.messages import CallWarm, Ownership
from assigner.errors import AssignerError, InvalidInput
from assigner.logs import get_logger
from assigner.model.keys import TopicPartition
from assigner.model.names import check_name, check_topic

DRAIN_WITHIN = 20.0
"""Seconds for draining after a signal."""
LEAVE_WITHIN = 3.0
"""Seconds for handlers to stop when draining took longer."""

_log = get_logger(__name__)


class ConsumerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    session: str
    connected: bool
    address: str
    """Address of the instance that serves the stream; empty: none."""
    links: int
    """How often the consumer registered; more than 1 means that it reconnected."""
    failed_tries: int
    """How often a connection failed or was lost."""
    lease_left: float
    """Seconds the gates stay open without another renewal."""
    owned: int
    standbys: int
    warming: int
    work_in_progress: int
    """How much work is in progress inside gates."""
    pending_acks: int
    warmed: int
    released: int
    revoked: int
    stale_grants: int
    leases_lost: int
    refused_acks: int
    handler_failures: int


class AssignerConsumer:
    def __init__(
        self,
        addresses: str | Sequence[str],
        group: str,
        name: str,
        topics: Sequence[str],
        handler: Handler,
        *,
        capacity: float = 1.0,
        rack: str = "",
        session: str | None = None,
        advertised_address: str = "",
        generation: str = "",
        cold: bool = False,
        kind: str = "",
        tls: ssl.SSLContext | bool | None = None,
        token: Token | None = None,
        clock: Clock | None = None,
        connect_timeout: float | None = None,
        warm_concurrency: int = 10,
        handler_concurrency: int = 100,
        rejoin_after_eviction: bool = True,
        timing: Timing = Timing(),  # noqa: B008  (frozen)
    ) -> None:
        """`addresses`: `host:port` of one or more instances. `group` may be empty for the service's default group,
        and `topics` for every topic of the group. `token`: what the consumer shows to be recognized: a text, a
        `pathlib.Path` of a file, which is read again when it changes, or a function. `connect_timeout`: seconds to get
        registered for the first time; None: for as long as it takes. `cold`: the handler has nothing to warm, so that
        `warm` is never called and partitions come without that step. `kind`: what the consumer is, for operators."""
        warn_of_misspelt(handler)
        self._clock = clock or SystemClock()
        self._timing = timing
        self._connect_timeout = connect_timeout
        self._runner = Runner(
            handler, self._clock, handler_concurrency=handler_concurrency, warm_concurrency=warm_concurrency
        )
        identity = Identity(
            group=check_name("group", group) if group else "",
            name=check_name("consumer", name),
            session=check_name("session", session) if session is not None else new_session(),
            topics=_checked_topics(topics),
            capacity=_checked_capacity(capacity),
            rack=rack,
            address=advertised_address,
            generation=generation,
            cold=cold,
            kind=check_name("kind", kind) if kind else "",
        )
        parsed = parse_addresses(addresses)
        dialer = Dialer(tls_context(tls), timing.keepalive, timing.keepalive_timeout, token_source(token))
        self._session = Session(
            parsed, identity, dialer, self._clock, self._runner, timing, rejoin=rejoin_after_eviction
        )
        self._task: asyncio.Task[None] | None = None
        self._ending: Ending | BaseException | None = None
        self._close_within = timing.close_timeout

    # --- the block -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._enter(lambda: False)
        return self

    async def _enter(self, must_leave: Callable[[], bool]) -> None:
        """Start the task, and wait until the consumer is registered or `must_leave` is true."""
        if self._task is not None:
            raise RuntimeError("an AssignerConsumer is entered once; make another one")
        self._runner.changes.attach(asyncio.get_running_loop())
        # A task of its own instead of a task group around the block: the block may then be left in another task than
        # it was entered in, as test fixtures do, and an error in here never cancels the program's own work.
        self._task = asyncio.create_task(self._run(), name=f"assigner-consumer {self._session.identity.name}")
        try:
            with anyio.move_on_after(self._connect_timeout):
                await self.wait_for(lambda _: self._session.registered or self._ending is not None or must_leave())
        except BaseException:
            await self.close()
            raise
        if not self._session.registered and not must_leave():
            await self.close()
            if isinstance(self._ending, AssignerError):
                raise self._ending
            raise Unavailable(
                f"not registered within {self._connect_timeout} s: "
                f"{self._session.turns.last_failure or 'no answer'}; check the addresses"
            )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run_until_signal(
        self, *, drain_within: float = DRAIN_WITHIN, on_signal: Callable[[signal.Signals], None] | None = None
    ) -> Ending:
        """Run until SIGTERM or SIGINT, then drain for up to `drain_within` seconds, then leave even if partitions are
        left; a second signal leaves at once. For a program's main task, inside the block or instead of it. Returns how
        the consumer ended, and raises what `closed` raises.

        With the default it ends within Kubernetes' 30 s, even if the service is gone and a handler hangs."""
        received: list[signal.Signals] = []

        def on_receipt(number: signal.Signals) -> None:
            received.append(number)
            _log.info("signal_received", consumer=self.name, signal=number.name, signals=len(received))
            if on_signal is not None:
                on_signal(number)
            self._runner.changes.notify()

        async with _receiving_signals(on_receipt):
            if self._task is None:
                await self._enter(lambda: bool(received))
            await self.wait_for(lambda _: self._ending is not None or bool(received))
            if self._ending is None and self._session.registered and drain_within > 0:
                self._session.drain()
                with anyio.move_on_after(drain_within):
                    await self.wait_for(lambda _: self._ending is not None or len(received) > 1)
            if self._ending is None:
                self._close_within = 0.0 if len(received) > 1 else LEAVE_WITHIN
            await self.close()
        return await self.closed()

    async def close(self) -> None:
        """Leave at once, as leaving the block does. May be called repeatedly."""
        self._session.stop()
        if self._task is not None:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._task])

    async def drain(self, timeout: float | None = None) -> None:
        """Hand every partition over, then close. Raises `TimeoutError` if that takes longer than `timeout`; draining
        continues until the block is left."""
        self._session.drain()
        with anyio.fail_after(timeout):
            await self.closed()

    async def closed(self) -> Ending:
        """Wait until the consumer has ended. Raises `Superseded` if another session of the same name took over, or the
        error that ended the consumer."""
        await self.wait_for(lambda _: self._ending is not None)
        if isinstance(self._ending, Ending):
            return self._ending
        assert self._ending is not None
        raise self._ending

    # --- partitions ------------------------------------------------------------------------------------------------

    def gate(self, topic: str, partition: int) -> PartitionGate:
        """The gate of any partition, owned or not. It stays the same object for the consumer's lifetime."""
        return self._runner.gate(TopicPartition(topic, partition))

    def entering(
        self, topic: str, partition: int, epoch: int, *, within: float = ADMIT_WITHIN
    ) -> AbstractAsyncContextManager[int]:
        """Admit a request that a router sent under `epoch`, as `entering` of the partition's gate does, whatever
        partition the request names: it may wait for one that is not known here yet, and none is remembered for it."""
        return self._runner.requests.entering(TopicPartition(topic, partition), epoch, within)

    @property
    def partitions(self) -> dict[TopicPartition, int]:
        """Partitions that may be worked on now, with their epochs."""
        return self._runner.state.owned(self._clock.now())

    @property
    def standbys(self) -> frozenset[TopicPartition]:
        """Partitions of other consumers that this one holds a standby copy of."""
        return self._runner.state.standbys()

    async def report_load(self, loads: Mapping[TopicPartition, float], *, node: float | None = None) -> float:
        """Report the loads of owned partitions, and of this node, for plans by load: numbers from 0 up, in units that
        all consumers of the group share. Loads of partitions that this consumer does not own are ignored.

        Returns the seconds after which another report is useful. Raises `Unavailable` while not connected, and
        `Refused` if the service does not support loads."""
        return await self._session.report_load(loads, node)

    # --- offsets ---------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[Owned, int | OffsetAndMetadata]) -> frozenset[TopicPartition]:
        """Commit offsets: for each partition the next offset to read. A commit is accepted only while this consumer
        owns the partition, under the epoch of the `Ownership` given, or of its gate for a plain `TopicPartition`. It is
        accepted while releasing too: the next owner finds what was committed before `release` returned.

        Returns the partitions, all of which are stored. Raises `CommitFailed`, which lists those that are and those
        that are not, or `Unavailable` if nothing is known; either way the commit may be repeated."""
        return await commit(self._session.rpc, self._epochs(offsets))

    async def committed(
        self, partitions: Iterable[Ownership | TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """Fetch the committed offsets, of any owner; partitions without one are left out. Every acknowledged commit is
        visible. Raises `Unavailable`, and `UnreadableRecord` for an offset that can't be read."""
        return await committed(self._session.rpc, [tp_of(one) for one in partitions])

    def _epochs(
        self, offsets: Mapping[Owned, int | OffsetAndMetadata]
    ) -> dict[TopicPartition, tuple[int | None, OffsetAndMetadata]]:
        """Map each partition to its epoch, None if this consumer never owned it, and the offset."""
        found: dict[TopicPartition, tuple[int | None, OffsetAndMetadata]] = {}
        for partition, offset in offsets.items():
            tp = tp_of(partition)
            if tp in found:
                raise InvalidInput(f"{tp} is named twice; commit one offset for it")
            epoch = partition.epoch if isinstance(partition, Ownership) else self._runner.state.gate(tp).epoch
            found[tp] = epoch, offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        return found

    @property
    def session(self) -> str:
        return self._session.identity.session

    @property
    def group(self) -> str:
        """The group's name; empty: the service's default group."""
        return self._session.identity.group

    @property
    def name(self) -> str:
        return self._session.identity.name

    @property
    def is_connected(self) -> bool:
        return self._session.is_connected

    async def wait_for(self, predicate: Callable[[AssignerConsumer], bool]) -> None:
        """Wait until the condition is true; it is evaluated again whenever the consumer changes."""
        await self._runner.changes.until(lambda: predicate(self))

    def statistics(self) -> ConsumerStatistics:
        state, now = self._runner.state, self._clock.now()
        registration, counts = self._session.registration, self._runner.state.counts
        return ConsumerStatistics(
            session=self.session,
            connected=self.is_connected,
            address=str(registration.address) if registration is not None and registration.opened else "",
            links=self._session.registrations,
            failed_tries=self._session.turns.failed_tries,
            lease_left=max(0.0, state.lease.deadline - now),
            owned=len(state.owned(now)),
            standbys=len(state.standbys()),
            warming=sum(isinstance(call, CallWarm) for call in state.running()),
            work_in_progress=self._runner.work_in_progress(),
            pending_acks=state.pending_ack_count(),
            warmed=counts.warmed,
            released=counts.released,
            revoked=counts.revoked,
            stale_grants=counts.stale,
            leases_lost=counts.leases_lost,
            refused_acks=counts.refusals,
            handler_failures=counts.failures,
        )

    # --- the task --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        ending: Ending | BaseException = Ending.LEFT
        try:
            async with anyio.create_task_group() as tasks:
                self._runner.begin(tasks)
                try:
                    ending = await self._session.run()
                except AssignerError as error:
                    ending = error
                await self._shut_down(ending)
                tasks.cancel_scope.cancel()
        except BaseException as error:
            ending = error
            if not isinstance(error, Exception):
                raise
            _log.exception("consumer_failed", consumer=self.name)
        finally:
            # In every case: no gate stays open after the task that renews its lease.
            self._runner.state.lease.end()
            self._ending = ending
            self._runner.changes.notify()

    async def _shut_down(self, ending: Ending | BaseException) -> None:
        self._runner.leave(ending.value if isinstance(ending, Ending) else str(ending))
        if not self._session.registered:
            return
        if await self._runner.wait_idle(self._close_within):
            await self._session.deregister()
        else:
            _log.warning("session_left_to_expire", consumer=self.name)


@asynccontextmanager
async def _receiving_signals(on_receipt: Callable[[signal.Signals], None]) -> AsyncIterator[None]:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:

        async def listen() -> None:
            async for number in signals:
                on_receipt(number)

        listening = asyncio.create_task(listen(), name="assigner-signals")
        listening.add_done_callback(report_failure)
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.wait([listening])


def _checked_topics(topics: Sequence[str]) -> tuple[str, ...]:
    if isinstance(topics, str):
        raise InvalidInput(f"topics is the text {topics!r}; give a list, [{topics!r}]")
    return tuple(check_topic(topic) for topic in topics)


def _checked_capacity(capacity: float) -> float:
    if not math.isfinite(capacity) or capacity <= 0:
        raise InvalidInput(f"capacity is {capacity}; it must be a number above 0")
    return float(capacity)
