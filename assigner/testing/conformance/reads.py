"""Tests of reads: linearizable, in key order, paged at a revision."""

from __future__ import annotations

from itertools import pairwise

from assigner.errors import Compacted
from assigner.store import Found, Missing, read_all
from assigner.testing.conformance.subject import Subject, raising

ODD_NAMES = ("%2F", "%", "a b", "a%20b", "ä", "zß水🍌", "~", "a/b//c", "..", "A", "\\", '"', "+", "é")


class ReadConformance:
    async def test_a_missing_key_is_answered_with_the_revision(self, subject: Subject) -> None:
        written = await subject.store.put(subject.key("other"), b"1")
        missing = await subject.store.get(subject.key("nothing"))
        assert isinstance(missing, Missing)
        assert missing.revision >= written.revision

    async def test_a_read_sees_what_any_client_was_answered_before_it_began(self, subject: Subject) -> None:
        for number in range(30):
            value = str(number).encode()
            writer, reader = (subject.store, subject.another) if number % 2 else (subject.another, subject.store)
            written = await writer.put(subject.key("k"), value)
            found = await reader.get(subject.key("k"))
            assert isinstance(found, Found)
            assert (found.entry.value, found.entry.mod_revision) == (value, written.revision)
            page = await reader.list(subject.key("k"))
            assert page.revision >= written.revision
            assert page.entries == (found.entry,)

    async def test_a_list_is_in_key_order(self, subject: Subject) -> None:
        names = ["10", "2", "b", "B", "a", "aa", "a/", "ä"]
        for name in names:
            await subject.store.put(subject.key(name), b"")
        assert await subject.names() == sorted(names)

    async def test_a_prefix_holds_its_keys_and_no_neighbours(self, subject: Subject) -> None:
        for name in ("a", "a.", "a/", "a/1", "a/2", "a0", "a/1/x", "b/1"):
            await subject.store.put(subject.key(name), b"")
        assert await subject.names("a/") == ["a/", "a/1", "a/1/x", "a/2"]
        assert await subject.names("a/1") == ["a/1", "a/1/x"]

    async def test_keys_of_all_kinds_of_text_are_read_as_they_were_written(self, subject: Subject) -> None:
        for name in ODD_NAMES:
            await subject.store.put(subject.key(f"odd/{name}"), name.encode())
        page = await read_all(subject.store, subject.key("odd/"), page_size=3)
        found = {entry.key.removeprefix(subject.key("odd/")): entry.value.decode() for entry in page.entries}
        assert found == {name: name for name in ODD_NAMES}
        for name in ODD_NAMES:
            assert (await subject.entry(f"odd/{name}")).value.decode() == name

    async def test_an_empty_prefix_is_an_empty_page_with_the_revision(self, subject: Subject) -> None:
        written = await subject.store.put(subject.key("x"), b"")
        page = await subject.store.list(subject.key("y/"))
        assert (page.entries, page.more) == ((), False)
        assert page.revision >= written.revision

    async def test_pages_follow_one_another_without_gap_or_repeat(self, subject: Subject) -> None:
        names = [f"{number:03}" for number in range(25)]
        for name in names:
            await subject.store.put(subject.key(name), b"")
        seen: list[str] = []
        more, after = True, ""
        while more:
            page = await subject.store.list(subject.prefix, after=after, limit=10)
            seen += [entry.key.removeprefix(subject.prefix) for entry in page.entries]
            assert len(page.entries) <= 10
            more, after = page.more, page.entries[-1].key
        assert seen == names

    async def test_a_last_page_that_is_just_full_has_no_more(self, subject: Subject) -> None:
        for name in ("1", "2", "3", "4"):
            await subject.store.put(subject.key(name), b"")
        first = await subject.store.list(subject.prefix, limit=2)
        assert first.more
        second = await subject.store.list(subject.prefix, after=first.entries[-1].key, limit=2)
        assert not second.more

    async def test_a_page_starts_past_a_key_that_is_gone(self, subject: Subject) -> None:
        for name in ("1", "2", "3"):
            await subject.store.put(subject.key(name), b"")
        await subject.store.delete(subject.key("2"))
        page = await subject.store.list(subject.prefix, after=subject.key("2"))
        assert [entry.key for entry in page.entries] == [subject.key("3")]

    async def test_pages_at_a_revision_stay_the_same_while_others_write(self, subject: Subject) -> None:
        for number in range(10):
            await subject.store.put(subject.key(f"{number}"), b"old")
        first = await subject.store.list(subject.prefix, limit=3)
        await subject.another.delete(subject.key("4"))
        await subject.another.put(subject.key("5"), b"new")
        await subject.another.put(subject.key("55"), b"new")
        await subject.another.put(subject.key("9"), b"new")
        await subject.another.delete(subject.key("9"))
        rest = await subject.store.list(subject.prefix, after=first.entries[-1].key, limit=100, revision=first.revision)
        assert rest.revision == first.revision
        entries = first.entries + rest.entries
        assert [entry.key.removeprefix(subject.prefix) for entry in entries] == [str(number) for number in range(10)]
        assert {entry.value for entry in entries} == {b"old"}
        assert await subject.names() == ["0", "1", "2", "3", "5", "55", "6", "7", "8"]

    async def test_each_past_revision_shows_what_was_then(self, subject: Subject) -> None:
        key = subject.key("k")
        one = (await subject.store.put(key, b"1")).revision
        two = (await subject.store.put(key, b"2")).revision
        gone = (await subject.store.delete(key)).revision
        three = (await subject.store.put(key, b"3")).revision
        shown = {}
        for revision in (one - 1, one, two, gone, three):
            page = await subject.store.list(key, revision=revision)
            shown[revision] = [(entry.value, entry.version) for entry in page.entries]
        assert shown == {one - 1: [], one: [(b"1", 1)], two: [(b"2", 2)], gone: [], three: [(b"3", 1)]}

    async def test_a_whole_prefix_is_read_at_one_revision(self, subject: Subject) -> None:
        for number in range(23):
            await subject.store.put(subject.key(f"{number:02}"), b"")
        page = await read_all(subject.store, subject.prefix, page_size=5)
        assert not page.more
        assert len(page.entries) == 23
        assert all(a.key < b.key for a, b in pairwise(page.entries))

    async def test_a_list_at_a_compacted_revision_is_refused(self, subject: Subject) -> None:
        old = (await subject.store.put(subject.key("k"), b"1")).revision
        await subject.store.put(subject.key("k"), b"2")
        last = (await subject.store.put(subject.key("k"), b"3")).revision
        await subject.compact(last)
        with raising(Compacted) as errors:
            await subject.store.list(subject.prefix, revision=old)
        assert isinstance(errors[0], Compacted)
        page = await subject.store.list(subject.prefix)
        assert [entry.value for entry in page.entries] == [b"3"]
