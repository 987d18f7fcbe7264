"""Tests of watches: ordered, unique, atomic, resumable, and never silent about their own end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import pairwise

import anyio
import anyio.lowlevel
from anyio.abc import TaskStatus

from assigner.errors import Compacted, StoreError, WatchEnded
from assigner.store import Batch, Delete, Entry, Event, Put, PutEvent, WatchItem, read_all
from assigner.testing.conformance.subject import Subject, as_pair, raising, revision_of


class WatchConformance:
    async def test_a_watch_tells_of_puts_and_deletes_with_all_they_carry(self, subject: Subject) -> None:
        start = await subject.revision() + 1
        granted = await subject.store.grant(60 * subject.ttl)
        async with subject.store.watch(subject.prefix, start_revision=start) as items:
            await subject.store.put(subject.key("k"), b"1")
            written = await subject.store.put(subject.key("k"), b"2", lease=granted.lease)
            entry = await subject.entry("k")
            deleted = await subject.store.delete(subject.key("k"))
            first, second, third = await subject.next_events(items, 3)
        await subject.store.revoke(granted.lease)
        assert as_pair(subject, first) == ("k", b"1")
        assert second == PutEvent(entry)
        assert as_pair(subject, third) == ("k", None)
        assert [revision_of(event) for event in (second, third)] == [written.revision, deleted.revision]

    async def test_a_watch_tells_of_its_prefix_and_of_nothing_else(self, subject: Subject) -> None:
        start = await subject.revision() + 1
        async with subject.store.watch(subject.key("a/"), start_revision=start) as items:
            operations = [Put(subject.key(name), b"") for name in ("a", "a/1", "a0", "b")]
            await subject.store.transact([], operations)
            await subject.store.put(subject.key("a/2"), b"")
            events = await subject.next_events(items, 2)
        assert [as_pair(subject, event)[0] for event in events] == ["a/1", "a/2"]

    async def test_a_watched_prefix_may_be_a_key_itself(self, subject: Subject) -> None:
        start = await subject.revision() + 1
        async with subject.store.watch(subject.key("k"), start_revision=start) as items:
            for name in ("j", "k", "k/1", "kk", "l"):
                await subject.store.put(subject.key(name), b"")
            events = await subject.next_events(items, 3)
        assert [as_pair(subject, event)[0] for event in events] == ["k", "k/1", "kk"]

    async def test_watches_of_one_prefix_each_see_their_own_past(self, subject: Subject) -> None:
        written = [await subject.store.put(subject.key(f"{number}"), b"") for number in range(6)]
        for order in ((0, 3, 5), (5, 3, 0), (3, 0, 5)):
            async with AsyncExitStack() as opened:
                watches = {
                    number: await opened.enter_async_context(
                        subject.store.watch(subject.prefix, start_revision=written[number].revision)
                    )
                    for number in order
                }
                for number, items in watches.items():
                    events = await subject.next_events(items, 6 - number)
                    assert [as_pair(subject, event)[0] for event in events] == [str(n) for n in range(number, 6)]

    async def test_a_watch_from_the_past_tells_what_happened_since(self, subject: Subject) -> None:
        first = await subject.store.put(subject.key("k"), b"1")
        await subject.store.put(subject.key("k"), b"2")
        await subject.store.delete(subject.key("k"))
        async with subject.store.watch(subject.prefix, start_revision=first.revision) as items:
            events = await subject.next_events(items, 3)
            assert [as_pair(subject, event)[1] for event in events] == [b"1", b"2", None]
            await subject.store.put(subject.key("k"), b"3")
            (event,) = await subject.next_events(items, 1)
            assert as_pair(subject, event) == ("k", b"3")

    async def test_a_watch_after_a_snapshot_leaves_nothing_out_under_concurrent_writers(self, subject: Subject) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._write_then_end, subject)
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            snapshot = await read_all(subject.store, subject.prefix, page_size=2)
            mirror = {entry.key: entry for entry in snapshot.entries}
            assert subject.key("end") not in mirror, "the snapshot came too late to show anything"
            async with subject.store.watch(subject.prefix, start_revision=snapshot.revision + 1) as items:
                await self._follow(subject, items, mirror, snapshot.revision)
        final = await read_all(subject.store, subject.prefix)
        assert mirror == {entry.key: entry for entry in final.entries}

    async def test_events_come_in_order_once_and_all_of_a_revision_together(self, subject: Subject) -> None:
        start = await subject.revision() + 1
        groups, size = 40, 3

        async def write(store_number: int) -> None:
            store = (subject.store, subject.another)[store_number]
            for group in range(groups // 2):
                names = [f"{store_number}/{group}/{member}" for member in range(size)]
                await store.transact([], [Put(subject.key(name), b"") for name in names])

        async with (
            subject.store.watch(subject.prefix, start_revision=start) as items,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(write, 0)
            tasks.start_soon(write, 1)
            batches = await subject.next_batches(items, groups * size)
        self._check_order(batches)
        events = [event for batch in batches for event in batch.events]
        assert len({as_pair(subject, event)[0] for event in events}) == groups * size
        for batch in batches:
            revisions = [revision_of(event) for event in batch.events]
            assert all(revisions.count(revision) == size for revision in revisions)

    async def test_a_watch_resumed_after_any_item_repeats_and_misses_nothing(self, subject: Subject) -> None:
        start = await subject.revision() + 1
        names = [f"{number:02}" for number in range(12)]
        seen: list[str] = []
        async with anyio.create_task_group() as tasks:

            async def write() -> None:
                for name in names:
                    await subject.another.put(subject.key(name), b"")

            tasks.start_soon(write)
            with anyio.fail_after(subject.timeout):
                while len(seen) < len(names):
                    async with subject.store.watch(subject.prefix, start_revision=start) as items:
                        item = await anext(items)
                    if isinstance(item, Batch):
                        seen += [as_pair(subject, event)[0] for event in item.events]
                    start = max(start, item.revision + 1)
        assert seen == names

    async def test_a_quiet_watch_reports_how_far_the_store_has_come(self, subject: Subject) -> None:
        subject.needs_progress()
        start = await subject.revision() + 1
        async with subject.store.watch(subject.key("quiet/"), start_revision=start) as items:
            written = await subject.store.put(subject.key("loud"), b"")
            await subject.progress(items, written.revision)
            written = await subject.store.put(subject.key("loud"), b"")
            await subject.progress(items, written.revision)

    async def test_a_watch_from_the_past_that_finds_nothing_reports_progress(self, subject: Subject) -> None:
        subject.needs_progress()
        start = await subject.revision() + 1
        written = await subject.store.put(subject.key("loud"), b"")
        async with subject.store.watch(subject.key("quiet/"), start_revision=start) as items:
            await subject.progress(items, written.revision)

    async def test_a_watch_from_a_compacted_revision_raises_compacted(self, subject: Subject) -> None:
        old = (await subject.store.put(subject.key("k"), b"1")).revision
        await subject.store.put(subject.key("k"), b"2")
        last = (await subject.store.put(subject.key("k"), b"3")).revision
        await subject.compact(last)
        async with subject.store.watch(subject.prefix, start_revision=old) as items:
            with raising(Compacted) as errors:
                await subject.next_item(items)
        assert isinstance(errors[0], Compacted)
        assert old < errors[0].compacted <= last
        async with subject.store.watch(subject.prefix, start_revision=last + 1) as items:
            await subject.store.put(subject.key("k"), b"4")
            (event,) = await subject.next_events(items, 1)
            assert as_pair(subject, event) == ("k", b"4")

    async def test_compaction_does_not_touch_a_watch_that_keeps_up(self, subject: Subject) -> None:
        start = await subject.revision() + 1
        async with subject.store.watch(subject.prefix, start_revision=start) as items:
            for number in range(5):
                written = await subject.store.put(subject.key("k"), str(number).encode())
                (event,) = await subject.next_events(items, 1)
                assert revision_of(event) == written.revision
                await subject.compact(written.revision)

    async def test_leaving_one_watch_leaves_the_others_alone(self, subject: Subject) -> None:
        start = await subject.revision() + 1
        async with subject.store.watch(subject.prefix, start_revision=start) as stays:
            async with subject.store.watch(subject.prefix, start_revision=start) as leaves:
                await subject.store.put(subject.key("k"), b"1")
                await subject.next_events(leaves, 1)
            await subject.next_events(stays, 1)
            await subject.store.put(subject.key("k"), b"2")
            (event,) = await subject.next_events(stays, 1)
            assert as_pair(subject, event) == ("k", b"2")

    async def test_a_reader_that_is_cancelled_leaves_the_others_alone(self, subject: Subject) -> None:
        start = await subject.revision() + 1

        async def read_until_cancelled() -> None:
            async with subject.store.watch(subject.prefix, start_revision=start) as items:
                while True:
                    await anext(items)

        async with subject.store.watch(subject.prefix, start_revision=start) as items:
            for number in range(5):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(read_until_cancelled)
                    await subject.store.put(subject.key("k"), str(number).encode())
                    tasks.cancel_scope.cancel()
            events = await subject.next_events(items, 5)
        assert [as_pair(subject, event)[1] for event in events] == [b"0", b"1", b"2", b"3", b"4"]

    async def test_fifty_watchers_each_see_everything(self, subject: Subject) -> None:
        start = await subject.revision() + 1
        seen: dict[int, list[Event]] = {}

        async def read(number: int) -> None:
            prefix = subject.prefix if number % 2 else subject.key("k/")
            async with subject.store.watch(prefix, start_revision=start) as items:
                seen[number] = await subject.next_events(items, 20)

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(read, number)
            for number in range(20):
                await subject.store.put(subject.key(f"k/{number}"), b"")
        assert len(seen) == 50
        assert all(events == seen[0] for events in seen.values())

    async def test_a_long_past_is_replayed_whole(self, subject: Subject) -> None:
        start = await subject.revision() + 1
        limit = subject.store.limits.operations
        for chunk in range(12):
            puts = [Put(subject.key(f"{chunk}/{number}"), b"v" * 100) for number in range(limit)]
            await subject.store.transact([], puts)
        await subject.store.transact([], [Delete(subject.key(f"0/{number}")) for number in range(limit)])
        async with subject.store.watch(subject.prefix, start_revision=start) as items:
            batches = await subject.next_batches(items, 13 * limit)
        self._check_order(batches)
        for batch in batches:
            revisions = [revision_of(event) for event in batch.events]
            assert all(revisions.count(revision) == limit for revision in set(revisions))

    async def test_large_values_pass_through_a_watch_at_any_total_size(self, subject: Subject) -> None:
        start = await subject.revision() + 1
        value = b"v" * (subject.store.limits.value_bytes * 9 // 10)
        for number in range(6):
            await subject.store.put(subject.key(f"{number}"), value)
        async with subject.store.watch(subject.prefix, start_revision=start) as items:
            events = await subject.next_events(items, 6)
        assert [as_pair(subject, event) for event in events] == [(str(number), value) for number in range(6)]

    async def test_closing_a_store_ends_its_watches_and_no_others(self, subject: Subject) -> None:
        start = (await subject.store.put(subject.key("first"), b"")).revision
        async with (
            subject.another.watch(subject.prefix, start_revision=start) as ends,
            subject.store.watch(subject.prefix, start_revision=start) as stays,
        ):
            async with anyio.create_task_group() as tasks:
                await tasks.start(self._until_ended, subject, ends)
                await subject.another.close()
            await subject.store.put(subject.key("k"), b"")
            await subject.next_events(stays, 2)
        with raising(StoreError):
            await subject.another.get(subject.key("k"))

    # --- checking --------------------------------------------------------------------------------------------------

    @staticmethod
    async def _until_ended(subject: Subject, items: AsyncIterator[WatchItem], *, task_status: TaskStatus[None]) -> None:
        await subject.next_events(items, 1)
        task_status.started()
        with raising(WatchEnded), anyio.fail_after(subject.timeout):
            while True:
                await anext(items)

    @staticmethod
    def _check_order(batches: list[Batch]) -> None:
        revisions = [revision_of(event) for batch in batches for event in batch.events]
        assert revisions == sorted(revisions)
        for batch, following in pairwise(batches):
            assert batch.revision < revision_of(following.events[0])
        for batch in batches:
            assert revision_of(batch.events[-1]) <= batch.revision

    @staticmethod
    async def _write_then_end(subject: Subject) -> None:
        async def write(number: int) -> None:
            store = subject.store if number % 2 else subject.another
            for step in range(20):
                key = subject.key(f"{(number + step) % 7}")
                if step % 5 == 4:
                    await store.delete(key)
                else:
                    await store.put(key, f"{number}.{step}".encode())

        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(write, number)
        await subject.store.put(subject.key("end"), b"")

    @staticmethod
    async def _follow(subject: Subject, items: AsyncIterator[WatchItem], mirror: dict[str, Entry], known: int) -> None:
        """Apply events to a mirror until the key `end` appears. `known`: the mirror's revision."""
        with anyio.fail_after(subject.timeout):
            while subject.key("end") not in mirror:
                item = await anext(items)
                for event in item.events if isinstance(item, Batch) else ():
                    assert revision_of(event) > known, "an event that was known already"
                    if isinstance(event, PutEvent):
                        mirror[event.entry.key] = event.entry
                    else:
                        del mirror[event.key]
                assert item.revision >= known
                known = item.revision
