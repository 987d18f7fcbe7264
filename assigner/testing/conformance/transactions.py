"""Tests of transactions: all or nothing, decided by the compares, within the limits."""

from __future__ import annotations

import anyio

from assigner.errors import InvalidInput, LeaseNotFound, TransactionTooLarge
from assigner.store import (
    Absent,
    Committed,
    Compare,
    Conflict,
    CreateRevisionIs,
    Delete,
    Exists,
    Found,
    Missing,
    ModRevisionIs,
    Operation,
    Put,
    ValueIs,
    VersionIs,
)
from assigner.testing.conformance.subject import Subject, raising


class TransactionConformance:
    async def test_each_compare_holds_when_it_is_true_and_only_then(self, subject: Subject) -> None:
        key, nothing = subject.key("k"), subject.key("nothing")
        created = (await subject.store.put(key, b"1")).revision
        modified = (await subject.store.put(key, b"2")).revision
        true: list[Compare] = [
            Exists(key),
            Absent(nothing),
            VersionIs(key, 2),
            ModRevisionIs(key, modified),
            CreateRevisionIs(key, created),
            ValueIs(key, b"2"),
        ]
        false: list[Compare] = [
            Exists(nothing),
            Absent(key),
            VersionIs(key, 1),
            VersionIs(key, 3),
            ModRevisionIs(key, created),
            ModRevisionIs(key, modified + 1),
            CreateRevisionIs(key, modified),
            ValueIs(key, b"1"),
            ValueIs(key, b""),
            ValueIs(nothing, b""),
            ModRevisionIs(nothing, modified),
        ]
        for compare in true:
            assert isinstance(await subject.store.transact([compare], []), Committed), compare
        for compare in false:
            assert isinstance(await subject.store.transact([compare], []), Conflict), compare

    async def test_a_missing_key_compares_as_revision_and_version_0(self, subject: Subject) -> None:
        key = subject.key("nothing")
        compares: list[Compare] = [VersionIs(key, 0), ModRevisionIs(key, 0), CreateRevisionIs(key, 0)]
        assert isinstance(await subject.store.transact(compares, []), Committed)

    async def test_a_recreated_key_is_distinguished_from_the_one_before(self, subject: Subject) -> None:
        key = subject.key("k")
        first = (await subject.store.put(key, b"1")).revision
        await subject.store.delete(key)
        await subject.store.put(key, b"1")
        for compare in (ModRevisionIs(key, first), CreateRevisionIs(key, first)):
            assert isinstance(await subject.store.transact([compare], [Delete(key)]), Conflict)
        assert await subject.exists("k")

    async def test_all_operations_share_one_revision(self, subject: Subject) -> None:
        await subject.store.put(subject.key("old"), b"")
        operations: list[Operation] = [
            Put(subject.key("a"), b"1"),
            Delete(subject.key("old")),
            Put(subject.key("b"), b"2"),
        ]
        result = await subject.store.transact([], operations)
        assert isinstance(result, Committed)
        for name in ("a", "b"):
            entry = await subject.entry(name)
            assert (entry.mod_revision, entry.create_revision, entry.version) == (
                result.revision,
                result.revision,
                1,
            )
        assert await subject.names() == ["a", "b"]

    async def test_nothing_is_written_when_one_of_many_compares_fails(self, subject: Subject) -> None:
        await subject.store.put(subject.key("k"), b"1")
        before = await subject.entry("k")
        compares: list[Compare] = [Exists(subject.key("k")), ValueIs(subject.key("k"), b"1"), Absent(subject.key("k"))]
        result = await subject.store.transact(compares, [Put(subject.key("k"), b"2"), Put(subject.key("a"), b"")])
        assert isinstance(result, Conflict)
        assert await subject.entry("k") == before
        assert await subject.names() == ["k"]

    async def test_the_loser_reads_what_it_lost_to(self, subject: Subject) -> None:
        written = await subject.store.put(subject.key("k"), b"winner")
        otherwise = [subject.key("nothing"), subject.key("k")]
        lost = await subject.store.transact([Absent(subject.key("k"))], [], otherwise=otherwise)
        assert isinstance(lost, Conflict)
        missing, found = lost.reads
        assert isinstance(missing, Missing)
        assert isinstance(found, Found)
        assert (found.entry.value, found.entry.mod_revision) == (b"winner", written.revision)
        assert found.revision == missing.revision == lost.revision >= written.revision

    async def test_the_winner_reads_nothing(self, subject: Subject) -> None:
        operations = [Put(subject.key("k"), b"")]
        result = await subject.store.transact([], operations, otherwise=[subject.key("k")])
        assert result == Committed(result.revision)

    async def test_of_many_contenders_one_wins(self, subject: Subject) -> None:
        won: list[int] = []

        async def contend(number: int) -> None:
            store = subject.store if number % 2 else subject.another
            put = Put(subject.key("k"), str(number).encode())
            if isinstance(await store.transact([Absent(put.key)], [put]), Committed):
                won.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(contend, number)
        assert len(won) == 1
        assert (await subject.entry("k")).value == str(won[0]).encode()

    async def test_counting_by_compare_and_swap_loses_no_step(self, subject: Subject) -> None:
        key = subject.key("counter")
        await subject.store.put(key, b"0")

        async def count() -> None:
            steps = 0
            while steps < 5:
                entry = await subject.entry("counter")
                put = Put(key, str(int(entry.value) + 1).encode())
                result = await subject.store.transact([ModRevisionIs(key, entry.mod_revision)], [put])
                steps += isinstance(result, Committed)

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(count)
        entry = await subject.entry("counter")
        assert (entry.value, entry.version) == (b"40", 41)

    async def test_a_transaction_may_be_as_large_as_the_limit_and_no_larger(self, subject: Subject) -> None:
        limit = subject.store.limits.operations
        puts: list[Operation] = [Put(subject.key(f"{number:05}"), b"") for number in range(limit + 1)]
        with raising(TransactionTooLarge):
            await subject.store.transact([], puts)
        assert await subject.names() == []
        compares = [Absent(put.key) for put in puts]
        with raising(TransactionTooLarge):
            await subject.store.transact(compares, [])
        result = await subject.store.transact(compares[:limit], puts[:limit])
        assert isinstance(result, Committed)
        assert len(await subject.names()) == limit

    async def test_a_transaction_may_hold_as_many_bytes_as_the_limit_and_no_more(self, subject: Subject) -> None:
        limit = subject.store.limits.value_bytes
        halves: list[Operation] = [Put(subject.key(name), b"v" * (limit // 2)) for name in "ab"]
        assert isinstance(await subject.store.transact([], halves), Committed)
        with raising(TransactionTooLarge):
            await subject.store.transact([], [*halves, Put(subject.key("c"), b"v" * (limit // 2))])
        with raising(TransactionTooLarge):
            await subject.store.put(subject.key("c"), b"v" * (limit + 1))
        assert await subject.names() == ["a", "b"]

    async def test_a_key_is_written_once_per_transaction(self, subject: Subject) -> None:
        key = subject.key("k")
        await subject.store.put(key, b"0")
        twice: list[list[Operation]] = [
            [Put(key, b"1"), Put(key, b"2")],
            [Put(key, b"1"), Delete(key)],
            [Delete(key), Delete(key)],
        ]
        for operations in twice:
            with raising(InvalidInput):
                await subject.store.transact([], operations)
        assert (await subject.entry("k")).value == b"0"

    async def test_a_put_on_an_ended_lease_leaves_the_whole_transaction_undone(self, subject: Subject) -> None:
        granted = await subject.store.grant(subject.ttl)
        await subject.store.revoke(granted.lease)
        with raising(LeaseNotFound):
            await subject.store.transact([], [Put(subject.key("a"), b""), Put(subject.key("b"), b"", granted.lease)])
        assert await subject.names() == []

    async def test_an_ended_lease_does_not_matter_to_a_transaction_that_conflicts(self, subject: Subject) -> None:
        granted = await subject.store.grant(subject.ttl)
        await subject.store.revoke(granted.lease)
        result = await subject.store.transact(
            [Exists(subject.key("nothing"))], [Put(subject.key("b"), b"", granted.lease)]
        )
        assert isinstance(result, Conflict)
