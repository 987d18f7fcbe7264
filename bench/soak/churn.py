"""Clients that come and go and connections that are cut, for as long as one likes, and then a time to settle.

Two `assigner serve` processes on a real etcd; real clients that come and go, some in order, some drained, some just
gone; proxies between instances and etcd and between clients and instances, whose connections are cut all the time.
Samples are taken all the while; `report` says whether they are flat.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import aiohttp
import anyio
import anyio.to_thread
from prometheus_client.parser import text_string_to_metric_families

from assigner.client import AssignerConsumer, Handler, Timing
from assigner.errors import AssignerError
from assigner.testing.waiting import eventually
from bench.soak.report import Sample, compare, shortcomings
from tests.support.clients.threaded_consumers import Crew
from tests.support.clients.worker_process import Sink
from tests.support.network.tcp_proxy import TcpProxy, proxied
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.etcd_history import EtcdTruth
from tests.support.servers.ports import free_port
from tests.support.servers.process import ServerProcess

INSTANCES = ("soak-1", "soak-2")
GROUPS = {"soak-overlap": "overlap", "soak-exclusive": "exclusive"}
PARTITIONS = 32
CHANGES_A_MINUTE = 250
"""Joins and leaves together."""
LIFE = (4.0, 16.0)
"""Seconds a client stays, from and to."""
CUTS = (1.0, 5.0)
"""Seconds between two cuts, from and to."""
LEAVE_WITHIN = 60.0
TTL = 10.0
SETTLE_WITHIN = 90.0
REMAINING = 4
"""Clients of each group when all is quiet."""
SAMPLES = 120
"""About as many as a run takes; at least one a second, at most one in ten."""
ROOT = "/soak/"
TIMING = Timing(call_timeout=5.0, keepalive=2.0, keepalive_timeout=2.0, longest_pause=1.0, close_timeout=5.0)


class Served:
    """One `assigner serve`, its way to etcd and the clients' way to it."""

    def __init__(self, name: str, directory: Path, to_etcd: TcpProxy) -> None:
        self.name = name
        self.port, self.http_port = free_port(), free_port()
        self.log = directory / f"{name}.log"
        self.to_etcd = to_etcd
        settings = {
            "instance.name": name,
            "store.backend": "etcd",
            "store.endpoints": to_etcd.endpoint,
            "store.root": ROOT,
            "grpc.port": self.port,
            "http.port": self.http_port,
            "log.format": "json",
            "consumer_ttl": TTL,
            "leader_ttl": TTL,
        }
        flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self.process = ServerProcess([sys.executable, "-m", "assigner.cli", "serve", *flags], self.log)

    async def get(self, http: aiohttp.ClientSession, path: str) -> tuple[int, str]:
        """Status and text; 0 where nobody answers."""
        try:
            async with http.get(f"http://127.0.0.1:{self.http_port}{path}") as response:
                return response.status, await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return 0, f"no answer: {error!r}"

    async def measure(self, http: aiohttp.ClientSession) -> dict[str, float]:
        status, text = await self.get(http, "/metrics")
        if status != 200:
            return {}
        found: dict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] += sample.value
        # A cut sends everybody to the other instance: what belongs to a client is no growth of an instance.
        streams = found["assigner_streams"]
        return {
            f"{self.name} rss_mb": found["process_resident_memory_bytes"] / 2**20,
            f"{self.name} descriptors": found["process_open_fds"] - streams,
            f"{self.name} tasks": found["assigner_tasks"] - streams,
            f"{self.name} streams": streams,
            f"{self.name} restarts": found["assigner_loop_restarts_total"],
        }


class Soak:
    def __init__(self, etcd: EtcdServer, served: list[Served], doors: list[TcpProxy], seed: int) -> None:
        self._served = served
        self._doors = doors
        self._truth = EtcdTruth(etcd.endpoint, ROOT)
        self._chance = random.Random(seed)
        self._began = time.monotonic()
        self._numbers = Counter[str]()
        self.samples: list[Sample] = []
        self.counts: Counter[str] = Counter()

    # --- churn -----------------------------------------------------------------------------------------------------

    async def churn(self, seconds: float, sampling: aiohttp.ClientSession) -> None:
        """Come, go and cut for that long."""
        # Who comes also goes: half of the changes are joins.
        joins_a_second = CHANGES_A_MINUTE / 2 / 60
        async with anyio.create_task_group() as clients:
            # As many as there will be all the time, so that it does not begin with a rise.
            for _ in range(round(joins_a_second * sum(LIFE) / 2)):
                clients.start_soon(self._live, self._chance.uniform(0, LIFE[1]))
            self._began = time.monotonic()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._cut_for_ever)
                tasks.start_soon(self._sample_for_ever, sampling, min(10.0, max(1.0, seconds / SAMPLES)))
                while time.monotonic() - self._began < seconds:
                    clients.start_soon(self._live, self._chance.uniform(*LIFE))
                    await anyio.sleep(self._chance.expovariate(joins_a_second))
                tasks.cancel_scope.cancel()
            clients.cancel_scope.deadline = anyio.current_time() + LEAVE_WITHIN

    async def _cut_for_ever(self) -> None:
        while True:
            await anyio.sleep(self._chance.uniform(*CUTS))
            ways = [*self._doors, *(one.to_etcd for one in self._served)]
            self._chance.choice(ways).cut()
            self.counts["cuts"] += 1

    async def _live(self, seconds: float) -> None:
        """One client, from its joining to its leaving."""
        group = self._chance.choice(list(GROUPS))
        leave = self._chance.choices([_close, _drain, _vanish], [5, 3, 2])[0]
        try:
            async with self._client(group) as client:
                self.counts["joins"] += 1
                await anyio.sleep(seconds)
                await leave(client)
                self.counts[f"leaves{leave.__name__}"] += 1
        except AssignerError as error:
            # Within the cuts somebody may fail to join in time, or to hand over: counted, and nothing else.
            self.counts[f"failed: {type(error).__name__}"] += 1

    def _client(self, group: str) -> AssignerConsumer:
        self._numbers[group] += 1
        addresses = [door.endpoint for door in self._doors]
        name = f"client-{self._numbers[group]}"
        return AssignerConsumer(addresses, group, name, [], Handler(), timing=TIMING, connect_timeout=20.0)

    # --- quiet -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """A few clients of each group, and nobody disturbs them."""
        async with AsyncExitStack() as stack:
            for group in GROUPS:
                for _ in range(REMAINING):
                    await stack.enter_async_context(self._client(group))
            yield

    async def unsettled(self, http: aiohttp.ClientSession) -> list[str]:
        """What is not as it should be when nothing disturbs; empty: all has settled."""
        found = []
        for one in self._served:
            for path in ("/livez", "/readyz"):
                status, text = await one.get(http, path)
                if status != 200:
                    found.append(f"{one.name} {path}: {status} {text.strip()}")
        for group in GROUPS:
            found += await anyio.to_thread.run_sync(self._unsettled_group, group)
        expected = REMAINING * len(GROUPS) + len(self._served)
        leases = await anyio.to_thread.run_sync(self._leases)
        if leases != expected:
            found.append(f"{leases:g} leases in etcd; clients and instances are {expected}")
        return found

    def _unsettled_group(self, group: str) -> list[str]:
        owners = Counter(one.owner for one in self._truth.assignments(group).values())
        even = len(owners) == REMAINING and max(owners.values()) - min(owners.values()) <= 1
        found = [] if even and owners.total() == PARTITIONS else [f"{group}: owned {dict(owners)}"]
        handoffs = len(self._truth.handoffs(group))
        return found + ([f"{group}: {handoffs} handoffs in flight"] if handoffs else [])

    def _leases(self) -> float:
        return float(len(self._truth.leases()))

    # --- samples ---------------------------------------------------------------------------------------------------

    async def _sample_for_ever(self, http: aiohttp.ClientSession, every: float) -> None:
        while True:
            await self.sample(http)
            await anyio.sleep(every)

    async def sample(self, http: aiohttp.ClientSession) -> None:
        values: dict[str, float] = {}
        for one in self._served:
            values |= await one.measure(http)
        with suppress(OSError):
            values["leases"] = await anyio.to_thread.run_sync(self._leases)
        self.samples.append(Sample(time.monotonic() - self._began, values))


async def _close(client: AssignerConsumer) -> None:
    await client.close()


async def _drain(client: AssignerConsumer) -> None:
    with suppress(TimeoutError):
        await client.drain(timeout=15)


async def _vanish(client: AssignerConsumer) -> None:
    """As a killed process: nothing is said, and the lease runs out by itself."""
    assert client._task is not None
    client._task.cancel()
    await asyncio.wait([client._task])


async def soak(minutes: float, directory: Path, seed: int, say: Callable[[str], None]) -> tuple[Soak, list[str]]:
    """The whole run; what was seen, and everything that is wrong."""
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(EtcdServer(directory))
        served = []
        for name in INSTANCES:
            one = Served(name, directory, await stack.enter_async_context(proxied(etcd.endpoint)))
            # On a thread: the instance says goodbye to etcd through a proxy of this loop.
            stack.push_async_callback(anyio.to_thread.run_sync, one.process.terminate, 10)
            served.append(one)
        doors = [await stack.enter_async_context(proxied(f"127.0.0.1:{one.port}")) for one in served]
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)))
        for one in served:
            await eventually(partial(_is_ready, one, http), within=60, every=0.2, what=f"{one.name} is ready")
        await anyio.to_thread.run_sync(_make_groups, served[0].port, directory)
        run = Soak(etcd, served, doors, seed)
        say(f"churn for {minutes:g} minutes, seed {seed}")
        await run.churn(minutes * 60, http)
        say("settling")
        async with run.quiet():
            problems = await _settle(run, http)
            await run.sample(http)
        return run, problems + _judged(run, served)


def _make_groups(port: int, directory: Path) -> None:
    crew = Crew(Sink(directory / "sink.txt"))
    try:
        for group, mode in GROUPS.items():
            crew.set_topic(f"127.0.0.1:{port}", group, PARTITIONS)
            crew.set_options(f"127.0.0.1:{port}", group, handoff_mode=mode)
    finally:
        crew.close()


async def _settle(run: Soak, http: aiohttp.ClientSession) -> list[str]:
    found = ["nobody told within the time"]

    async def is_settled() -> bool:
        found[:] = await run.unsettled(http)
        return not found

    with suppress(AssertionError):
        await eventually(is_settled, within=SETTLE_WITHIN, every=0.5)
    return [f"not settled within {SETTLE_WITHIN:g} s: {what}" for what in found]


def _judged(run: Soak, served: list[Served]) -> list[str]:
    expected = [f"{one.name} {what}" for one in served for what in ("rss_mb", "descriptors", "tasks")]
    found = shortcomings(compare(run.samples), [*expected, "leases"])
    last = run.samples[-1].values
    found += [f"{one.name}: loops had to be restarted" for one in served if last.get(f"{one.name} restarts", 0)]
    found += [f"{one.name} has ended" for one in served if not one.process.is_running]
    return found


async def _is_ready(one: Served, http: aiohttp.ClientSession) -> bool:
    if not one.process.is_running:
        raise RuntimeError(f"{one.name} did not start:\n{one.log.read_text()[-2000:]}")
    return (await one.get(http, "/readyz"))[0] == 200
