"""Several instances on one store, each with a connection of its own that can be watched and broken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Self

import anyio
import pytest

from assigner.backend import Presence, StoreSettings, load
from assigner.backends.election.elector import LeaseElector, open_elector
from assigner.backends.memory import MemoryState, MemoryStore
from assigner.clock import Clock, LoopClock
from assigner.election import Term
from assigner.errors import FailedPrecondition, Superseded
from assigner.model.keys import Keys
from assigner.store import Committed, Found, Missing, Put, Store
from assigner.testing.counting import CountingStore
from assigner.testing.faults import FaultyStore
from assigner.testing.waiting import eventually
from tests.support.cluster import ALLOWANCE, ETCD_TTL

ON_BOTH_STORES = [pytest.param("memory"), pytest.param("etcd", marks=pytest.mark.etcd)]


class Voter:
    """One instance's view: its elector, and the layers of its own connection to the store."""

    def __init__(self, name: str, store: FaultyStore, counted: CountingStore, ttl: float, allowance: float) -> None:
        self.allowance = allowance
        self.store = store
        self.counted = counted
        self.presence = Presence(name=name, address=f"{name}:50051", ttl=ttl)
        self._elector: LeaseElector | None = None

    @property
    def elector(self) -> LeaseElector:
        assert self._elector is not None, "open the elector first"
        return self._elector

    async def open(self, keys: Keys, clock: Clock) -> Self:
        self._elector = await open_elector(self.store, keys, self.presence, clock)
        return self


class ElectionCluster:
    """Closes what it opened, in the reverse order."""

    def __init__(self, open_store: Callable[[], Store] | str, keys: Keys, ttl: float) -> None:
        self.allowance = ALLOWANCE if isinstance(open_store, str) else 0.0
        """Seconds to add to a bound. On etcd time is real, and the machine may be busy with other things."""
        self._open_store = open_store
        self._stack = AsyncExitStack()
        self.keys = keys
        self.clock = LoopClock()
        self.ttl = ttl

    async def __aenter__(self) -> Self:
        self.store = await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def connect(self) -> Store:
        """Another connection to the same store."""
        if isinstance(self._open_store, str):
            settings = StoreSettings(endpoints=(self._open_store,))
            store = await load("etcd").open(settings, self.clock)
        else:
            store = self._open_store()
        self._stack.push_async_callback(store.close)
        return store

    async def stranger(self, name: str) -> Voter:
        """An instance that has not been announced."""
        counted = CountingStore(await self.connect())
        faulty = FaultyStore(counted, deadline=min(5.0, self.ttl / 2))
        return Voter(name, faulty, counted, self.ttl, self.allowance)

    async def voter(self, name: str, *, clock: Clock | None = None) -> Voter:
        voter = await self.stranger(name)
        await voter.open(self.keys, clock or self.clock)
        self._stack.push_async_callback(voter.elector.close)
        self._stack.callback(voter.store.heal)
        return voter

    async def holder(self, group: str) -> str | None:
        leader = await (await self.any_elector()).leader(group)
        return leader.holder if leader else None

    async def any_elector(self) -> LeaseElector:
        return LeaseElector(self.store, self.keys, Presence(name="reader", address=""), self.clock, "reader")

    async def leader_lease(self, group: str) -> int:
        seen = await self.store.get(self.keys.group(group).leader)
        assert isinstance(seen, Found)
        return seen.entry.lease


def election_cluster(
    kind: str, request: pytest.FixtureRequest, *, ttl: float = 15.0, etcd_ttl: float = ETCD_TTL
) -> ElectionCluster:
    """On memory with virtual time; on etcd with real time and, where a lease has to expire, `etcd_ttl=EXPIRES`."""
    if kind == "memory":
        state = MemoryState()
        return ElectionCluster(lambda: MemoryStore(state), Keys(), ttl)
    endpoint = request.getfixturevalue("etcd_server").endpoint
    return ElectionCluster(endpoint, Keys(request.getfixturevalue("etcd_prefix")), etcd_ttl)


class Candidate:
    """A campaign under way in a task of its own."""

    def __init__(self, voter: Voter, group: str) -> None:
        self.voter = voter
        self.group = group
        self.term: Term | None = None
        self.error: Exception | None = None
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()
        self._watches_before = voter.counted.requests["watch"]

    async def run(self) -> None:
        with self.scope:
            try:
                self.term = await self.voter.elector.campaign(self.group)
            except (FailedPrecondition, Superseded) as error:
                self.error = error
        self.done.set()

    async def watches(self) -> None:
        """Wait until it watches the leader key of another, and so writes nothing."""
        within = 10.0 + self.voter.allowance
        await eventually(lambda: self.voter.counted.requests["watch"] > self._watches_before, within=within)

    async def won(self, within: float = 10.0) -> Term:
        """Wait until it leads. `within`: seconds besides the cluster's `allowance`."""
        within += self.voter.allowance
        await eventually(lambda: self.term is not None, within=within, what=f"{self.voter.presence.name} leads")
        assert self.term is not None
        return self.term


Campaign = Callable[[Voter, str], Awaitable[Candidate]]


async def is_free(votes: ElectionCluster, group: str) -> bool:
    return isinstance(await votes.store.get(votes.keys.group(group).leader), Missing)


async def write_fenced(votes: ElectionCluster, term: Term, value: bytes) -> bool:
    put = Put(votes.keys.group(term.group).plan, value)
    return isinstance(await votes.store.transact([term.fence], [put]), Committed)


def taking(_: str, compares: object, operations: tuple[object, ...]) -> bool:
    return any(isinstance(operation, Put) and operation.key.endswith("leader") for operation in operations)
