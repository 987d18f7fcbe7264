"""How fast offsets are committed: `python -m bench.offsets` prints the rates on the memory store and on etcd.

One service on one event loop, its doors open, every partition owned. Inside: commits as the service takes them. By
gRPC: the same with the client's and the server's encoding, on the same machine. A commit counts when it is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext

import msgspec
from grpclib.client import Channel
from rich.console import Console
from rich.table import Table

from assigner.api import OffsetCommit, WantedOffsets
from assigner.backend import Backend
from assigner.backend import load as load_backend
from assigner.backends.memory import Bounds, MemoryBackend, MemoryState
from assigner.client.channel import Codec
from assigner.client.offsets import OffsetAndMetadata, commit, committed
from assigner.client.rpc import ConsumerRpc, Identity
from assigner.clock import SystemClock
from assigner.model.keys import TopicPartition
from assigner.model.records import Assignment, TopicConfig, encode
from assigner.server import ServerSettings
from assigner.service import Service
from assigner.settings import HttpSettings, InstanceSection, QuotaSection, Settings, StoreSection
from assigner.storage.groups import make_known
from assigner.store import Put
from bench.store import some_etcd

GROUP, TOPIC, OWNER, SESSION = "bench", "offsets", "worker", "session"
PARTITIONS = 10_000
CHUNK = 128
COMMITTERS = 64
WHO = Identity(group=GROUP, name=OWNER, session=SESSION, topics=(), capacity=1.0, rack="", address="", generation="")


class Bench(msgspec.Struct, frozen=True):
    service: Service
    contact: ConsumerRpc
    seconds: float

    async def inside(self, tps: Sequence[TopicPartition], offset: int) -> None:
        commits = [OffsetCommit(tp, 1, offset) for tp in tps]
        refused = await self.service.instance.offsets.commit(GROUP, OWNER, SESSION, commits)
        assert not refused, refused[0]

    async def by_grpc(self, tps: Sequence[TopicPartition], offset: int) -> None:
        await commit(lambda: self.contact, {tp: (1, OffsetAndMetadata(offset)) for tp in tps})

    async def fetched(self, tps: Sequence[TopicPartition], _: int) -> None:
        await committed(lambda: self.contact, tps)

    async def fetched_inside(self, tps: Sequence[TopicPartition], _: int) -> None:
        await self.service.instance.offsets.fetch(GROUP, WantedOffsets(tuple(tps)))

    async def rate(self, work: Callable[..., Awaitable[None]], size: int, at_once: int = 1) -> float:
        """Partitions per second, `size` in each call, by so many callers with partitions of their own."""
        done = 0
        began = time.perf_counter()

        async def one(caller: int) -> None:
            nonlocal done
            tps = [TopicPartition(TOPIC, caller * size + number) for number in range(size)]
            offset = 0
            while not offset or time.perf_counter() - began < self.seconds:
                offset += 1
                await work(tps, offset)
                done += size

        await asyncio.gather(*(one(caller) for caller in range(at_once)))
        return done / (time.perf_counter() - began)


Measurement = Callable[[Bench], Awaitable[float]]
MEASUREMENTS: dict[str, Measurement] = {
    "1 partition a call": lambda b: b.rate(b.inside, 1),
    f"1 partition a call, {COMMITTERS} callers": lambda b: b.rate(b.inside, 1, COMMITTERS),
    "100 partitions a call": lambda b: b.rate(b.inside, 100),
    f"100 partitions a call, {COMMITTERS} callers": lambda b: b.rate(b.inside, 100, COMMITTERS),
    "10,000 partitions a call": lambda b: b.rate(b.inside, 10_000),
    "by gRPC, 1 partition a call": lambda b: b.rate(b.by_grpc, 1),
    f"by gRPC, 1 partition a call, {COMMITTERS} callers": lambda b: b.rate(b.by_grpc, 1, COMMITTERS),
    "by gRPC, 100 partitions a call": lambda b: b.rate(b.by_grpc, 100),
    "by gRPC, 10,000 partitions": lambda b: b.rate(b.by_grpc, 10_000),
    "fetched, 10,000 partitions a call": lambda b: b.rate(b.fetched_inside, 10_000),
    "fetched by gRPC, 10,000 partitions": lambda b: b.rate(b.fetched, 10_000),
}


@asynccontextmanager
async def bench_on(backend: Backend, store: StoreSection, seconds: float) -> AsyncIterator[Bench]:
    settings = Settings(
        instance=InstanceSection(name="bench"),
        store=store,
        grpc=ServerSettings(port=0),
        http=HttpSettings(port=0),
        # The owner never registers. Its leader waits for it for as long as anything is measured.
        consumer_ttl=3600.0,
        quotas=QuotaSection(commit_rate=1e9),
    )
    async with Service(settings, backend=backend) as service:
        await service.wait_ready()
        await _own_everything(service)
        channel = Channel("127.0.0.1", service.server.port, codec=Codec())
        try:
            yield Bench(service, ConsumerRpc(channel, WHO, 60.0), seconds)
        finally:
            channel.close()


async def _own_everything(service: Service) -> None:
    """As if a plan had been carried out."""
    store, keys = service.instance.store, service.instance.keys.group(GROUP)
    await store.put(keys.topic(TOPIC), encode(TopicConfig(topic=TOPIC, partition_count=PARTITIONS)))
    for start in range(0, PARTITIONS, CHUNK):
        tps = [TopicPartition(TOPIC, number) for number in range(start, min(start + CHUNK, PARTITIONS))]
        await store.transact([], [Put(keys.assignment(tp), encode(_owned(tp))) for tp in tps])
    await make_known(store, service.instance.keys, GROUP)


def _owned(tp: TopicPartition) -> Assignment:
    return Assignment(topic=tp.topic, partition=tp.partition, owner=OWNER, session=SESSION, epoch=1)


async def measure(kind: str, endpoint: str | None, seconds: float) -> dict[str, float]:
    rates: dict[str, float] = {}
    bounds = Bounds(history_revisions=1_000_000, history_bytes=1 << 30)
    memory = kind == "memory"
    backend = MemoryBackend.shared(MemoryState(SystemClock(), bounds=bounds)) if memory else load_backend("etcd")
    store = StoreSection(backend=kind, endpoints=(endpoint,) if endpoint else ())
    async with bench_on(backend, store, seconds) as bench:
        for what, run in MEASUREMENTS.items():
            if sys.stderr.isatty():
                print(f"{kind}: {what}", file=sys.stderr)
            rates[what] = await run(bench)
    return rates


def table(rates: dict[str, dict[str, float]]) -> Table:
    result = Table(title="Offsets of partitions per second", title_justify="left")
    result.add_column("what")
    for name in rates:
        result.add_column(name, justify="right")
    for what in MEASUREMENTS:
        result.add_row(what, *(f"{of_store[what]:,.0f}" for of_store in rates.values()))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.offsets", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement")
    parser.add_argument("--store", choices=["memory", "etcd", "both"], default="both")
    parser.add_argument("--etcd", metavar="HOST:PORT", help="a running etcd, instead of one started for this")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    kinds = ["memory", "etcd"] if options.store == "both" else [options.store]
    with some_etcd(options.etcd) if "etcd" in kinds else nullcontext() as endpoint:
        rates = {kind: asyncio.run(measure(kind, endpoint, options.seconds)) for kind in kinds}
    if options.json:
        print(json.dumps(rates, indent=2))
    else:
        console = Console()
        console.width = max(console.width, 110)
        console.print(table(rates))


if __name__ == "__main__":
    main()
