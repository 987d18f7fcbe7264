"""The client commits and reads offsets at the real service: what a program that hands its work over relies on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest

from assigner.api import CommitRefusal, OffsetCommit, RefusedCommit
from assigner.client import (
    AssignerConsumer,
    CommitFailed,
    CommittedOffset,
    Fenced,
    Handler,
    OffsetAndMetadata,
    Ownership,
    Release,
    TopicPartition,
    Unavailable,
)
from assigner.client.offsets import BYTES_IN_A_CALL, IN_A_CALL, IN_A_LIST, commit, committed
from assigner.embedded import EmbeddedAssigner
from assigner.errors import InvalidInput, LimitReached, UnreadableRecord
from assigner.model.records import HandoffMode
from tests.support.clients.recording_handler import QUICK

GROUP, TOPIC, COUNT = "billing", "orders", 8
Mixed = dict[Ownership | TopicPartition, int]


def tp(partition: int, topic: str = TOPIC) -> TopicPartition:
    return TopicPartition(topic, partition)


@asynccontextmanager
async def serving(mode: HandoffMode = HandoffMode.OVERLAP, count: int = COUNT) -> AsyncIterator[EmbeddedAssigner]:
    assigner = EmbeddedAssigner(topics={GROUP: {TOPIC: count}})
    await anyio.to_thread.run_sync(assigner.__enter__)
    try:
        changes = {"debounce": 0.05, "handoff_mode": mode}
        await anyio.to_thread.run_sync(
            assigner.call, lambda service: service.instance.operations.set_options(GROUP, changes)
        )
        with anyio.fail_after(60):
            yield assigner
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(assigner.__exit__, None, None, None)


def member(assigner: EmbeddedAssigner, name: str, handler: Handler | None = None) -> AssignerConsumer:
    return AssignerConsumer(assigner.address, GROUP, name, [TOPIC], handler or Handler(), timing=QUICK)


async def holds(consumer: AssignerConsumer, count: int = COUNT) -> None:
    await consumer.wait_for(lambda one: len(one.partitions) == count)


async def in_service(assigner: EmbeddedAssigner, work: Any) -> Any:
    return await anyio.to_thread.run_sync(assigner.call, work)


# --- alone -------------------------------------------------------------------------------------------------------


async def test_any_consumer_reads_what_was_committed() -> None:
    async with serving() as assigner, member(assigner, "a") as a:
        await holds(a)
        epoch = a.partitions[tp(0)]
        assert await a.commit({tp(0): 42, tp(1): OffsetAndMetadata(7, "half way", 3)}) == {tp(0), tp(1)}
        found = await a.committed([tp(0), Ownership(TOPIC, 1, epoch), tp(2)])
        assert found.keys() == {tp(0), tp(1)}
        assert found[tp(0)] == CommittedOffset(42, epoch, "", -1, found[tp(0)].committed_at)
        assert found[tp(1)] == CommittedOffset(7, epoch, "half way", 3, found[tp(1)].committed_at)
        assert found[tp(0)].committed_at > 1_600_000_000


async def test_nothing_is_committed_and_nothing_asked_for_where_nothing_is_named() -> None:
    async with serving() as assigner, member(assigner, "a") as a:
        assert await a.commit({}) == frozenset()
        assert await a.committed([]) == {}


async def test_an_ownership_commits_under_its_own_epoch_and_a_plain_partition_under_the_gates() -> None:
    async with serving() as assigner, member(assigner, "a") as a:
        await holds(a)
        epoch = a.partitions[tp(0)]
        both: Mixed = {Ownership(TOPIC, 0, epoch): 1, tp(1): 1}
        await a.commit(both)
        late: Mixed = {Ownership(TOPIC, 0, epoch - 1): 2, tp(1): 2}
        with pytest.raises(CommitFailed, match=r"not under that epoch any more.*orders/0") as caught:
            await a.commit(late)
        assert caught.value.fenced == {tp(0): Fenced("a", epoch)}
        assert caught.value.committed == {tp(1)}
        found = await a.committed([tp(0), tp(1)])
        assert {one: offset.offset for one, offset in found.items()} == {tp(0): 1, tp(1): 2}


async def test_partitions_never_owned_and_partitions_that_do_not_exist_are_distinguished() -> None:
    async with serving() as assigner, member(assigner, "a") as a:
        await holds(a)
        wrong: Mixed = {tp(99): 1, Ownership(TOPIC, 98, 1): 1, tp(0): 1}
        with pytest.raises(CommitFailed, match="2 offsets were not committed") as caught:
            await a.commit(wrong)
        assert caught.value.fenced == {tp(99): Fenced("", 0)}
        assert caught.value.unknown == {tp(98)}
        assert caught.value.committed == {tp(0)}


@pytest.mark.parametrize("wrong", [-1, 2**63, OffsetAndMetadata(1, leader_epoch=-2), OffsetAndMetadata(-5)])
async def test_what_is_not_an_offset_is_refused_before_anything_is_sent(wrong: int | OffsetAndMetadata) -> None:
    async with serving() as assigner, member(assigner, "a") as a:
        await holds(a)
        with pytest.raises(InvalidInput, match="orders/1 is"):
            await a.commit({tp(0): 1, tp(1): wrong})
        assert await a.committed([tp(0)]) == {}
        twice: Mixed = {tp(0): 1, Ownership(TOPIC, 0, 1): 2}
        with pytest.raises(InvalidInput, match="named twice"):
            await a.commit(twice)


async def test_without_contact_nobody_pretends_to_have_committed() -> None:
    async with serving() as assigner:
        async with member(assigner, "a") as a:
            await holds(a)
        with pytest.raises(Unavailable, match="no contact"):
            await a.commit({tp(0): 1})
        with pytest.raises(Unavailable, match="no contact"):
            await a.committed([tp(0)])


async def test_thousands_of_partitions_are_committed_and_read_in_a_few_calls() -> None:
    count = IN_A_CALL + 500
    async with serving(count=count) as assigner, member(assigner, "a") as a:
        await holds(a, count)
        mine = dict(a.partitions)
        assert await a.commit({one: one.partition for one in mine}) == mine.keys()
        found = await a.committed(mine)
        assert {one: offset.offset for one, offset in found.items()} == {one: one.partition for one in mine}


# --- handing over ------------------------------------------------------------------------------------------------


class Worker(Handler):
    """Counts up from the committed offset, one partition at a time, and commits before it releases."""

    def __init__(self, began: dict[TopicPartition, list[int]]) -> None:
        self.consumer: AssignerConsumer | None = None
        self._began = began
        self.at: dict[TopicPartition, int] = {}

    async def assigned(self, partition: Ownership) -> None:
        assert self.consumer
        found = await self.consumer.committed([partition])
        self.at[partition.tp] = found[partition.tp].offset if found else 0
        self._began.setdefault(partition.tp, []).append(self.at[partition.tp])

    async def release(self, partition: Ownership, order: Release) -> None:
        assert self.consumer
        await self.consumer.commit({partition: self.at[partition.tp]})


async def test_in_an_exclusive_group_the_next_owner_starts_where_the_last_one_ended() -> None:
    began: dict[TopicPartition, list[int]] = {}
    first, second = Worker(began), Worker(began)
    async with serving(HandoffMode.EXCLUSIVE) as assigner, member(assigner, "a", first) as a:
        first.consumer = a
        await holds(a)
        for number, one in enumerate(sorted(first.at)):
            first.at[one] = 100 + number
        b = second.consumer = member(assigner, "b", second)
        async with b:
            await holds(b, COUNT // 2)
            moved = b.partitions.keys()
            assert {one: began[one] for one in moved} == {one: [0, 100 + one.partition] for one in moved}


async def test_a_process_that_was_replaced_commits_nothing_more() -> None:
    async with serving() as assigner, member(assigner, "a") as old:
        await holds(old)
        worked_on = Ownership(TOPIC, 0, old.partitions[tp(0)])
        await old.commit({worked_on: 10})
        session = old.session
        async with member(assigner, "a") as new:
            await holds(new)
            assert (await new.committed([tp(0)]))[tp(0)].offset == 10
            commits = [OffsetCommit(worked_on.tp, worked_on.epoch, 11)]
            late = await in_service(assigner, lambda s: s.instance.offsets.commit(GROUP, "a", session, commits))
            assert late == [RefusedCommit(tp(0), CommitRefusal.FENCED, new.partitions[tp(0)], "a")]
            await new.commit({tp(0): 12})
            assert (await new.committed([tp(0)]))[tp(0)].offset == 12


# --- many calls, and what goes wrong in between ------------------------------------------------------------------


class FakeContact:
    """Takes so many calls and then can't be reached."""

    def __init__(self, calls: int = 1_000) -> None:
        self.calls = calls
        self.topics: list[Sequence[dict[str, Any]]] = []

    async def commit(self, topics: Sequence[dict[str, Any]]) -> Any:
        if len(self.topics) >= self.calls:
            raise Unavailable("gone")
        self.topics.append(topics)

        class Reply:
            refused = ()

        return Reply()


def offsets_of(count: int, metadata: str = "") -> dict[TopicPartition, tuple[int | None, OffsetAndMetadata]]:
    return {tp(number): (1, OffsetAndMetadata(number, metadata)) for number in range(count)}


def sizes(contact: FakeContact) -> list[int]:
    return [sum(len(topic["partitions"]) for topic in call) for call in contact.topics]


async def test_a_commit_is_cut_into_calls_and_lists_that_the_service_takes() -> None:
    contact = FakeContact()
    await commit(lambda: contact, offsets_of(2 * IN_A_CALL + 1))  # type: ignore[arg-type, return-value]
    assert sizes(contact) == [IN_A_CALL, IN_A_CALL, 1]
    assert max(len(topic["partitions"]) for call in contact.topics for topic in call) == IN_A_LIST


async def test_long_metadata_makes_more_calls() -> None:
    contact = FakeContact()
    await commit(lambda: contact, offsets_of(300, "x" * 4_096))  # type: ignore[arg-type, return-value]
    assert len(sizes(contact)) == 3
    assert max(sizes(contact)) * 4_096 <= BYTES_IN_A_CALL


async def test_an_error_names_what_was_committed_before_contact_was_lost() -> None:
    contact = FakeContact(calls=1)
    with pytest.raises(CommitFailed, match=r"not stored \(gone\), commit again") as caught:
        await commit(lambda: contact, offsets_of(2 * IN_A_CALL))  # type: ignore[arg-type, return-value]
    assert len(caught.value.committed) == len(caught.value.failed) == IN_A_CALL
    with pytest.raises(Unavailable, match="gone"):
        await commit(lambda: FakeContact(calls=0), offsets_of(3))  # type: ignore[arg-type, return-value]


async def test_responses_that_come_in_parts_are_joined() -> None:
    async with serving() as assigner, member(assigner, "a") as a:
        await holds(a)
        await a.commit({one: OffsetAndMetadata(one.partition, "x" * 200) for one in a.partitions})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("assigner.offsets.fetch.MAX_PAGE_BYTES", 500)
            found = await committed(a._session.rpc, [tp(number) for number in range(COUNT)])
        assert {one: offset.offset for one, offset in found.items()} == {tp(n): n for n in range(COUNT)}


async def test_an_offset_that_can_not_be_read_is_an_error_and_not_a_fresh_start() -> None:
    async with serving() as assigner, member(assigner, "a") as a:
        await holds(a)
        await in_service(assigner, lambda s: s.instance.store.put(s.instance.keys.offset(GROUP, tp(3)), b"rubbish"))
        with pytest.raises(UnreadableRecord, match="orders/3"):
            await a.committed([tp(2), tp(3)])


async def test_a_service_with_too_much_to_commit_says_so_and_is_asked_again_later() -> None:
    async with serving() as assigner, member(assigner, "a") as a:
        await holds(a)

        async def full(*_: object) -> None:
            raise LimitReached("many offsets are waiting; commit again later")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("assigner.offsets.commit.CommitWriter.write", full)
            with pytest.raises(Unavailable, match="commit again later"):
                await a.commit({tp(0): 1})
        await a.commit({tp(0): 1})
