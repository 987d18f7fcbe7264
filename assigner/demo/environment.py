"""Runs the service in this process, and the workers as processes of their own.

A killed worker gets SIGKILL, so the service notices it as in production, when the lease expires.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from assigner.api import GroupDescription
from assigner.demo import child
from assigner.demo.ownership_changes import OwnershipChanges
from assigner.demo.snapshot import EventLine, ProcessStates, Snapshot, snapshot_of
from assigner.demo.traffic import GROUP, PARTITIONS, TOPIC
from assigner.embedded import EmbeddedAssigner
from assigner.errors import AssignerError
from assigner.model.records import GroupOptions
from assigner.server.settings import ServerSettings
from assigner.service import Service
from assigner.settings import HttpSettings, Settings

T = TypeVar("T")

NAMES = ("worker-1", "worker-2", "worker-3", "worker-4")
MAX_LINES = 200


class Pace(msgspec.Struct, frozen=True):
    """How fast the demo runs."""

    speed: float = 1.0
    hold: bool = True
    """Whether to pause between the steps, so that a person can follow."""

    def seconds(self, ordinary: float) -> float:
        return ordinary / self.speed


def demo_settings(pace: Pace) -> Settings:
    return Settings(
        grpc=ServerSettings(port=0),
        http=HttpSettings(port=0),
        # Short, so that a viewer does not wait for half a minute until a crash is noticed. Long enough for workers to
        # renew in time on a busy machine, because a registration that follows a lost lease knows of no drain.
        consumer_ttl=max(3.0, pace.seconds(4.0)),
        # Paused until the first workers have joined, so that the first step is the same whichever comes first.
        group=GroupOptions(paused=True, debounce=pace.seconds(1.0), warm_concurrency=4, max_concurrent_handoffs=12),
        topics={GROUP: {TOPIC: PARTITIONS}},
    )


class DemoEnvironment:
    """The service and the workers of the demo. Leaving the context kills every process that it started."""

    names: tuple[str, ...] = NAMES

    def __init__(self, pace: Pace, settings: Settings | None = None) -> None:
        self.pace = pace
        self.title = ""
        self._embedded = EmbeddedAssigner(settings or demo_settings(pace))
        self._workers: dict[str, anyio.abc.Process] = {}
        self._processes = ProcessStates()
        self._awaited: frozenset[str] = frozenset()
        """The first workers, until they have joined."""
        self._began = 0.0
        self._lines: list[EventLine] = []
        self._changes = OwnershipChanges()
        self._description: GroupDescription | None = None

    async def __aenter__(self) -> Self:
        await anyio.to_thread.run_sync(self._embedded.__enter__)
        self._began = anyio.current_time()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._end(self._workers.values())
            await anyio.to_thread.run_sync(self._embedded.close)

    async def _end(self, processes: Collection[anyio.abc.Process]) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                process.kill()
        for process in processes:
            await process.wait()
            await process.aclose()

    # --- what the script does ------------------------------------------------------------------------------------

    async def start(self, *names: str) -> None:
        self.add_line(f"starting {', '.join(names)}")
        if not self._workers:
            self._awaited = frozenset(names)
        for name in names:
            self._workers[name] = await anyio.open_process(
                self._command(name), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        self._processes = msgspec.structs.replace(self._processes, started=self._processes.started.union(names))

    def _command(self, name: str) -> list[str]:
        pace = self.pace
        return child.command(
            *("assigner.cli", "consume", GROUP, "--name", name),
            *("--address", self._embedded.address, "--timeout", "60"),
            *("--warm-seconds", f"{pace.seconds(1.2):.3f}", "--release-seconds", f"{pace.seconds(0.5):.3f}"),
        )

    async def kill(self, name: str) -> None:
        self._workers[name].send_signal(signal.SIGKILL)
        await self._workers[name].wait()
        self._processes = msgspec.structs.replace(self._processes, killed=self._processes.killed | {name})
        self.add_line(f"{name} is killed (SIGKILL)")

    async def drain(self, name: str) -> None:
        self.add_line(f"{name} is asked to drain")
        await self._call(lambda service: service.instance.operations.drain(GROUP, name))
        self._processes = msgspec.structs.replace(self._processes, left=self._processes.left | {name})

    def add_line(self, text: str, cause: str = "", partitions: str = "") -> None:
        self._lines.append(EventLine(self.now(), text, cause, partitions))
        del self._lines[:-MAX_LINES]

    # --- what the audience sees ----------------------------------------------------------------------------------

    def now(self) -> float:
        return anyio.current_time() - self._began

    async def take_snapshot(self) -> Snapshot:
        """Describe the group, log what changed, and return a snapshot."""
        with suppress(AssignerError):
            found = await self._call(lambda service: service.instance.operations.describe(GROUP))
            self._log_changes(found)
            self._description = found
            if self._awaited and self._awaited <= {member.consumer.consumer_name for member in found.members}:
                await self._call(lambda service: service.instance.operations.set_options(GROUP, {"paused": False}))
                self._awaited = frozenset()
        return snapshot_of(
            self._description,
            PARTITIONS,
            self.names,
            self._processes,
            at=self.now(),
            title=self.title,
            lines=self._lines,
            moves=self._changes.moves,
        )

    async def _call(self, work: Callable[[Service], Coroutine[Any, Any, T]]) -> T:
        return await anyio.to_thread.run_sync(partial(self._embedded.call, work), abandon_on_cancel=True)

    def _log_changes(self, found: GroupDescription) -> None:
        before = {member.consumer.consumer_name for member in self._description.members} if self._description else set()
        after = {member.consumer.consumer_name for member in found.members}
        for name in sorted(after - before):
            self.add_line(f"{name} joined")
        for name in sorted(before - after):
            self.add_line(f"{name} is gone")
        for change in self._changes.changes(found, self.now()):
            self.add_line(f"{change.old or 'nobody'} → {change.new}", change.cause, listed(change.partitions))


def listed(partitions: Iterable[int]) -> str:
    """The partitions as a person would list them: `03,17-20`."""
    ranges: list[list[int]] = []
    for number in sorted(partitions):
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ",".join("-".join(f"{number:02d}" for number in ends) for ends in ranges)
