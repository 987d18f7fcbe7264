"""Twenty consumers in a process of their own, who only want to keep their partitions while others attack the service.

`python -m tests.attacks.victims '{"grpc": "host:port", "http": "host:port"}'`. Says `{"ready": ...}` when every gate
is open, looks at the gates ten times a second, renews a consumer of its own four times a second and asks `/livez` as
often. On a line from stdin it says what it saw, as JSON, and leaves.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import msgspec
from grpclib.client import Channel
from grpclib.exceptions import GRPCError, StreamTerminatedError

from assigner.client import AssignerConsumer, GateClosed, Handler
from assigner.proto.kafka_assigner import v1

GROUP, TOPIC = "victims", "events"
PROBES = "probes"
CONSUMERS, PARTITIONS = 20, 200


class Seen(msgspec.Struct):
    """What the consumers went through."""

    consumers: int = 0
    shut: int = 0
    """Consumers with a gate that was shut at any look."""
    looks: int = 0
    renewals: int = 0
    renewals_failed: int = 0
    renew_median: float = 0.0
    renew_slowest: float = 0.0
    livez_slowest: float = 0.0
    livez_failed: int = 0


class Victims:
    def __init__(self, grpc: str, http: str, ca: str, token: str) -> None:
        self._grpc, self._http = grpc, http
        self._token = token or None
        self._tls = ssl.create_default_context(cafile=ca) if ca else None
        self._seen = Seen()
        self._shut: set[str] = set()
        self._renewals: list[float] = []
        self._asked: float | None = None
        self._probing = asyncio.Event()
        self._held: dict[str, list[tuple[str, int]]] = {}

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            members = [
                await stack.enter_async_context(
                    AssignerConsumer(
                        [self._grpc], GROUP, f"victim-{number}", [], Handler(), tls=self._tls, token=self._token
                    )
                )
                for number in range(CONSUMERS)
            ]
            share = PARTITIONS // CONSUMERS
            async with asyncio.timeout(60):
                for member in members:
                    await member.wait_for(lambda one: len(one.partitions) == share)
            # Everything is open once: from here on nothing may shut it.
            self._held = {one.name: [(tp.topic, tp.partition) for tp in one.partitions] for one in members}
            while not all(_is_open(member, self._held[member.name]) for member in members):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            works = (self._look(members), self._renew(), self._ask_livez())
            tasks = [asyncio.create_task(work) for work in works]
            await asyncio.wait_for(self._probing.wait(), 60)
            print(json.dumps({"ready": True}), flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            told = self._told()
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result
            print(msgspec.json.encode(told).decode(), flush=True)

    def _told(self) -> Seen:
        if self._asked is not None:
            # The one that nobody has answered yet counts for as long as it has waited.
            self._renewals.append(time.monotonic() - self._asked)
        ordered = sorted(self._renewals)
        seen = self._seen
        seen.consumers, seen.shut, seen.renewals = CONSUMERS, len(self._shut), len(ordered)
        if ordered:
            seen.renew_median, seen.renew_slowest = ordered[len(ordered) // 2], ordered[-1]
        return seen

    async def _look(self, members: list[AssignerConsumer]) -> None:
        while True:
            for member in members:
                if not _is_open(member, self._held[member.name]):
                    self._shut.add(member.name)
            self._seen.looks += 1
            await asyncio.sleep(0.1)

    async def _renew(self) -> None:
        """As a consumer of another group would, on the connection of its own stream."""
        host, _, port = self._grpc.rpartition(":")
        channel = Channel(host, int(port), ssl=self._tls)
        stub = v1.KafkaAssignerStub(channel)
        request = v1.RegisterRequest(group=PROBES, consumer_name="probe", session="probe-1", renews=True)
        shown = {"authorization": f"Bearer {self._token}"} if self._token else None
        stream = stub.register(request, metadata=shown)
        await anext(stream)
        self._probing.set()
        try:
            while True:
                self._asked = time.monotonic()
                try:
                    await stub.renew(
                        v1.RenewRequest(group=PROBES, consumer_name="probe", session="probe-1"),
                        timeout=30,
                        metadata=shown,
                    )
                except (GRPCError, StreamTerminatedError, TimeoutError, OSError):
                    self._seen.renewals_failed += 1
                self._renewals.append(time.monotonic() - self._asked)
                self._asked = None
                await asyncio.sleep(0.25)
        finally:
            channel.close()

    async def _ask_livez(self) -> None:
        # A connection per question, as a kubelet does.
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
            while True:
                began = time.monotonic()
                try:
                    async with session.get(f"http://{self._http}/livez", timeout=aiohttp.ClientTimeout(30)) as answer:
                        self._seen.livez_failed += answer.status != 200
                except (aiohttp.ClientError, TimeoutError):
                    self._seen.livez_failed += 1
                self._seen.livez_slowest = max(self._seen.livez_slowest, time.monotonic() - began)
                await asyncio.sleep(0.25)


def _is_open(member: AssignerConsumer, held: list[tuple[str, int]]) -> bool:
    try:
        for topic, partition in held:
            with member.gate(topic, partition).enter():
                pass
    except GateClosed:
        return False
    return True


def main(options: dict[str, Any]) -> None:
    asyncio.run(Victims(options["grpc"], options["http"], options.get("ca", ""), options.get("token", "")).run())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
