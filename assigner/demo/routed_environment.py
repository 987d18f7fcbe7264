"""Runs the demo with routers: pods that serve requests, and routers that send them, each a process."""

from __future__ import annotations

import signal
import subprocess
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from assigner.demo import child
from assigner.demo.environment import DemoEnvironment, Pace, demo_settings
from assigner.demo.snapshot import Snapshot
from assigner.demo.traffic import RouterCounts, RouterTraffic, TrafficRecord
from assigner.model.records import HandoffMode
from assigner.settings import Settings

PODS = ("pod-1", "pod-2", "pod-3", "pod-4")
ROUTERS = ("router-1", "router-2", "router-3")
LINE = 10_000
"""Bytes that a router's line may have."""


def routed_settings(pace: Pace) -> Settings:
    settings = demo_settings(pace)
    # One owner at a time: between two owners, requests wait in the routers.
    return msgspec.structs.replace(
        settings, group=msgspec.structs.replace(settings.group, handoff_mode=HandoffMode.EXCLUSIVE)
    )


class RoutedEnvironment(DemoEnvironment):
    names = PODS

    def __init__(self, pace: Pace) -> None:
        super().__init__(pace, routed_settings(pace))
        self._routers: dict[str, anyio.abc.Process] = {}
        self._traffic: dict[str, RouterTraffic] = {}
        self._record = TrafficRecord()
        self._readers: anyio.abc.TaskGroup
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._readers = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._readers.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._end(self._routers.values())
            await super().__aexit__(kind, error, trace)
        await self._stack.aclose()

    def _command(self, name: str) -> list[str]:
        pace = self.pace
        # The release is what requests of a frozen partition wait for: long enough for people to see them wait.
        seconds = f"{pace.seconds(1.2):.3f}", f"{pace.seconds(0.8):.3f}"
        return child.command("assigner.demo.pod", self._embedded.address, name, *seconds)

    async def start_routers(self, *names: str) -> None:
        self.add_line(f"starting {', '.join(names)}")
        for name in names:
            process = await anyio.open_process(
                child.command("assigner.demo.router", self._embedded.address, name), stderr=subprocess.DEVNULL
            )
            self._routers[name] = process
            self._traffic[name] = RouterTraffic(name)
            self._readers.start_soon(self._read, name, process)

    def stop_router(self, name: str) -> None:
        self.add_line(f"{name} is told to leave")
        self._routers[name].send_signal(signal.SIGTERM)

    async def _read(self, name: str, process: anyio.abc.Process) -> None:
        """Keep what a router says until it has ended."""
        assert process.stdout
        lines = BufferedByteReceiveStream(process.stdout)
        decode = msgspec.json.Decoder(RouterCounts).decode
        try:
            while True:
                self._traffic[name].add(decode(await lines.receive_until(b"\n", LINE)), self.now())
        except (anyio.EndOfStream, anyio.IncompleteRead):
            self._traffic[name].present = False
            self.add_line(f"{name} is gone")

    async def take_snapshot(self) -> Snapshot:
        snapshot = await super().take_snapshot()
        traffic = self._record.take(self._traffic.values(), self.now())
        return msgspec.structs.replace(snapshot, traffic=traffic)
