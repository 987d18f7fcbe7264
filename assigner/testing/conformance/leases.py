"""Tests of leases: a lease expires by itself, not too early, and its keys are deleted with it."""

from __future__ import annotations

import asyncio
import time

import anyio

from assigner.errors import LeaseNotFound
from assigner.store import DeleteEvent, LeaseGone, Put, Remaining, Renewed
from assigner.testing.conformance.subject import Subject, as_pair, raising, revision_of
from assigner.testing.waiting import eventually


class _Moment:
    def __init__(self) -> None:
        self._loop, self._real = asyncio.get_running_loop().time(), time.monotonic()

    def ago(self) -> float:
        """Seconds since then, by the loop's clock or by the real one, whichever advanced further: virtual time stands
        still while callbacks run, a server's time does not."""
        return max(asyncio.get_running_loop().time() - self._loop, time.monotonic() - self._real)


class LeaseConformance:
    async def test_a_lease_lasts_at_least_as_long_as_asked(self, subject: Subject) -> None:
        granted = await subject.store.grant(subject.ttl)
        assert granted.ttl >= subject.ttl
        remaining = await subject.store.remaining(granted.lease)
        assert isinstance(remaining, Remaining)
        assert 0 <= remaining.ttl <= granted.ttl

    async def test_leases_are_distinct(self, subject: Subject) -> None:
        leases = {(await subject.store.grant(subject.ttl)).lease for _ in range(10)}
        leases |= {(await subject.another.grant(subject.ttl)).lease for _ in range(10)}
        assert len(leases) == 20

    async def test_an_entry_names_its_lease(self, subject: Subject) -> None:
        granted = await subject.store.grant(subject.ttl)
        await subject.store.put(subject.key("k"), b"", lease=granted.lease)
        assert (await subject.entry("k")).lease == granted.lease

    async def test_a_lease_that_nobody_renews_ends_with_its_keys(self, subject: Subject) -> None:
        asked = _Moment()
        granted = await subject.store.grant(subject.ttl)
        await subject.store.put(subject.key("a"), b"", lease=granted.lease)
        await subject.store.put(subject.key("stays"), b"")
        await self._until_gone(subject, "a")
        assert asked.ago() >= granted.ttl - 0.001
        assert await subject.names() == ["stays"]
        assert isinstance(await subject.store.keep_alive(granted.lease), LeaseGone)
        assert isinstance(await subject.store.remaining(granted.lease), LeaseGone)

    async def test_a_lease_that_is_renewed_goes_on(self, subject: Subject) -> None:
        granted = await subject.store.grant(subject.ttl)
        await subject.store.put(subject.key("k"), b"", lease=granted.lease)
        for _ in range(8):
            await anyio.sleep(granted.ttl / 3)
            renewed = await subject.store.keep_alive(granted.lease)
            assert isinstance(renewed, Renewed)
            assert renewed.ttl >= subject.ttl
        assert await subject.exists("k")
        asked = _Moment()
        assert isinstance(await subject.store.keep_alive(granted.lease), Renewed)
        await self._until_gone(subject, "k")
        assert asked.ago() >= granted.ttl - 0.001

    async def test_asking_for_the_rest_of_a_lease_does_not_renew_it(self, subject: Subject) -> None:
        granted = await subject.store.grant(subject.ttl)
        await subject.store.put(subject.key("k"), b"", lease=granted.lease)

        async def gone() -> bool:
            return isinstance(await subject.store.remaining(granted.lease), LeaseGone)

        await eventually(gone, within=2 * granted.ttl + subject.timeout, every=granted.ttl / 10)
        assert not await subject.exists("k")

    async def test_any_client_may_renew_and_revoke(self, subject: Subject) -> None:
        granted = await subject.store.grant(subject.ttl)
        await subject.store.put(subject.key("k"), b"", lease=granted.lease)
        assert isinstance(await subject.another.keep_alive(granted.lease), Renewed)
        await subject.another.revoke(granted.lease)
        assert not await subject.exists("k")
        assert isinstance(await subject.store.keep_alive(granted.lease), LeaseGone)

    async def test_the_end_of_a_lease_is_seen_as_one_batch_of_deletes(self, subject: Subject) -> None:
        granted = await subject.store.grant(subject.ttl)
        names = ["a", "b", "c"]
        puts = [Put(subject.key(name), b"", granted.lease) for name in names]
        written = await subject.store.transact([], puts)
        async with subject.store.watch(subject.prefix, start_revision=written.revision + 1) as items:
            events = await subject.next_events(items, 3, extra=2 * granted.ttl)
        assert all(isinstance(event, DeleteEvent) for event in events)
        assert sorted(as_pair(subject, event)[0] for event in events) == names
        assert len({revision_of(event) for event in events}) == 1
        assert revision_of(events[0]) > written.revision

    async def test_a_revoked_lease_takes_its_keys_at_one_revision_at_once(self, subject: Subject) -> None:
        granted = await subject.store.grant(60 * subject.ttl)
        puts = [Put(subject.key(name), b"", granted.lease) for name in ("a", "b")]
        written = await subject.store.transact([], puts)
        await subject.store.revoke(granted.lease)
        assert await subject.names() == []
        async with subject.store.watch(subject.prefix, start_revision=written.revision + 1) as items:
            events = await subject.next_events(items, 2)
        assert len({revision_of(event) for event in events}) == 1

    async def test_revoking_a_lease_that_is_gone_is_fine(self, subject: Subject) -> None:
        granted = await subject.store.grant(subject.ttl)
        await subject.store.revoke(granted.lease)
        await subject.store.revoke(granted.lease)

    async def test_a_lease_that_never_was_is_gone(self, subject: Subject) -> None:
        never = 1_234_567_890_123
        assert isinstance(await subject.store.keep_alive(never), LeaseGone)
        assert isinstance(await subject.store.remaining(never), LeaseGone)
        await subject.store.revoke(never)
        with raising(LeaseNotFound):
            await subject.store.put(subject.key("k"), b"", lease=never)

    async def test_a_put_on_an_ended_lease_is_refused(self, subject: Subject) -> None:
        granted = await subject.store.grant(subject.ttl)
        await subject.store.revoke(granted.lease)
        with raising(LeaseNotFound):
            await subject.store.put(subject.key("k"), b"", lease=granted.lease)
        assert not await subject.exists("k")

    async def test_a_put_without_the_lease_keeps_the_key_past_its_end(self, subject: Subject) -> None:
        granted = await subject.store.grant(60 * subject.ttl)
        await subject.store.put(subject.key("k"), b"1", lease=granted.lease)
        await subject.store.put(subject.key("k"), b"2")
        await subject.store.revoke(granted.lease)
        assert (await subject.entry("k")).value == b"2"

    async def test_a_put_with_another_lease_moves_the_key_to_it(self, subject: Subject) -> None:
        first = await subject.store.grant(60 * subject.ttl)
        second = await subject.store.grant(60 * subject.ttl)
        await subject.store.put(subject.key("k"), b"1", lease=first.lease)
        await subject.store.put(subject.key("k"), b"2", lease=second.lease)
        await subject.store.revoke(first.lease)
        assert (await subject.entry("k")).lease == second.lease
        await subject.store.revoke(second.lease)
        assert not await subject.exists("k")

    async def test_a_deleted_and_recreated_key_has_left_its_lease(self, subject: Subject) -> None:
        granted = await subject.store.grant(60 * subject.ttl)
        await subject.store.put(subject.key("k"), b"1", lease=granted.lease)
        await subject.store.delete(subject.key("k"))
        await subject.store.put(subject.key("k"), b"2")
        await subject.store.revoke(granted.lease)
        assert (await subject.entry("k")).value == b"2"

    async def test_leases_end_each_for_itself(self, subject: Subject) -> None:
        first = await subject.store.grant(subject.ttl)
        second = await subject.store.grant(60 * subject.ttl)
        await subject.store.put(subject.key("first"), b"", lease=first.lease)
        await subject.store.put(subject.key("second"), b"", lease=second.lease)
        await self._until_gone(subject, "first")
        assert await subject.exists("second")
        await subject.store.revoke(second.lease)

    @staticmethod
    async def _until_gone(subject: Subject, name: str) -> None:
        async def gone() -> bool:
            return not await subject.exists(name)

        await eventually(gone, within=2 * subject.ttl + subject.timeout, every=subject.ttl / 20)
