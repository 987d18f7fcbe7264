"""A TCP proxy that can keep what the client says from arriving, and let it arrive later, however late."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class HoldingProxy:
    """Start it on the loop it is to run on. What is held arrives in order, also when its sender is long gone."""

    def __init__(self, target: str) -> None:
        host, _, port = target.partition(":")
        self._target = (host, int(port))
        self._held: list[tuple[asyncio.StreamWriter, bytes]] = []
        self._holding = False
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.endpoint = ""
        self.answered = 0
        """Bytes of the server's answers."""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in tuple(self._writers):
                writer.transport.abort()

    async def hold(self) -> None:
        self._holding = True

    async def release(self) -> int:
        """Deliver what was held; how many bytes."""
        self._holding = False
        held, self._held = self._held, []
        for sink, data in held:
            sink.write(data)
        return sum(len(data) for _, data in held)

    def holds(self, text: str) -> bool:
        """Whether the text is among what waits."""
        return text.encode() in b"".join(data for _, data in tuple(self._held))

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection(*self._target)
        except OSError:
            to_client.transport.abort()
            return
        writers = {to_client, to_server}
        self._writers |= writers
        try:
            await asyncio.gather(self._requests(from_client, to_server), self._answers(from_server, to_client))
        finally:
            self._writers -= writers
            for writer in writers:
                writer.transport.abort()

    async def _requests(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65_536):
                if self._holding:
                    self._held.append((sink, data))
                else:
                    sink.write(data)
                    await sink.drain()

    async def _answers(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65_536):
                self.answered += len(data)
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
