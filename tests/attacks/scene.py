"""The scene of an attack: a service in a process of its own, twenty consumers in another, and what both went through.

The service is `assigner serve` as anybody would start it, on the store in memory. Attackers run in the process that
sets the scene.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import trustme

from tests.attacks.attackers import Load
from tests.attacks.victims import GROUP, PARTITIONS, PROBES, TOPIC, Seen

Attack = Callable[["Scene"], Awaitable[Load]]
MIB = 2**20
_WITHIN = 90.0
_ROOM = 32 * MIB
"""A line of a service's log may be long; the reader's default is not."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How an attack went: for the attacker, for the consumers, for the service."""

    load: Load
    seen: Seen
    rss_before: float
    rss_after: float
    """MiB, some seconds after the last attacker left."""
    rss_highest: float
    refused: dict[str, int]
    lines: Sequence[str]
    """What the service logged meanwhile."""

    def rss_growth(self) -> float:
        return self.rss_highest - self.rss_before


class Scene:
    def __init__(self, process: asyncio.subprocess.Process, grpc: str, http: str, ca: str, lines: list[str]) -> None:
        self._process = process
        self.grpc, self.http, self.ca = grpc, http, ca
        self.lines = lines
        self.port = int(grpc.rpartition(":")[2])

    def rss(self) -> float:
        """MiB of the service."""
        return float(psutil.Process(self._process.pid).memory_info().rss / MIB)

    def files(self) -> int:
        """Files that the service has open, sockets included."""
        return int(psutil.Process(self._process.pid).num_fds())

    async def refused(self) -> dict[str, int]:
        """What the service counted, by reason."""
        host, _, port = self.http.rpartition(":")
        async with asyncio.timeout(_WITHIN):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            text = (await reader.read(-1)).decode()
            writer.close()
        found = {}
        for line in text.splitlines():
            if line.startswith("assigner_refusals_total{"):
                reason = line.partition('reason="')[2].partition('"')[0]
                found[reason] = int(float(line.rpartition(" ")[2]))
        return found


@asynccontextmanager
async def scene(
    directory: Path,
    *,
    ttl: float = 30.0,
    tls: bool = False,
    settings: Sequence[str] = (),
    topics: Mapping[str, int] | None = None,
    files: int | None = None,
) -> AsyncIterator[Scene]:
    """A running service. `settings`: as KEY=VALUE. `topics`: group/topic -> partitions, besides those of the
    consumers. `files`: how many it may have open, at first and at most."""
    arguments = ["serve", "--grpc-port", "0", "--http-port", "0", "--consumer-ttl", str(ttl)]
    for topic, partitions in {f"{GROUP}/{TOPIC}": PARTITIONS, f"{PROBES}/one": 1, **(topics or {})}.items():
        arguments += ["--topic", f"{topic}={partitions}"]
    ca = ""
    if tls:
        ca, key, certificate = _certificates(directory)
        settings = [f"grpc.tls_key={key}", f"grpc.tls_certificate={certificate}", *settings]
    for one in ("log.format=json", *settings):
        arguments += ["--set", one]
    command = [sys.executable, "-m", "assigner.cli", *arguments]
    if files is not None:
        command = ["/bin/sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, limit=_ROOM)
    lines: list[str] = []
    reading = None
    try:
        facts = await _serving(process, lines)
        assert process.stderr is not None
        reading = asyncio.create_task(_keep(process.stderr, lines))
        grpc = facts["grpc"].replace("127.0.0.1", "localhost" if tls else "127.0.0.1")
        yield Scene(process, grpc, facts["http"].removeprefix("http://"), ca, lines)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if reading is not None:
            await reading


async def _serving(process: asyncio.subprocess.Process, lines: list[str]) -> dict[str, str]:
    assert process.stderr is not None
    async with asyncio.timeout(_WITHIN):
        while line := (await process.stderr.readline()).decode():
            lines.append(line)
            if line.startswith("{") and json.loads(line)["event"] == "service_started":
                found: dict[str, str] = json.loads(line)
                return found
    raise AssertionError("the service did not come up: " + "".join(lines))


async def _keep(log: asyncio.StreamReader, lines: list[str]) -> None:
    while line := await log.readline():
        lines.append(line.decode())


def _certificates(directory: Path) -> tuple[str, str, str]:
    authority = trustme.CA()
    server = authority.issue_cert("localhost", "127.0.0.1")
    ca, key, certificate = directory / "ca.pem", directory / "key.pem", directory / "certificate.pem"
    authority.cert_pem.write_to_path(ca)
    server.private_key_pem.write_to_path(key)
    certificate.write_bytes(b"".join(part.bytes() for part in server.cert_chain_pems))
    return str(ca), str(key), str(certificate)


async def attacked(where: Scene, attack: Attack, *, settle: float = 2.0, token: str = "") -> Outcome:
    """Let the consumers work, attack, and ask what they went through. `token`: what the consumers show."""
    options = json.dumps({"grpc": where.grpc, "http": where.http, "ca": where.ca, "token": token})
    victims = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.attacks.victims", options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        # What the clients log while they are attacked is theirs; what they went through is asked for.
        stderr=asyncio.subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
        env=dict(os.environ),
    )
    assert victims.stdin is not None
    assert victims.stdout is not None
    try:
        async with asyncio.timeout(_WITHIN):
            assert json.loads(await victims.stdout.readline()) == {"ready": True}
        before, logged = where.rss(), len(where.lines)
        highest = [before]
        watching = asyncio.create_task(_watch_rss(where, highest))
        load = await attack(where)
        await asyncio.sleep(settle)
        watching.cancel()
        victims.stdin.write(b"\n")
        async with asyncio.timeout(_WITHIN):
            seen = msgspec.json.decode(await victims.stdout.readline(), type=Seen)
            refused = await where.refused()
            await victims.wait()
    finally:
        if victims.returncode is None:
            victims.kill()
            await victims.wait()
    return Outcome(
        load=load,
        seen=seen,
        rss_before=before,
        rss_after=where.rss(),
        rss_highest=max(highest),
        refused=refused,
        lines=where.lines[logged:],
    )


async def _watch_rss(where: Scene, highest: list[float]) -> None:
    while True:
        highest.append(where.rss())
        await asyncio.sleep(0.25)
