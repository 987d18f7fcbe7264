"""Progress, final offsets and questions of doubt, on their way to the assigner: one call for all that is pending.

The newest word about a partition replaces the one before, so nothing piles up while the assigner can't be reached. A
question of doubt is a commit under the old epoch: if it is refused, the refusal says who owns the partition now.
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

ASK_AGAIN = 0.5
"""Seconds between questions about the same partition."""

_log = get_logger(__name__)


class Report(msgspec.Struct, frozen=True, gc=False):
    epoch: int
    offset: int
    since: int


class ProgressReporter:
    def __init__(self, consumer: AssignerConsumer, changes: Wakeup) -> None:
        self._consumer = consumer
        self._changes = changes
        self._pending: dict[TopicPartition, Report] = {}
        self._known: dict[TopicPartition, Report] = {}
        """What was last reported of each, be it taken or refused."""
        self._leaving: dict[TopicPartition, anyio.Event] = {}
        self._doubts: dict[TopicPartition, Report] = {}
        self._gone: set[TopicPartition] = set()

    # --- told by the member ----------------------------------------------------------------------------------------

    def claimed(self, tp: TopicPartition, held: HeldPartition) -> None:
        self._known[tp] = Report(held.epoch, held.base, held.since)
        self._pending.pop(tp, None)
        self._doubts.pop(tp, None)
        self._gone.discard(tp)

    def progress(self, tp: TopicPartition, held: HeldPartition, offset: int) -> None:
        report = Report(held.epoch, offset, held.since)
        if self._known.get(tp) != report:
            self._known[tp] = self._pending[tp] = report
            self._changes.notify()

    def release(self, tp: TopicPartition, let_go: anyio.Event) -> None:
        """Let go once what is pending about it is on record."""
        self._leaving[tp] = let_go
        self._gone.add(tp)
        self._changes.notify()

    def doubt(self, tp: TopicPartition, epoch: int, offset: int) -> None:
        """Find out who owns it. `offset`: how far it is finished under `epoch`."""
        if tp not in self._gone:
            self._doubts[tp] = Report(epoch, offset, epoch)
            self._changes.notify()

    def is_gone(self, tp: TopicPartition) -> bool:
        """Let go, or known to be another one's."""
        return tp in self._gone

    async def sent(self) -> None:
        await self._changes.until(lambda: not self._pending and not self._leaving)

    # --- the tasks -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._report)
            tasks.start_soon(self._ask)

    async def _report(self) -> None:
        pauses = Backoff(f"{self._consumer.session}/reports", first=0.05, most=2.0)
        while True:
            await self._changes.until(lambda: bool(self._pending or self._leaving))
            try:
                await self._send()
            except Unavailable as error:
                _log.warning("progress_commit_failed", error=str(error))
                await pauses.pause()
            else:
                pauses.reset()
            self._let_go()

    async def _send(self) -> None:
        sent = dict(self._pending)
        done: Iterable[TopicPartition] = sent
        try:
            await self._commit(sent)
        except CommitFailed as error:
            # Fenced: others go on from what was reported last. Not stored: it stays pending.
            done = sent.keys() - error.failed.keys()
        for tp in done:
            if self._pending.get(tp) == sent[tp]:
                del self._pending[tp]
        if self._pending.keys() & sent.keys():
            raise Unavailable("the assigner did not store all offsets")

    def _let_go(self) -> None:
        for tp in self._leaving.keys() - self._pending.keys():
            self._leaving.pop(tp).set()
        self._changes.notify()

    async def _ask(self) -> None:
        while True:
            await self._changes.until(lambda: bool(self._doubts))
            asked = dict(self._doubts)
            try:
                await self._commit(asked)
            except CommitFailed as error:
                others = {tp for tp, now in error.fenced.items() if now.owner not in ("", self._consumer.name)}
                self._gone |= (others | error.unknown) & self._doubts.keys()
                for tp in self._gone:
                    self._doubts.pop(tp, None)
                self._changes.notify()
            except Unavailable as error:
                _log.warning("owner_lookup_failed", error=str(error))
            await anyio.sleep(ASK_AGAIN)

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
