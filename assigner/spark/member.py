"""The group member behind a streaming query. It lives on the link's event loop; the query's own calls come in turns.

A partition is taken by claiming its committed offset. It is let go in a turn: only there it is certain that everything
before the query's start is in Spark's commit log, so its final offset is committed, and the release follows. What
contact was lost over is in doubt: it is neither read on nor forgotten until the assigner says whose it is.

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

from assigner.client import AssignerConsumer, Ending, Handler, Ownership, ReleaseOrder, Timing, Unavailable, WarmOrder
from assigner.client.changes import Changes
from assigner.client.offsets import CommitFailed, OffsetAndMetadata
from assigner.core.gate import GateClosed, StaleEpoch
from assigner.errors import AssignerError, Superseded
from assigner.keys import TopicPartition
from assigner.spark.asking import describe_at, is_share_complete
from assigner.spark.claims import Claim, held_by
from assigner.spark.data_loss import report_loss
from assigner.spark.kafka_log import KafkaLog
from assigner.spark.options import SourceOptions
from assigner.spark.positions import Held, Holdings, Position, Positions, counts_still
from assigner.spark.reporting import Reports

CLOSE_SECONDS = 2.0
"""For a batch that is running when the query stops. It will not end; the lease then has to."""
ARRIVAL_SECONDS = 0.3
"""For what is on its way when a batch is planned. Spark's triggers go by the wall clock: the query that lets go and the
one that takes plan at the same moment, and without waiting the partition would rest until the next one."""
ARRIVAL_TURNS = 3
"""So many batches wait for a partition. Its owner may be in a long one."""
_LOOK_AGAIN = 0.2
"""Seconds."""


class Member(Handler):
    def __init__(self, options: SourceOptions, log: KafkaLog) -> None:
        self._options = options
        self._log = log
        self._held: dict[TopicPartition, Held] = {}
        self._releasing: dict[TopicPartition, anyio.Event] = {}
        self._coming: dict[TopicPartition, int] = {}
        """What may soon be ours, and how many more turns wait for it."""
        self._taking = anyio.Lock()
        self._wanted: dict[TopicPartition, Ownership] = {}
        self._taken: dict[TopicPartition, tuple[int, Held | Exception]] = {}
        self.under_way = ExitStack()
        """Gates of what the next batch may read: a member with a batch under way can't say that they are shut."""
        self.changes = Changes()
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
        self._reports = Reports(self.consumer, self.changes)

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

    async def warm(self, partition: TopicPartition, order: WarmOrder) -> None:
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
        finally:
            self._wanted.pop(partition.tp, None)
        if isinstance(outcome, Exception):
            raise outcome
        self._held[partition.tp] = outcome
        self._reports.claimed(partition.tp, outcome)
        self._has_come(partition.tp)

    async def release(self, partition: Ownership, order: ReleaseOrder) -> None:
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
        held = {
            one: held_by(self._options.member, one.epoch, found.get(one.tp), begin.get(one.tp, 0)) for one in wanted
        }
        refused = await self._claim(held)
        for one, holding in held.items():
            self._taken[one.tp] = one.epoch, refused.get(one.tp, holding)

    async def _claim(self, held: Mapping[Ownership, Held]) -> dict[TopicPartition, Exception]:
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
        for tp, let_go in self._releasing.items():
            self._held.pop(tp, None)
            self._reports.release(tp, let_go)
        self._releasing.clear()
        await self._arrivals()
        return self._holdings(start.of)

    async def _arrivals(self) -> None:
        with anyio.move_on_after(ARRIVAL_SECONDS):
            await self.changes.until(lambda: not self._coming)
        self._coming = {tp: turns - 1 for tp, turns in self._coming.items() if turns > 1}

    async def settled(self, keys: Mapping[TopicPartition, Position]) -> Holdings:
        """Wait until it is known of each partition whether it is still this member's. `keys`: how far each is finished,
        and under which epoch."""
        for tp, at in keys.items():
            if tp not in self._held:
                self._reports.doubt(tp, at.epoch, at.end)
        await self.changes.until(lambda: all(tp in self._held or self._reports.is_gone(tp) for tp in keys))
        return self._holdings(keys)

    def _holdings(self, keys: Iterable[TopicPartition]) -> Holdings:
        if self.ending is not None:
            return Holdings({}, frozenset(keys))
        gone = frozenset(tp for tp in keys if tp not in self._held and self._reports.is_gone(tp))
        return Holdings({tp: held for tp, held in self._held.items() if self._enter(tp, held)}, gone)

    def _enter(self, tp: TopicPartition, held: Held) -> bool:
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
            found = await describe_at(options.assigner, options.tls, options.group)
            if is_share_complete(found, options.member, self._held):
                return
            await anyio.sleep(_LOOK_AGAIN)
