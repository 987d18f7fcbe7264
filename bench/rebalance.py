"""How long a group takes to settle, what it costs the store and how long the loop keeps others waiting.

The service runs in this process, on memory or on a real etcd; real clients that warm at once run in others. Times
include the debounce of 1 s, and for a death start when its lease has ended. `python -m bench.rebalance [--quick]`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from assigner.backend import Backend, Presence, StoreSettings
from assigner.backend import load as load_backend
from assigner.cli.gc_tuning import freeze
from assigner.clock import Clock
from assigner.core.group import GroupState
from assigner.election import LeaderElector
from assigner.model.keys import Keys
from assigner.model.records import GroupOptions
from assigner.server import ServerSettings
from assigner.service import Service
from assigner.settings import HttpSettings, Settings, StoreSection
from assigner.store import Store
from assigner.testing.counting import CountingStore
from bench.lag import LoopLag
from tests.support.servers.etcd import EtcdServer

GROUP = "bench"
TOPICS = 10


class CountedBackend:
    """A backend whose store counts."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.store: CountingStore

    async def open(self, settings: StoreSettings, clock: Clock) -> Store:
        self.store = CountingStore(await self.inner.open(settings, clock))
        return self.store

    async def elector(self, store: Store, keys: Keys, presence: Presence, clock: Clock) -> LeaderElector:
        return await self.inner.elector(store, keys, presence, clock)


class Crowd:
    """A child process full of consumers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, address: str) -> Crowd:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bench.consumers",
            address,
            GROUP,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(process)

    async def join(self, names: list[str]) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"join {' '.join(names)}\n".encode())
        await self._process.stdin.drain()
        if await self._process.stdout.readline() != b"done\n":
            raise RuntimeError("the consumers' process ended")

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


class Row(dict[str, object]):
    """One line of the table."""


class Bench:
    def __init__(self, kind: str, service: Service, backend: CountedBackend, lag: LoopLag, partitions: int) -> None:
        self.kind = kind
        self.service = service
        self.store = backend.store
        self.lag = lag
        self.partitions = partitions
        self.rows: list[Row] = []

    def state(self) -> GroupState:
        mirror = self.service.instance.mirrors.get(GROUP)
        assert mirror is not None
        return mirror.state

    def epochs(self) -> int:
        return sum(held.record.epoch for held in self.state().assignments.values())

    async def measure(self, what: str, members: int, act: Callable[[], asyncio.Future[None] | object]) -> None:
        """Time from the act to the moment when `members` share the partitions evenly and nothing is under way."""
        gc.collect()
        await asyncio.sleep(0.1)
        self.store.reset()
        self.lag.reset()
        epochs = self.epochs() if self.service.instance.mirrors.get(GROUP) else 0
        began, cpu = time.perf_counter(), time.process_time()
        outcome = act()
        if asyncio.iscoroutine(outcome):
            started = await outcome
            began = started if isinstance(started, float) else began
        await self._settled(members)
        seconds = time.perf_counter() - began
        moves = self.epochs() - epochs
        writes, requests = self.store.writes, sum(self.store.requests.values())
        self.rows.append(
            Row(
                store=self.kind,
                partitions=self.partitions,
                what=what,
                seconds=round(seconds, 2),
                service_cpu_s=round(time.process_time() - cpu, 2),
                moves=moves,
                operations_per_move=round(writes / max(moves, 1), 2),
                requests_per_move=round(requests / max(moves, 1), 2),
                lag_p999_ms=round(1000 * self.lag.percentile(0.999), 1),
                longest_ms=round(1000 * self.lag.longest, 1),
                longest_gc_ms=round(1000 * self.lag.longest_collection, 1),
                longest_is=self.lag.longest_is,
            )
        )
        await asyncio.sleep(1.5)

    async def _settled(self, members: int) -> None:
        deadline = time.perf_counter() + 120
        low, high = self.partitions // members, -(-self.partitions // members)
        while True:
            state = self.state()
            owned = [len(tps) for name, tps in state.owned.items() if tps and name in state.consumers]
            complete = len(owned) == members and sum(owned) == self.partitions and not state.handoffs
            if complete and min(owned) >= low - 1 and max(owned) <= high + 1:
                return
            if time.perf_counter() > deadline:
                raise RuntimeError(f"not settled: {sorted(owned)} handoffs {len(state.handoffs)}")
            await asyncio.sleep(0.01)

    async def death(self, crowd: Crowd, name: str) -> float:
        """Kill the process of one consumer; the time when its registration was gone."""
        await crowd.kill()
        while name in self.state().consumers:  # noqa: ASYNC110 - the mirror has no event for this
            await asyncio.sleep(0.002)
        return time.perf_counter()


@asynccontextmanager
async def serving(kind: str, partitions: int, etcd: EtcdServer | None) -> AsyncIterator[Bench]:
    store = StoreSection(
        backend=kind, endpoints=tuple(etcd.endpoints) if etcd else (), root=f"/bench-{partitions}-{time.time_ns()}/"
    )
    settings = Settings(
        store=store,
        grpc=ServerSettings(port=0),
        http=HttpSettings(port=0),
        consumer_ttl=10.0,
        group=GroupOptions(),
        topics={GROUP: {f"topic-{number}": partitions // TOPICS for number in range(TOPICS)}},
    )
    backend = CountedBackend(load_backend(kind))
    async with Service(settings, backend=backend) as service:
        await service.wait_ready()
        freeze()
        async with LoopLag() as lag:
            yield Bench(kind, service, backend, lag, partitions)


def names(start: int, count: int) -> list[str]:
    return [f"consumer-{number:03}" for number in range(start, start + count)]


async def hundred(kind: str, partitions: int, etcd: EtcdServer | None) -> list[Row]:
    """From empty to 100, one joins 100, one of them dies."""
    async with serving(kind, partitions, etcd) as bench:
        crowd = await Crowd.start(bench.service.address)
        last = await Crowd.start(bench.service.address)
        try:
            await bench.measure("empty -> 100", 100, lambda: crowd.join(names(0, 100)))
            await bench.measure("1 joins 100", 101, lambda: last.join(names(100, 1)))
            await bench.measure("1 of 101 dies", 100, lambda: bench.death(last, "consumer-100"))
        finally:
            await crowd.kill()
            await last.kill()
        return bench.rows


async def ten(kind: str, partitions: int, etcd: EtcdServer | None) -> list[Row]:
    """From empty to 10, ten join ten."""
    async with serving(kind, partitions, etcd) as bench:
        crowd = await Crowd.start(bench.service.address)
        try:
            await bench.measure("empty -> 10", 10, lambda: crowd.join(names(0, 10)))
            await bench.measure("10 join 10", 20, lambda: crowd.join(names(10, 10)))
        finally:
            await crowd.kill()
        return bench.rows


def table(rows: list[Row]) -> Table:
    shown = Table(title="Rebalance")
    columns = [name for name in rows[0] if name != "longest_is"]
    for column in columns:
        shown.add_column(column.replace("_", " "), justify="left" if column in ("store", "what") else "right")
    for row in rows:
        shown.add_row(*(f"{row[column]:,}" if isinstance(row[column], int) else str(row[column]) for column in columns))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1,000 partitions only")
    parser.add_argument("--store", choices=["memory", "etcd"], action="append")
    parser.add_argument("--only", choices=["ten", "hundred"])
    parser.add_argument("--partitions", type=int, action="append")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    console = Console(stderr=options.json, width=140)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, EtcdServer(Path(folder)) as etcd:
        for kind in options.store or ["memory", "etcd"]:
            for partitions in options.partitions or ([1_000] if options.quick else [1_000, 10_000]):
                for run in (ten, hundred):
                    if options.only in (None, run.__name__):
                        with console.status(f"{kind}, {partitions:,} partitions: {run.__doc__}"):
                            rows += asyncio.run(run(kind, partitions, etcd if kind == "etcd" else None))
    console.print(table(rows))
    for row in rows:
        console.print(f"[dim]{row['store']} {row['partitions']} {row['what']}: longest callback {row['longest_is']}")
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
