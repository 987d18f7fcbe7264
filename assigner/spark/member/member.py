"""The group member behind a streaming query. It lives on the link's event loop; the query's own calls come in turns.

A partition is taken by claiming its committed offset. It is let go in a turn: only there it is certain that everything
before the query's start is in Spark's commit log, so its final offset is committed, and the release follows. What
contact was lost over is in doubt: it is neither read on nor forgotten until the assigner says whose it is. A partition
with state is let go a batch later: the batch in between hands the state over.

Not promised: that nobody else reads what this query reads. Between a lost lease and the end of the running batch that
happens; a sink that checks epochs refuses the rows.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import ExitStack

import anyio
import anyio.to_thread
import msgspec

from assigner.aio.wakeup import Wakeup
from assigner.client import AssignerConsumer, Ending, Handler, Ownership, Release, Timing, Unavailable, Warm
from assigner.client.offsets import CommitFailed, CommittedOffset, OffsetAndMetadata
from assigner.core.client.gate import GateClosed, StaleEpoch
from assigner.errors import AssignerError, InvalidInput, SourceUnavailable, Superseded, UnknownTopic
from assigner.model.keys import TopicPartition
from assigner.spark.kafka_offsets import KafkaLog, report_loss
from assigner.spark.member.admin_calls import describe_at, is_share_complete
from assigner.spark.member.claims import Claim, held_by
from assigner.spark.member.progress import ProgressReporter
from assigner.spark.options import SourceOptions
from assigner.spark.positions import HeldPartition, Holdings, Position, Positions, counts_still
from assigner.spark.sinks.fence import UNTOUCHED, Fence
from assigner.spark.state.handover import has_state
from assigner.spark.state.sink_record import EpochsWentBack, SinkRecord

CLOSE_SECONDS = 2.0
"""For a batch that is running when the query stops. It will not end; the lease then has to."""
ARRIVAL_SECONDS = 0.3
"""For what is on its way when a batch is planned. Spark's triggers go by the wall clock: the query that lets go and the
one that takes plan at the same moment, and without waiting the partition would rest until the next one."""
ARRIVAL_TURNS = 3
"""So many batches wait for a partition. Its owner may be in a long one."""
_LOOK_AGAIN = 0.2
"""Seconds."""


class QueryMember(Handler):
    def __init__(self, options: SourceOptions, log: KafkaLog, sink: SinkRecord | None) -> None:
        self._options = options
        self._log = log
        self._sink = sink
        self._trouble: AssignerError | None = None
        """What no repetition mends, for whoever asks next."""
        self._held: dict[TopicPartition, HeldPartition] = {}
        self._releasing: dict[TopicPartition, anyio.Event] = {}
        self._coming: dict[TopicPartition, int] = {}
        """What may soon be ours, and how many more turns wait for it."""
        self._taking = anyio.Lock()
        self._wanted: dict[TopicPartition, Ownership] = {}
        self._taken: dict[TopicPartition, tuple[int, HeldPartition | Exception]] = {}
        self.under_way = ExitStack()
        """Gates of what the next batch may read: a member with a batch under way can't say that they are shut."""
        self.changes = Wakeup()
        self.ending: Ending | None = None
        self.consumer = AssignerConsumer(
            options.assigner,
            options.group,
            options.member,
            options.topics,
            self,
            capacity=options.capacity,
            rack=options.rack,
            generation=options.generation,
            advertised_address=f"{socket.gethostname()}/{os.getpid()}",
            tls=options.tls.context() if options.tls is not None else None,
            connect_timeout=options.assigner_timeout,
            timing=Timing(close_timeout=CLOSE_SECONDS, drain_timeout=None),
        )
        self._reports = ProgressReporter(self.consumer, self.changes)

    async def run(self) -> None:
        """Until the member left, or can't go on."""
        failure: AssignerError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._reports.run)
            try:
                self.ending = await self.consumer.closed()
            except AssignerError as error:
                failure = error
            tasks.cancel_scope.cancel()
        self.changes.notify()
        if isinstance(failure, Superseded):
            who = f"member {self._options.member!r} of group {self._options.group!r}"
            raise Superseded(f"{who} is now another query's ({failure}); give each query its own member") from failure
        if failure is not None:
            raise failure

    async def leave(self) -> None:
        if self.consumer.is_connected:
            with anyio.move_on_after(CLOSE_SECONDS):
                await self._reports.sent()
        await self.consumer.close()

    # --- what the assigner asks for --------------------------------------------------------------------------------

    async def warm(self, partition: TopicPartition, order: Warm) -> None:
        """Nothing is kept warm; but what could not be read afterwards is better said now."""
        found = (await self.consumer.committed([partition])).get(partition)
        starts = await anyio.to_thread.run_sync(self._log.starts, [partition])
        if found is not None and found.offset < starts[partition]:
            why = f"the log begins at {starts[partition]}, older records were deleted"
            fail = self._options.fail_on_data_loss
            report_loss(partition, found.offset, starts[partition], why, fail=fail)
        self._coming[partition] = ARRIVAL_TURNS

    async def discard(self, partition: TopicPartition) -> None:
        self._has_come(partition)

    async def assigned(self, partition: Ownership) -> None:
        self._wanted[partition.tp] = partition
        try:
            async with self._taking:
                if self._taken.get(partition.tp, (-1,))[0] != partition.epoch:
                    await self._take(list(self._wanted.values()))
                _, outcome = self._taken.pop(partition.tp)
            if isinstance(outcome, Exception):
                raise outcome
        except (InvalidInput, SourceUnavailable, UnknownTopic) as error:
            self._trouble = error
            self.changes.notify()
            raise
        finally:
            self._wanted.pop(partition.tp, None)
        self._held[partition.tp] = outcome
        self._reports.claimed(partition.tp, outcome)
        self._has_come(partition.tp)

    async def release(self, partition: Ownership, order: Release) -> None:
        if partition.tp in self._held:
            let_go = self._releasing[partition.tp] = anyio.Event()
            await let_go.wait()

    async def revoked(self, partition: Ownership, reason: str) -> None:
        self._held.pop(partition.tp, None)
        self.changes.notify()

    def _has_come(self, partition: TopicPartition) -> None:
        self._coming.pop(partition, None)
        self.changes.notify()

    # --- taking ----------------------------------------------------------------------------------------------------

    async def _take(self, wanted: list[Ownership]) -> None:
        """Claim many at once: a member that joins gets many at once."""
        found = await self.consumer.committed(wanted)
        blank = {one.tp: self._options.starting.of(one.tp) for one in wanted if one.tp not in found}
        begin = await anyio.to_thread.run_sync(self._log.resolved, blank)
        fences = await anyio.to_thread.run_sync(self._sink.fences) if self._sink is not None else {}
        held = {
            one: self._holding(one, found.get(one.tp), begin.get(one.tp, 0), fences.get(one.tp, UNTOUCHED))
            for one in wanted
        }
        refused = await self._claim(held)
        for one, holding in held.items():
            outcome: HeldPartition | Exception = refused.get(one.tp, holding)
            fence = fences.get(one.tp, UNTOUCHED)
            if one.tp not in refused and fence.epoch > one.epoch:
                # Our epoch was in force after the fence was read, so no later owner wrote it.
                outcome = EpochsWentBack(one.tp, one.epoch, fence)
            self._taken[one.tp] = one.epoch, outcome

    def _holding(self, one: Ownership, found: CommittedOffset | None, otherwise: int, fence: Fence) -> HeldPartition:
        held = held_by(self._options.member, one.epoch, found, otherwise)
        if self._options.control_rows:
            return held
        # What the sink has is finished, whether or not its writer lived to report it.
        return msgspec.structs.replace(held, base=max(held.base, fence.next_offset))

    async def _claim(self, held: Mapping[Ownership, HeldPartition]) -> dict[TopicPartition, Exception]:
        claims = {
            one: OffsetAndMetadata(holding.base, Claim(self._options.member, holding.since).text())
            for one, holding in held.items()
        }
        try:
            await self.consumer.commit(claims)
        except CommitFailed as error:
            refused: dict[TopicPartition, Exception] = {}
            epochs = {one.tp: one.epoch for one in held}
            for tp, now in error.fenced.items():
                refused[tp] = StaleEpoch(tp, epochs[tp], now.epoch)
            for tp in (*error.unknown, *error.failed):
                refused[tp] = Unavailable(f"{tp} could not be claimed: {error.failed.get(tp, 'no such partition')}")
            return refused
        return {}

    # --- what the query asks for -----------------------------------------------------------------------------------

    async def turn(self, start: Positions) -> Holdings:
        """Everything up to `start` is finished: report it, let go of what was asked for, say what is left."""
        for tp, at in start.of.items():
            held = self._held.get(tp)
            if held is None:
                self._reports.doubt(tp, at.epoch, at.end)
            elif counts_still(at, held):
                self._reports.progress(tp, held, max(at.end, held.base))
        leaving = frozenset(tp for tp in self._releasing if self._leaves_state(tp, start.of.get(tp)))
        for tp in self._releasing.keys() - leaving:
            self._held.pop(tp, None)
            self._reports.release(tp, self._releasing.pop(tp))
        await self._arrivals()
        self._raise_trouble()
        return self._holdings(start.of, leaving)

    def _leaves_state(self, tp: TopicPartition, at: Position | None) -> bool:
        """Whether a batch is still needed, and allowed, to hand the partition's state over."""
        held = self._held.get(tp)
        if not self._options.control_rows or held is None or not has_state(at, held):
            return False
        try:
            self.consumer.gate(tp.topic, tp.partition).check(held.epoch)
        except (GateClosed, StaleEpoch):
            return False
        return True

    async def _arrivals(self) -> None:
        with anyio.move_on_after(ARRIVAL_SECONDS):
            await self.changes.until(lambda: not self._coming)
        self._coming = {tp: turns - 1 for tp, turns in self._coming.items() if turns > 1}

    async def settled(self, keys: Mapping[TopicPartition, Position]) -> Holdings:
        """Wait until each partition is known to be another's, or may be read. `keys`: how far each is finished, and
        under which epoch.

        What is only left out because its gate is shut would be counted as read once the batch is finished."""
        while True:
            for tp, at in keys.items():
                if tp not in self._held:
                    self._reports.doubt(tp, at.epoch, at.end)
            self._raise_trouble()
            self._refuse_if_left(keys)
            # Those that are to be let go wait for a turn, and that comes after this batch.
            found = self._holdings(keys, frozenset(self._releasing.keys() & self._held.keys()))
            if keys.keys() <= found.held.keys() | found.gone:
                return found
            self.under_way.close()
            with anyio.move_on_after(_LOOK_AGAIN):
                await self.changes.next()

    def _refuse_if_left(self, keys: Mapping[TopicPartition, Position]) -> None:
        if self.ending is not None and keys:
            raise Unavailable(
                f"member {self._options.member!r} has left group {self._options.group!r} before it finished a batch "
                f"that an earlier process began; start the query again, it begins with that batch"
            )

    def _raise_trouble(self) -> None:
        if self._trouble is not None:
            raise self._trouble

    def _holdings(self, keys: Iterable[TopicPartition], leaving: frozenset[TopicPartition] = frozenset()) -> Holdings:
        if self.ending is not None:
            return Holdings({}, frozenset(keys))
        gone = frozenset(tp for tp in keys if tp not in self._held and self._reports.is_gone(tp))
        # A release is not answered before they are let go, so they need not be entered.
        held = {tp: held for tp, held in self._held.items() if tp in leaving or self._enter(tp, held)}
        return Holdings(held, gone, leaving)

    def _enter(self, tp: TopicPartition, held: HeldPartition) -> bool:
        try:
            self.under_way.enter_context(self.consumer.gate(tp.topic, tp.partition).enter(held.epoch))
        except (GateClosed, StaleEpoch):
            # The lease is over by the clock, and the handler will hear of it: in doubt.
            return False
        return True

    async def has_share(self, *, whole: bool) -> None:
        """Wait until everything that the group's plan gives this member is here; or, if not `whole`, some of it."""
        options = self._options
        while whole or not self._held:
            self._raise_trouble()
            found = await describe_at(options.assigner, options.tls, options.group)
            if is_share_complete(found, options.member, self._held):
                return
            await anyio.sleep(_LOOK_AGAIN)
