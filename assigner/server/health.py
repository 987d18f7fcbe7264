"""The standard health service, tied to whether this instance is ready to serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from grpclib._typing import ICheckable
from grpclib.health.check import CheckBase
from grpclib.health.service import Health


class Readiness(CheckBase):
    """Answers from the callable at each check; watchers are told when `refresh` finds a change."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready
        self._last: bool | None = None
        self._watchers: set[asyncio.Event] = set()

    def refresh(self) -> None:
        now = self._ready()
        if now != self._last:
            self._last = now
            for watcher in self._watchers:
                watcher.set()

    def __status__(self) -> bool:
        return self._ready()

    async def __check__(self) -> bool:
        return self._ready()

    async def __subscribe__(self) -> asyncio.Event:
        watcher = asyncio.Event()
        self._watchers.add(watcher)
        return watcher

    async def __unsubscribe__(self, event: asyncio.Event) -> None:
        self._watchers.discard(event)


def health_service(readiness: Readiness, services: list[ICheckable]) -> Health:
    """Health of the services and, under the empty name, of the whole."""
    return Health({service: [readiness] for service in services})
