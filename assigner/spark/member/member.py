"""`QueryMember` is the group member behind a streaming query. It runs on the event loop of `MemberThread`.

A partition is claimed by committing its offset again under the new epoch (see `claims`). It is released only at a batch
boundary: only there is everything before the batch's start known to be in Spark's commit log, so the final offset is
committed, and the ack of the release follows. A partition with state is released one batch later: the batch in between
hands its state over. When contact is lost, ownership is unknown: the partition is neither read further nor dropped
until the assigner names its owner.

Not promised: that no other query reads what this one reads. Between a lost lease and the end of the running batch two
owners may read the same records; a sink that checks epochs rejects the rows of the former owner.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

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
from assigner.spark.positions import HeldPartition, Holdings, Position, Positions, still_counts
from assigner.spark.sinks.fence import UNWRITTEN, Fence
from assigner.spark.state.handover import has_state
from assigner.spark.state.sink_record import EpochsWentBack, SinkRecord

CLOSE_SECONDS = 2.0
"""How long a query that stops waits for a batch in flight. Spark will not finish that batch; the lease then expires."""
PENDING_SECONDS = 0.3
"""How long a batch that is about to be planned waits for pending assignments. Spark's triggers follow the wall clock:
the query that releases a partition and the one that gets it plan at the same moment, and without waiting neither would
read the partition until the next trigger."""
PENDING_BATCHES = 3
"""How many batches wait for the same pending assignment. Its present owner may be in a long batch."""
_POLL_SECONDS = 0.2


class MemberStatistics(msgspec.Struct, frozen=True):
    """The partitions of a member at one moment."""

    held: frozenset[TopicPartition]
    """Claimed, and not yet released or lost."""
    releasing: frozenset[TopicPartition]
    """Held, and to be released at the next batch boundary."""
    pending: frozenset[TopicPartition]
    """Warmed for this member and not yet assigned to it."""
    has_left: bool
    """The member has left the group."""


class QueryMember(Handler):
    """Claims partitions, reports progress, and releases partitions between the batches of a query."""

    def __init__(self, options: SourceOptions, log: KafkaLog, sink: SinkRecord | None) -> None:
        self._options = options
        self._log = log
        self._sink = sink
        self._failure: AssignerError | None = None
        """An error that no retry mends; raised to the next caller."""
        self._held: dict[TopicPartition, HeldPartition] = {}
        self._releasing: dict[TopicPartition, anyio.Event] = {}
        self._pending: dict[TopicPartition, int] = {}
        """Pending assignments, and how many more batches wait for each."""
        self._claim_lock = anyio.Lock()
        self._to_claim: dict[TopicPartition, Ownership] = {}
        self._claimed: dict[TopicPartition, tuple[int, HeldPartition | Exception]] = {}
        """What came of claims, with their epochs, until the handler of each partition takes it."""
        self.in_flight = ExitStack()
        """Entered gates of what the batch in flight may read: until it ends, their partitions are not reported as
        released."""
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
            token=Path(options.token_file) if options.token_file else None,
            connect_timeout=options.assigner_timeout,
            kind="spark",
            timing=Timing(close_timeout=CLOSE_SECONDS, drain_timeout=None),
        )
        self._progress = ProgressReporter(self.consumer, self.changes)

    async def run(self) -> None:
        """Report progress until the member has left the group, or can't go on."""
        failure: AssignerError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._progress.run)
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

    def statistics(self) -> MemberStatistics:
        return MemberStatistics(
            held=frozenset(self._held),
            releasing=frozenset(self._releasing),
            pending=frozenset(self._pending),
            has_left=self.ending is not None,
        )

    async def leave(self) -> None:
        if self.consumer.is_connected:
            with anyio.move_on_after(CLOSE_SECONDS):
                await self._progress.flush()
        await self.consumer.close()

    # --- called by the client, on commands of the assigner ---------------------------------------------------------

    async def warm(self, partition: TopicPartition, order: Warm) -> None:
        """Report records that Kafka has deleted already, before the handoff. There is nothing to warm up."""
        found = (await self.consumer.committed([partition])).get(partition)
        starts = await anyio.to_thread.run_sync(self._log.starts, [partition])
        if found is not None and found.offset < starts[partition]:
            why = f"the log begins at {starts[partition]}, older records were deleted"
            fail = self._options.fail_on_data_loss
            report_loss(partition, found.offset, starts[partition], why, fail=fail)
        self._pending[partition] = PENDING_BATCHES

    async def discard(self, partition: TopicPartition) -> None:
        self._no_longer_pending(partition)

    async def assigned(self, partition: Ownership) -> None:
        self._to_claim[partition.tp] = partition
        try:
            async with self._claim_lock:
                if self._claimed.get(partition.tp, (-1,))[0] != partition.epoch:
                    await self._claim_all(list(self._to_claim.values()))
                _, outcome = self._claimed.pop(partition.tp)
            if isinstance(outcome, Exception):
                raise outcome
        except (InvalidInput, SourceUnavailable, UnknownTopic) as error:
            self._failure = error
            self.changes.notify()
            raise
        finally:
            self._to_claim.pop(partition.tp, None)
        self._held[partition.tp] = outcome
        self._progress.claimed(partition.tp, outcome)
        self._no_longer_pending(partition.tp)

    async def release(self, partition: Ownership, order: Release) -> None:
        if partition.tp in self._held:
            released = self._releasing[partition.tp] = anyio.Event()
            await released.wait()

    async def revoked(self, partition: Ownership, reason: str) -> None:
        self._held.pop(partition.tp, None)
        self.changes.notify()

    def _no_longer_pending(self, partition: TopicPartition) -> None:
        self._pending.pop(partition, None)
        self.changes.notify()

    # --- claiming --------------------------------------------------------------------------------------------------

    async def _claim_all(self, wanted: list[Ownership]) -> None:
        """Claim several partitions in one call: a member that joins is assigned several at once."""
        found = await self.consumer.committed(wanted)
        blank = {one.tp: self._options.starting.of(one.tp) for one in wanted if one.tp not in found}
        begin = await anyio.to_thread.run_sync(self._log.resolved, blank)
        fences = await anyio.to_thread.run_sync(self._sink.fences) if self._sink is not None else {}
        held = {
            one: self._holding(one, found.get(one.tp), begin.get(one.tp, 0), fences.get(one.tp, UNWRITTEN))
            for one in wanted
        }
        refused = await self._commit_claims(held)
        for one, holding in held.items():
            outcome: HeldPartition | Exception = refused.get(one.tp, holding)
            fence = fences.get(one.tp, UNWRITTEN)
            if one.tp not in refused and fence.epoch > one.epoch:
                # Our epoch was in force after the fence was read, so no later owner wrote it.
                outcome = EpochsWentBack(one.tp, one.epoch, fence)
            self._claimed[one.tp] = one.epoch, outcome

    def _holding(self, one: Ownership, found: CommittedOffset | None, otherwise: int, fence: Fence) -> HeldPartition:
        held = held_by(self._options.member, one.epoch, found, otherwise)
        if self._options.control_rows:
            return held
        # Rows in the sink are finished, whether or not their writer lived to report it.
        return msgspec.structs.replace(held, base=max(held.base, fence.next_offset))

    async def _commit_claims(self, held: Mapping[Ownership, HeldPartition]) -> dict[TopicPartition, Exception]:
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

    # --- called by the planner, between the batches of the query ---------------------------------------------------

    async def begin_batch(self, start: Positions) -> Holdings:
        """Report everything up to `start` as finished, release what the assigner asked for, and return the rest."""
        for tp, at in start.of.items():
            held = self._held.get(tp)
            if held is None:
                self._progress.confirm_owner(tp, at.epoch, at.end)
            elif still_counts(at, held):
                self._progress.progress(tp, held, max(at.end, held.base))
        leaving = frozenset(tp for tp in self._releasing if self._leaves_state(tp, start.of.get(tp)))
        for tp in self._releasing.keys() - leaving:
            self._held.pop(tp, None)
            self._progress.release(tp, self._releasing.pop(tp))
        await self._wait_for_pending()
        self._raise_failure()
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

    async def _wait_for_pending(self) -> None:
        with anyio.move_on_after(PENDING_SECONDS):
            await self.changes.until(lambda: not self._pending)
        self._pending = {tp: batches - 1 for tp, batches in self._pending.items() if batches > 1}

    async def wait_until_owned(self, finished: Mapping[TopicPartition, Position]) -> Holdings:
        """Wait until each partition may be read or is known to be owned by another member.

        `finished`: how far each is finished, and under which epoch. A partition that was left out only because its gate
        is shut would count as read once the batch is finished."""
        while True:
            for tp, at in finished.items():
                if tp not in self._held:
                    self._progress.confirm_owner(tp, at.epoch, at.end)
            self._raise_failure()
            self._refuse_if_left(finished)
            # Those that are to be released wait for the next batch boundary, and that comes after this batch.
            found = self._holdings(finished, frozenset(self._releasing.keys() & self._held.keys()))
            if finished.keys() <= found.held.keys() | found.gone:
                return found
            self.in_flight.close()
            with anyio.move_on_after(_POLL_SECONDS):
                await self.changes.next()

    def _refuse_if_left(self, finished: Mapping[TopicPartition, Position]) -> None:
        if self.ending is not None and finished:
            raise Unavailable(
                f"member {self._options.member!r} has left group {self._options.group!r} before it finished a batch "
                f"that an earlier process began; start the query again, it begins with that batch"
            )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _holdings(
        self, partitions: Iterable[TopicPartition], leaving: frozenset[TopicPartition] = frozenset()
    ) -> Holdings:
        if self.ending is not None:
            return Holdings({}, frozenset(partitions))
        gone = frozenset(tp for tp in partitions if tp not in self._held and self._progress.is_gone(tp))
        # The release of those that leave is acked only after the batch, so their gates need not be entered.
        held = {tp: held for tp, held in self._held.items() if tp in leaving or self._enter(tp, held)}
        return Holdings(held, gone, leaving)

    def _enter(self, tp: TopicPartition, held: HeldPartition) -> bool:
        try:
            self.in_flight.enter_context(self.consumer.gate(tp.topic, tp.partition).enter(held.epoch))
        except (GateClosed, StaleEpoch):
            # The lease has expired by the clock, and `revoked` will follow: who owns the partition is unknown.
            return False
        return True

    async def wait_for_share(self, *, whole: bool) -> None:
        """Wait until the member holds all that the group's plan assigns to it; or, if not `whole`, some of it."""
        options = self._options
        while whole or not self._held:
            self._raise_failure()
            found = await describe_at(options.assigner, options.tls, options.group, token_file=options.token_file)
            if is_share_complete(found, options.member, self._held):
                return
            await anyio.sleep(_POLL_SECONDS)
