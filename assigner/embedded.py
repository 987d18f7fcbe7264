"""Runs the whole service on a thread of a synchronous program: tests, notebooks, a Spark driver.

`with EmbeddedAssigner(topics={"g": {"events": 8}}) as assigner: ... assigner.address`. It listens on loopback, on
free ports, and keeps its state in memory unless `settings` say otherwise. An error at the start is raised to the
caller; a later one is raised when the context is left.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from assigner.errors import AssignerError
from assigner.server import ServerSettings
from assigner.service import Service
from assigner.settings import HttpSettings, Settings

T = TypeVar("T")
START_WITHIN = 30.0


class EmbeddedAssigner:
    def __init__(
        self,
        settings: Settings | None = None,
        *,
        topics: Mapping[str, Mapping[str, int]] | None = None,
        start_within: float = START_WITHIN,
    ) -> None:
        """`topics`: group -> topic -> partitions. `settings` are taken as they are, ports included."""
        base = settings or Settings(grpc=ServerSettings(port=0), http=HttpSettings(port=0))
        if topics is not None:
            base = msgspec.structs.replace(base, topics={group: dict(of) for group, of in topics.items()})
        self._settings = base
        self._start_within = start_within
        self._thread: threading.Thread | None = None
        self._started: Future[Service] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._started = Future()
        self._thread = threading.Thread(target=self._run, name="assigner", daemon=True)
        self._thread.start()
        try:
            self._service = self._started.result(self._start_within)
        except TimeoutError:
            self.close()
            raise AssignerError(f"the embedded assigner did not come up within {self._start_within:g} s") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if self._failure and error is None:
            raise self._failure

    def close(self) -> None:
        """Shut the service down in order, and wait until it has ended."""
        if self._loop and self._thread and self._thread.is_alive() and self._started.done():
            self._loop.call_soon_threadsafe(self._service.stop)
        if self._thread:
            self._thread.join(self._settings.shutdown_timeout + 10)

    # --- for the program ------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The gRPC address, as host:port."""
        return self._service.address

    @property
    def http_address(self) -> str:
        return f"{self._settings.http.host}:{self._service.web.port}"

    @property
    def service(self) -> Service:
        """The running service. Touch it only from its own loop: see `call`."""
        return self._service

    def call(self, work: Callable[[Service], Coroutine[Any, Any, T]], timeout: float | None = 30.0) -> T:
        """Run `work(service)` on the service's loop and return what it returns."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work(self._service), self._loop).result(timeout)

    def set_topic(self, group: str, topic: str, partitions: int) -> None:
        self.call(lambda service: service.instance.operations.set_topic(group, topic, partitions))

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that embeds us
            if not self._started.done():
                self._started.set_exception(error)
            else:
                self._failure = error

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with Service(self._settings) as service:
            await service.wait_ready()
            self._started.set_result(service)
            await service.run_until_stopped()
