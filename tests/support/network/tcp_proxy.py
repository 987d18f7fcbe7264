"""A TCP proxy between a client and a server that drops what the test selects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class TcpProxy:
    def __init__(self, target: str) -> None:
        self._host, _, port = target.partition(":")
        self._port = int(port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._stopped = False
        self.swallows_answers = False
        """While set, what the server says does not arrive."""
        self.delay = 0.0
        """Seconds by which each piece is late, in either direction."""
        self.endpoint = ""
        self.connections = 0

    async def start(self, port: int = 0) -> None:
        self._stopped = False
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.endpoint = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Refuse new connections and cut the present ones."""
        if self._server is not None:
            self._stopped = True
            # What was accepted a moment ago is not served yet, and it takes asyncio some turns to get there. A server
            # that is closed meanwhile forgets the socket (`Server._attach` fails), which is found when it is collected.
            for listening in self._server.sockets:
                asyncio.get_running_loop().remove_reader(listening.fileno())
            for _ in range(10):
                await asyncio.sleep(0)
            self._server.close()
            self.cut()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._server.wait_closed(), 1)
            # Whoever is being dialled finds its client gone; a task that the loop had to cancel would complain.
            if self._serving:
                await asyncio.wait(self._serving, timeout=1)

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self._stopped:
            to_client.transport.abort()
            return
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        # From the first moment on: a cut may come while the server is being dialled.
        writers = {to_client}
        self._writers.add(to_client)
        try:
            from_server, to_server = await asyncio.open_connection(self._host, self._port)
            writers.add(to_server)
            self._writers.add(to_server)
            await asyncio.gather(
                self._pump(from_client, to_server, answers=False), self._pump(from_server, to_client, answers=True)
            )
        except OSError:
            # Nobody is there to speak to; the client finds its connection gone.
            return
        finally:
            self._writers -= writers
            for writer in writers:
                writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65_536):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if answers and self.swallows_answers:
                    continue
                sink.write(data)
                await sink.drain()
        sink.transport.abort()


@asynccontextmanager
async def proxied(target: str) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(target)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
