"""How long the event loop kept others waiting: a 5 ms ticker's delay, and the longest callback."""

from __future__ import annotations

import asyncio
import gc
import time
from asyncio import events
from typing import Any, Self

TICK = 0.005


class LoopLag:
    """`async with LoopLag() as lag:` measures the running loop while the block runs."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.longest = 0.0
        self.longest_is = ""
        self.longest_collection = 0.0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._tick())
        self._original = events.Handle._run
        events.Handle._run = self._timed()  # type: ignore[method-assign]
        gc.callbacks.append(self._collecting)
        return self

    async def __aexit__(self, *_: object) -> None:
        gc.callbacks.remove(self._collecting)
        events.Handle._run = self._original  # type: ignore[method-assign]
        self._task.cancel()

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.perf_counter()
        else:
            self.longest_collection = max(self.longest_collection, time.perf_counter() - self._collection_began)

    def reset(self) -> None:
        self.delays.clear()
        self.longest_collection = 0.0
        self.longest, self.longest_is = 0.0, ""

    def percentile(self, share: float) -> float:
        if not self.delays:
            return 0.0
        ordered = sorted(self.delays)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    async def _tick(self) -> None:
        while True:
            due = time.perf_counter() + TICK
            await asyncio.sleep(TICK)
            self.delays.append(max(0.0, time.perf_counter() - due))

    def _timed(self) -> Any:
        original, lag, now = self._original, self, time.perf_counter

        def run(handle: Any) -> None:
            began = now()
            original(handle)
            took = now() - began
            if took > lag.longest:
                lag.longest, lag.longest_is = took, _name(handle)

        return run


def _name(handle: Any) -> str:
    task = getattr(handle._callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return repr(handle)[:200]
    return f"{task.get_name()} {getattr(task.get_coro(), '__qualname__', '')}"
