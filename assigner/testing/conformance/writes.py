"""Tests of writes: one revision each, and the revisions and version that an entry has."""

from __future__ import annotations

import anyio

from assigner.store import NO_LEASE
from assigner.testing.conformance.subject import Subject


class WriteConformance:
    async def test_each_write_has_a_revision_of_its_own_that_its_entry_carries(self, subject: Subject) -> None:
        last = await subject.revision()
        for number in range(20):
            written = await subject.store.put(subject.key(f"{number % 3}"), b"")
            assert written.revision > last
            assert (await subject.entry(f"{number % 3}")).mod_revision == written.revision
            last = written.revision
        deleted = await subject.store.delete(subject.key("0"))
        assert deleted.revision > last

    async def test_concurrent_writes_have_distinct_revisions(self, subject: Subject) -> None:
        revisions: list[int] = []

        async def write(number: int) -> None:
            store = subject.store if number % 2 else subject.another
            for step in range(5):
                written = await store.put(subject.key(f"{number}/{step}"), b"")
                revisions.append(written.revision)

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(write, number)
        assert len(set(revisions)) == 50

    async def test_an_entry_knows_its_creation_its_last_write_and_its_version(self, subject: Subject) -> None:
        first = await subject.store.put(subject.key("k"), b"1")
        second = await subject.store.put(subject.key("k"), b"2")
        third = await subject.store.put(subject.key("k"), b"2")
        entry = await subject.entry("k")
        assert (entry.create_revision, entry.mod_revision, entry.version) == (
            first.revision,
            third.revision,
            3,
        )
        assert first.revision < second.revision < third.revision
        assert (entry.key, entry.value, entry.lease) == (subject.key("k"), b"2", NO_LEASE)

    async def test_a_recreated_key_starts_over(self, subject: Subject) -> None:
        await subject.store.put(subject.key("k"), b"1")
        await subject.store.put(subject.key("k"), b"2")
        deleted = await subject.store.delete(subject.key("k"))
        assert not await subject.exists("k")
        again = await subject.store.put(subject.key("k"), b"3")
        entry = await subject.entry("k")
        assert (entry.create_revision, entry.mod_revision, entry.version) == (
            again.revision,
            again.revision,
            1,
        )
        assert again.revision > deleted.revision

    async def test_a_delete_returns_whether_there_was_something(self, subject: Subject) -> None:
        await subject.store.put(subject.key("k"), b"1")
        assert (await subject.store.delete(subject.key("k"))).count == 1
        assert (await subject.store.delete(subject.key("k"))).count == 0

    async def test_a_delete_takes_one_key_and_not_those_below_it(self, subject: Subject) -> None:
        for name in ("a", "a/1", "ab"):
            await subject.store.put(subject.key(name), b"")
        await subject.store.delete(subject.key("a"))
        assert await subject.names() == ["a/1", "ab"]

    async def test_values_are_any_bytes_also_none(self, subject: Subject) -> None:
        for name, value in (("empty", b""), ("all", bytes(range(256))), ("zero", b"\0" * 10)):
            await subject.store.put(subject.key(name), value)
            assert (await subject.entry(name)).value == value

    async def test_large_values_are_kept_whole(self, subject: Subject) -> None:
        value = bytes(range(256)) * (subject.store.limits.value_bytes // 256)
        await subject.store.put(subject.key("large"), value)
        assert (await subject.entry("large")).value == value

    async def test_large_values_are_listed_at_any_total_size(self, subject: Subject) -> None:
        value = b"v" * (subject.store.limits.value_bytes * 9 // 10)
        for number in range(6):
            await subject.store.put(subject.key(f"{number}"), value)
        page = await subject.store.list(subject.prefix)
        assert [len(entry.value) for entry in page.entries] == [len(value)] * 6
