"""Where the demo happens: a real assigner in this process, and workers that are processes of their own.

A worker that is killed is really killed: the service learns of it as it would in earnest, by the end of its lease.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from assigner.api import GroupDescription
from assigner.demo.ledger import DemoLedger
from assigner.demo.scene import Cast, Scene, SceneLine, seen
from assigner.embedded import EmbeddedAssigner
from assigner.errors import AssignerError
from assigner.model.records import GroupOptions
from assigner.server.settings import ServerSettings
from assigner.service import Service
from assigner.settings import HttpSettings, Settings

T = TypeVar("T")

GROUP, TOPIC, PARTITIONS = "demo", "events", 64
NAMES = ("worker-1", "worker-2", "worker-3", "worker-4")
MAX_LINES = 200


class Pace(msgspec.Struct, frozen=True):
    """How fast things go. The seconds are those of the ordinary speed."""

    speed: float = 1.0
    hold: bool = True
    """Whether to linger between the acts, so that a person can follow."""

    def seconds(self, ordinary: float) -> float:
        return ordinary / self.speed


def demo_settings(pace: Pace) -> Settings:
    return Settings(
        grpc=ServerSettings(port=0),
        http=HttpSettings(port=0),
        # Short, so that the audience does not wait for half a minute to see a death noticed.
        consumer_ttl=max(1.0, pace.seconds(4.0)),
        group=GroupOptions(debounce=pace.seconds(1.0), warm_concurrency=4, max_concurrent_handoffs=12),
        topics={GROUP: {TOPIC: PARTITIONS}},
    )


class DemoStage:
    """`async with Stage(pace) as stage`. Leaving it ends every process it started."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.title = ""
        self._embedded = EmbeddedAssigner(demo_settings(pace))
        self._workers: dict[str, anyio.abc.Process] = {}
        self._cast = Cast()
        self._began = 0.0
        self._lines: list[SceneLine] = []
        self._ledger = DemoLedger()
        self._description: GroupDescription | None = None

    async def __aenter__(self) -> Self:
        await anyio.to_thread.run_sync(self._embedded.__enter__)
        self._began = anyio.current_time()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            for process in self._workers.values():
                with suppress(ProcessLookupError):
                    process.kill()
            for process in self._workers.values():
                await process.wait()
            await anyio.to_thread.run_sync(self._embedded.close)

    # --- what the script does ------------------------------------------------------------------------------------

    async def start(self, *names: str) -> None:
        self.say(f"starting {', '.join(names)}")
        for name in names:
            self._workers[name] = await anyio.open_process(
                self._command(name), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        self._cast = msgspec.structs.replace(self._cast, started=self._cast.started.union(names))

    def _command(self, name: str) -> list[str]:
        pace = self.pace
        return [
            *(sys.executable, "-m", "assigner.cli", "consume", GROUP, "--name", name),
            *("--address", self._embedded.address, "--timeout", "60"),
            *("--warm-seconds", f"{pace.seconds(1.2):.3f}", "--release-seconds", f"{pace.seconds(0.5):.3f}"),
        ]

    async def kill(self, name: str) -> None:
        self._workers[name].send_signal(signal.SIGKILL)
        await self._workers[name].wait()
        self._cast = msgspec.structs.replace(self._cast, killed=self._cast.killed | {name})
        self.say(f"{name} is killed, without a word")

    async def drain(self, name: str) -> None:
        self.say(f"{name} is asked to drain")
        await self._call(lambda service: service.instance.operations.drain(GROUP, name))
        self._cast = msgspec.structs.replace(self._cast, left=self._cast.left | {name})

    def say(self, text: str, cause: str = "") -> None:
        self._lines.append(SceneLine(self.now(), text, cause))
        del self._lines[:-MAX_LINES]

    # --- what the audience sees ----------------------------------------------------------------------------------

    def now(self) -> float:
        return anyio.current_time() - self._began

    async def look(self) -> Scene:
        """Ask the service how things stand, and note what changed."""
        with suppress(AssignerError):
            found = await self._call(lambda service: service.instance.operations.describe(GROUP))
            self._note(found)
            self._description = found
        return seen(
            self._description,
            PARTITIONS,
            NAMES,
            self._cast,
            at=self.now(),
            title=self.title,
            lines=self._lines,
            moves=self._ledger.moves,
        )

    async def _call(self, work: Callable[[Service], Coroutine[Any, Any, T]]) -> T:
        return await anyio.to_thread.run_sync(partial(self._embedded.call, work), abandon_on_cancel=True)

    def _note(self, found: GroupDescription) -> None:
        before = {member.consumer.consumer_name for member in self._description.members} if self._description else set()
        after = {member.consumer.consumer_name for member in found.members}
        for name in sorted(after - before):
            self.say(f"{name} joined")
        for name in sorted(before - after):
            self.say(f"{name} is gone")
        for change in self._ledger.changes(found, self.now()):
            self.say(f"{_listed(change.partitions)} {change.old or 'nobody'} → {change.new}", change.cause)


def _listed(partitions: Sequence[int]) -> str:
    if len(partitions) > 3:
        return f"{len(partitions)} partitions"
    return ",".join(f"{number:02d}" for number in partitions)
