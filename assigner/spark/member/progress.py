"""`ProgressReporter` commits finished offsets, final offsets and ownership probes: one call for all that is pending.

A newer report of a partition replaces the one before, so nothing piles up while the assigner can't be reached. A probe
is a commit under the old epoch: if it is fenced, the error names the partition's present owner.
"""

from __future__ import annotations

from collections.abc import Iterable

import anyio
import msgspec

from assigner.aio.backoff import Backoff
from assigner.aio.wakeup import Wakeup
from assigner.client import AssignerConsumer, Ownership, Unavailable
from assigner.client.offsets import CommitFailed, OffsetAndMetadata
from assigner.logs import get_logger
from assigner.model.keys import TopicPartition
from assigner.spark.member.claims import Claim
from assigner.spark.positions import HeldPartition

PROBE_SECONDS = 0.5
"""Between probes of the same partition."""

_log = get_logger(__name__)


class Report(msgspec.Struct, frozen=True, gc=False):
    """How far a partition is finished under an epoch."""

    epoch: int
    offset: int
    since: int


class ProgressReporter:
    def __init__(self, consumer: AssignerConsumer, changes: Wakeup) -> None:
        self._consumer = consumer
        self._changes = changes
        self._pending: dict[TopicPartition, Report] = {}
        self._last: dict[TopicPartition, Report] = {}
        """The last report of each partition, whether it was committed or fenced."""
        self._releasing: dict[TopicPartition, anyio.Event] = {}
        self._unconfirmed: dict[TopicPartition, Report] = {}
        """Partitions whose owner is unknown, to be probed."""
        self._gone: set[TopicPartition] = set()

    # --- called by the member --------------------------------------------------------------------------------------

    def claimed(self, tp: TopicPartition, held: HeldPartition) -> None:
        self._last[tp] = Report(held.epoch, held.base, held.since)
        self._pending.pop(tp, None)
        self._unconfirmed.pop(tp, None)
        self._gone.discard(tp)

    def progress(self, tp: TopicPartition, held: HeldPartition, offset: int) -> None:
        report = Report(held.epoch, offset, held.since)
        if self._last.get(tp) != report:
            self._last[tp] = self._pending[tp] = report
            self._changes.notify()

    def release(self, tp: TopicPartition, released: anyio.Event) -> None:
        """Set `released` once the partition's pending report is committed."""
        self._releasing[tp] = released
        self._gone.add(tp)
        self._changes.notify()

    def confirm_owner(self, tp: TopicPartition, epoch: int, offset: int) -> None:
        """Probe who owns the partition. `offset`: how far it is finished under `epoch`."""
        if tp not in self._gone:
            self._unconfirmed[tp] = Report(epoch, offset, epoch)
            self._changes.notify()

    def is_gone(self, tp: TopicPartition) -> bool:
        """Whether the partition was released, or is known to be owned by another member."""
        return tp in self._gone

    async def flush(self) -> None:
        """Wait until every report is committed and every release is acked."""
        await self._changes.until(lambda: not self._pending and not self._releasing)

    # --- the tasks -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._report)
            tasks.start_soon(self._probe_owners)

    async def _report(self) -> None:
        backoff = Backoff(f"{self._consumer.session}/reports", first=0.05, most=2.0)
        while True:
            await self._changes.until(lambda: bool(self._pending or self._releasing))
            try:
                await self._send()
            except Unavailable as error:
                _log.warning("progress_commit_failed", error=str(error))
                await backoff.pause()
            else:
                backoff.reset()
            self._complete_releases()

    async def _send(self) -> None:
        sent = dict(self._pending)
        done: Iterable[TopicPartition] = sent
        try:
            await self._commit(sent)
        except CommitFailed as error:
            # Fenced: the new owner starts from the last committed report. Not stored: the report stays pending.
            done = sent.keys() - error.failed.keys()
        for tp in done:
            if self._pending.get(tp) == sent[tp]:
                del self._pending[tp]
        if self._pending.keys() & sent.keys():
            raise Unavailable("the assigner did not store all offsets")

    def _complete_releases(self) -> None:
        for tp in self._releasing.keys() - self._pending.keys():
            self._releasing.pop(tp).set()
        self._changes.notify()

    async def _probe_owners(self) -> None:
        while True:
            await self._changes.until(lambda: bool(self._unconfirmed))
            probed = dict(self._unconfirmed)
            try:
                await self._commit(probed)
            except CommitFailed as error:
                others = {tp for tp, now in error.fenced.items() if now.owner not in ("", self._consumer.name)}
                self._gone |= (others | error.unknown) & self._unconfirmed.keys()
                for tp in self._gone:
                    self._unconfirmed.pop(tp, None)
                self._changes.notify()
            except Unavailable as error:
                _log.warning("owner_lookup_failed", error=str(error))
            await anyio.sleep(PROBE_SECONDS)

    async def _commit(self, reports: dict[TopicPartition, Report]) -> None:
        if reports:
            name = self._consumer.name
            await self._consumer.commit(
                {
                    Ownership(tp.topic, tp.partition, one.epoch): OffsetAndMetadata(
                        one.offset, Claim(name, one.since).text()
                    )
                    for tp, one in reports.items()
                }
            )
