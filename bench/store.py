"""What the stores can do: `python -m bench.store` prints the rates of the memory store and of etcd side by side.

Each measurement runs for a set time on one event loop, values of 64 bytes, client and server sharing the machine. The
watch figures count a write only when every watcher has got it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from assigner.backend import StoreSettings, load
from assigner.backends.memory import Bounds, MemoryState, MemoryStore
from assigner.clock import SystemClock
from assigner.store import Batch, Operation, Put, Store, read_all
from tests.support.servers.etcd import EtcdServer

VALUE = b"v" * 64
WRITERS = 64
WATCHERS = 100
CHUNK = 128


class Bench(msgspec.Struct, frozen=True):
    store: Store
    seconds: float

    async def repeat(self, work: Callable[[int], Awaitable[object]], *, at_once: int = 1, each: int = 1) -> float:
        """Calls per second (times `each`) of `work(number)`, by so many tasks at once; each calls at least once."""
        done = 0
        began = time.perf_counter()

        async def one(task: int) -> None:
            nonlocal done
            for number in itertools.count(task, at_once):
                await work(number)
                done += each
                if time.perf_counter() - began >= self.seconds:
                    return

        await asyncio.gather(*(one(task) for task in range(at_once)))
        return done / (time.perf_counter() - began)

    async def fill(self, prefix: str, count: int) -> int:
        """Put so many keys; returns the revision before the first."""
        before = (await self.store.get(prefix)).revision
        for start in range(0, count, CHUNK):
            numbers = range(start, min(start + CHUNK, count))
            await self.store.transact([], [Put(f"{prefix}{number:07}", VALUE) for number in numbers])
        return before


# --- the measurements ------------------------------------------------------------------------------------------------


async def put_one_by_one(bench: Bench) -> float:
    return await bench.repeat(lambda number: bench.store.put(f"/seq/{number % 1000}", VALUE))


async def put_many_at_once(bench: Bench) -> float:
    return await bench.repeat(lambda number: bench.store.put(f"/many/{number % 1000}", VALUE), at_once=WRITERS)


async def transactions(bench: Bench) -> float:
    def work(number: int) -> Awaitable[object]:
        operations: list[Operation] = [Put(f"/txn/{number % 8}/{key}", VALUE) for key in range(CHUNK)]
        return bench.store.transact([], operations)

    return await bench.repeat(work, at_once=16, each=CHUNK)


async def get_one_by_one(bench: Bench) -> float:
    await bench.store.put("/get", VALUE)
    return await bench.repeat(lambda _: bench.store.get("/get"))


async def list_10_000(bench: Bench) -> float:
    await bench.fill("/list10/", 10_000)
    return await bench.repeat(lambda _: read_all(bench.store, "/list10/", page_size=10_000), each=10_000)


async def list_100_000(bench: Bench) -> float:
    await bench.fill("/list100/", 100_000)
    return await bench.repeat(lambda _: read_all(bench.store, "/list100/", page_size=10_000), each=100_000)


async def watch_replay(bench: Bench) -> float:
    count = 50_000
    before = await bench.fill("/replay/", count)

    async def replay(_: int) -> None:
        async with bench.store.watch("/replay/", start_revision=before + 1) as items:
            seen = 0
            while seen < count:
                if isinstance(item := await anext(items), Batch):
                    seen += len(item.events)

    return await bench.repeat(replay, each=count)


async def watched_one_prefix(bench: Bench) -> float:
    return await _watched(bench, ["/fan/"] * WATCHERS, at_once=WRITERS)


async def watched_one_prefix_by_one(bench: Bench) -> float:
    return await _watched(bench, ["/fan/"] * WATCHERS, at_once=1)


async def watched_many_prefixes(bench: Bench) -> float:
    return await _watched(bench, [f"/fan/{number}/" for number in range(WATCHERS)], at_once=WRITERS)


async def watched_many_prefixes_by_one(bench: Bench) -> float:
    return await _watched(bench, [f"/fan/{number}/" for number in range(WATCHERS)], at_once=1)


async def _watched(bench: Bench, prefixes: list[str], *, at_once: int) -> float:
    """Writes per second until the last watcher has got the last event."""
    start = (await bench.store.get("/fan")).revision + 1
    seen = [0] * len(prefixes)

    async def read(number: int) -> None:
        async with bench.store.watch(prefixes[number], start_revision=start) as items:
            async for item in items:
                if isinstance(item, Batch):
                    seen[number] += len(item.events)

    readers = [asyncio.create_task(read(number)) for number in range(len(prefixes))]
    began = time.perf_counter()
    written = 0

    async def write(number: int) -> None:
        nonlocal written
        await bench.store.put(f"/fan/{number % WATCHERS}/k", VALUE)
        written += 1

    await bench.repeat(write, at_once=at_once)
    expected = written * (len(prefixes) if len(set(prefixes)) == 1 else 1)
    while sum(seen) < expected and not any(reader.done() for reader in readers):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    took = time.perf_counter() - began
    for reader in readers:
        reader.cancel()
    outcomes = await asyncio.gather(*readers, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return written / took


async def renewals(bench: Bench) -> float:
    leases = [(await bench.store.grant(60)).lease for _ in range(1000)]
    rate = await bench.repeat(lambda number: bench.store.keep_alive(leases[number % 1000]), at_once=WRITERS)
    for lease in leases:
        await bench.store.revoke(lease)
    return rate


MEASUREMENTS: dict[str, tuple[str, Callable[[Bench], Awaitable[float]]]] = {
    "puts, one after the other": ("puts/s", put_one_by_one),
    f"puts, {WRITERS} at once": ("puts/s", put_many_at_once),
    f"transactions of {CHUNK} puts, 16 at once": ("puts/s", transactions),
    "gets, one after the other": ("gets/s", get_one_by_one),
    "list of 10,000 keys": ("keys/s", list_10_000),
    "list of 100,000 keys": ("keys/s", list_100_000),
    "watch, replay of 50,000 events": ("events/s", watch_replay),
    f"{WATCHERS} watchers of one prefix, {WRITERS} writers": ("puts/s", watched_one_prefix),
    f"{WATCHERS} watchers of one prefix, 1 writer": ("puts/s", watched_one_prefix_by_one),
    f"{WATCHERS} watchers of a prefix each, {WRITERS} writers": ("puts/s", watched_many_prefixes),
    f"{WATCHERS} watchers of a prefix each, 1 writer": ("puts/s", watched_many_prefixes_by_one),
    f"lease renewals, {WRITERS} at once": ("renewals/s", renewals),
}


# --- running them ----------------------------------------------------------------------------------------------------


async def measure(stores: dict[str, Store], seconds: float) -> dict[str, dict[str, float]]:
    """Store by store within each measurement, so that a busy moment of the machine does not favour one of them."""
    rates: dict[str, dict[str, float]] = {name: {} for name in stores}
    for what, (_, run) in MEASUREMENTS.items():
        for name, store in stores.items():
            if sys.stderr.isatty():
                print(f"{name}: {what}", file=sys.stderr)
            rates[name][what] = await run(Bench(store, seconds))
    for store in stores.values():
        await store.close()
    return rates


async def measure_all(etcd: str | None, seconds: float, *, memory: bool) -> dict[str, dict[str, float]]:
    stores: dict[str, Store] = {}
    if memory:
        bounds = Bounds(history_revisions=1_000_000, history_bytes=1 << 30)
        stores["memory"] = MemoryStore(MemoryState(SystemClock(), bounds=bounds))
    if etcd is not None:
        settings = StoreSettings(endpoints=(etcd,), request_timeout=30)
        stores["etcd"] = await load("etcd").open(settings, SystemClock())
    return await measure(stores, seconds)


@contextmanager
def some_etcd(endpoint: str | None) -> Iterator[str]:
    if endpoint is not None:
        yield endpoint
        return
    with tempfile.TemporaryDirectory() as directory, EtcdServer(Path(directory)) as server:
        yield server.endpoint


def table(rates: dict[str, dict[str, float]]) -> Table:
    result = Table(title="Rates of the stores", title_justify="left")
    result.add_column("what")
    for name in rates:
        result.add_column(name, justify="right")
    if len(rates) == 2:
        result.add_column("memory : etcd", justify="right")
    result.add_column("unit")
    for what, (unit, _) in MEASUREMENTS.items():
        row = [f"{of_store[what]:,.0f}" for of_store in rates.values()]
        if len(rates) == 2:
            row.append(f"{rates['memory'][what] / rates['etcd'][what]:.1f}")
        result.add_row(what, *row, unit)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.store", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement")
    parser.add_argument("--store", choices=["memory", "etcd", "both"], default="both")
    parser.add_argument("--etcd", metavar="HOST:PORT", help="a running etcd, instead of one started for this")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    with some_etcd(options.etcd) if options.store != "memory" else nullcontext() as endpoint:
        rates = asyncio.run(measure_all(endpoint, options.seconds, memory=options.store != "etcd"))
    if options.json:
        print(json.dumps(rates, indent=2))
    else:
        console = Console()
        console.width = max(console.width, 110)
        console.print(table(rates))


if __name__ == "__main__":
    main()
