"""The memory store against a model of it that is too simple to be wrong: every revision kept as a whole dict.

Random operations are done to both, and answers, entries, past revisions and everything a watch tells are compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from assigner.backends.memory import Bounds, MemoryState, MemoryStore
from assigner.clock import LoopClock
from assigner.errors import Compacted, LeaseNotFound
from assigner.store import (
    NO_LEASE,
    Absent,
    Batch,
    Committed,
    Compare,
    CreateRevisionIs,
    Delete,
    Entry,
    Exists,
    Found,
    LeaseGone,
    ModRevisionIs,
    Operation,
    Put,
    PutEvent,
    ValueIs,
    VersionIs,
    read_all,
)
from assigner.testing.virtual_time import VirtualTimeLoop

T = TypeVar("T")
KEYS = st.sampled_from(["a", "a/", "a/1", "a/2", "a0", "b/1", "ä"])
PREFIXES = st.sampled_from(["", "a", "a/", "b/", "nothing"])
VALUES = st.sampled_from([b"", b"1", b"2"])
NUMBERS = st.integers(0, 40)
COMPARES = st.one_of(
    st.builds(Exists, KEYS),
    st.builds(Absent, KEYS),
    st.builds(VersionIs, KEYS, st.integers(0, 3)),
    st.builds(ModRevisionIs, KEYS, NUMBERS),
    st.builds(CreateRevisionIs, KEYS, NUMBERS),
    st.builds(ValueIs, KEYS, VALUES),
)


class Model:
    """What the store must be, revision by revision."""

    def __init__(self) -> None:
        self.past: list[dict[str, Entry]] = [{}, {}]
        self.leases: dict[int, tuple[float, float]] = {}
        """Lease to (TTL, deadline)."""

    @property
    def now(self) -> dict[str, Entry]:
        return self.past[-1]

    @property
    def revision(self) -> int:
        return len(self.past) - 1

    def write(self, operations: list[Operation]) -> None:
        after, revision = dict(self.now), self.revision + 1
        for operation in operations:
            before = after.pop(operation.key, None)
            if isinstance(operation, Put):
                created, version = (before.create_revision, before.version + 1) if before else (revision, 1)
                after[operation.key] = Entry(
                    operation.key, operation.value, created, revision, version, operation.lease
                )
        if after != self.now:
            self.past.append(after)

    def holds(self, compare: Compare) -> bool:
        entry = self.now.get(compare.key, Entry(compare.key, b"", 0, 0, 0))
        match compare:
            case Exists():
                return entry.version > 0
            case Absent():
                return entry.version == 0
            case VersionIs(version=version):
                return entry.version == version
            case ModRevisionIs(revision=revision):
                return entry.mod_revision == revision
            case CreateRevisionIs(revision=revision):
                return entry.create_revision == revision
            case ValueIs(value=value):
                return entry.version > 0 and entry.value == value

    def end_lease(self, lease: int) -> None:
        if self.leases.pop(lease, None) is not None:
            self.write([Delete(key) for key, entry in sorted(self.now.items()) if entry.lease == lease])

    def pass_time(self, now: float) -> None:
        for lease, (_, deadline) in sorted(self.leases.items(), key=lambda item: item[1][1]):
            if deadline <= now:
                self.end_lease(lease)


class MemoryStoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.model = Model()
        self.granted: list[int] = []

    @initialize(revisions=st.sampled_from([5, 10_000]))
    def start(self, revisions: int) -> None:
        state = MemoryState(LoopClock(), bounds=Bounds(history_revisions=revisions))
        self.store = MemoryStore(state)

    def teardown(self) -> None:
        self.runner.close()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    @property
    def time(self) -> float:
        return self.runner.get_loop().time()

    def lease(self, choice: int) -> int:
        """One of the leases ever granted, or none."""
        return ([NO_LEASE, *self.granted])[choice % (len(self.granted) + 1)]

    # --- operations ------------------------------------------------------------------------------------------------

    @rule(key=KEYS, value=VALUES, choice=st.integers(0, 5))
    def put(self, key: str, value: bytes, choice: int) -> None:
        lease = self.lease(choice)
        try:
            written = self.run(self.store.put(key, value, lease=lease))
        except LeaseNotFound:
            assert lease not in self.model.leases
        else:
            assert lease == NO_LEASE or lease in self.model.leases
            self.model.write([Put(key, value, lease)])
            assert written.revision == self.model.revision

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        deleted = self.run(self.store.delete(key))
        assert deleted.count == (key in self.model.now)
        self.model.write([Delete(key)])
        assert deleted.revision == self.model.revision

    @rule(
        compares=st.lists(COMPARES, max_size=2),
        operations=st.lists(st.one_of(st.builds(Delete, KEYS), st.builds(Put, KEYS, VALUES)), max_size=4),
        otherwise=st.lists(KEYS, max_size=2),
    )
    def transact(self, compares: list[Compare], operations: list[Operation], otherwise: list[str]) -> None:
        operations = list({operation.key: operation for operation in operations}.values())
        result = self.run(self.store.transact(compares, operations, otherwise=otherwise))
        assert isinstance(result, Committed) == all(map(self.model.holds, compares))
        if isinstance(result, Committed):
            self.model.write(operations)
        else:
            found = [read.entry if isinstance(read, Found) else None for read in result.reads]
            assert found == [self.model.now.get(key) for key in otherwise]
        assert result.revision == self.model.revision

    @precondition(lambda self: len(self.granted) < 6)
    @rule(ttl=st.sampled_from([1.0, 5.0, 30.0]))
    def grant(self, ttl: float) -> None:
        granted = self.run(self.store.grant(ttl))
        self.granted.append(granted.lease)
        self.model.leases[granted.lease] = (ttl, self.time + ttl)

    @rule(choice=st.integers(0, 5))
    def keep_alive(self, choice: int) -> None:
        lease = self.lease(choice)
        gone = isinstance(self.run(self.store.keep_alive(lease)), LeaseGone)
        assert gone == (lease not in self.model.leases)
        if not gone:
            ttl, _ = self.model.leases[lease]
            self.model.leases[lease] = (ttl, self.time + ttl)

    @rule(choice=st.integers(0, 5))
    def revoke(self, choice: int) -> None:
        self.run(self.store.revoke(self.lease(choice)))
        self.model.end_lease(self.lease(choice))

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))
        self.model.pass_time(self.time)

    @rule(back=st.integers(0, 5))
    def compact(self, back: int) -> None:
        self.run(self.store.compact(max(self.model.revision - back, 0)))

    # --- comparisons -----------------------------------------------------------------------------------------------

    @rule(prefix=PREFIXES, back=st.integers(0, 12), size=st.integers(1, 3))
    def list_the_past(self, prefix: str, back: int, size: int) -> None:
        revision = max(self.model.revision - back, 1)
        if revision < self.store.state.history.compacted:
            with pytest.raises(Compacted):
                self.run(self.store.list(prefix, revision=revision))
            return
        entries: list[Entry] = []
        more, after = True, ""
        while more:
            page = self.run(self.store.list(prefix, after=after, limit=size, revision=revision))
            entries += page.entries
            more, after = page.more, entries[-1].key if entries else ""
        was = self.model.past[revision]
        assert entries == [was[key] for key in sorted(was) if key.startswith(prefix)]

    @rule(prefix=PREFIXES, back=st.integers(0, 12))
    def watch_the_past(self, prefix: str, back: int) -> None:
        start = max(self.model.revision - back, 1)
        if start <= self.store.state.history.compacted:
            with pytest.raises(Compacted):
                self.run(self.read_watch(prefix, start))
        else:
            assert self.run(self.read_watch(prefix, start)) == self.changes(prefix, start)

    async def read_watch(self, prefix: str, start: int) -> list[tuple[int, str, Entry | None]]:
        told: list[tuple[int, str, Entry | None]] = []
        async with self.store.watch(prefix, start_revision=start) as items:
            while isinstance(item := await anext(items), Batch):
                for event in item.events:
                    if isinstance(event, PutEvent):
                        told.append((event.entry.mod_revision, event.entry.key, event.entry))
                    else:
                        told.append((event.mod_revision, event.key, None))
        # Within a revision the order is the transaction's, which the model does not keep.
        return sorted(told, key=lambda change: change[:2])

    def changes(self, prefix: str, start: int) -> list[tuple[int, str, Entry | None]]:
        past = self.model.past
        return [
            (revision, key, past[revision].get(key))
            for revision in range(start, self.model.revision + 1)
            for key in sorted(past[revision - 1].keys() | past[revision].keys())
            if key.startswith(prefix) and past[revision - 1].get(key) != past[revision].get(key)
        ]

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "store"):
            return
        page = self.run(read_all(self.store, "", page_size=2))
        assert page.revision == self.model.revision
        assert list(page.entries) == [self.model.now[key] for key in sorted(self.model.now)]


MemoryStoreMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMemoryStoreModel = MemoryStoreMachine.TestCase
