"""A broker that answers ApiVersions and Metadata with what the test says, over real sockets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from assigner.gateway.codec import NO_TIME, encode_answer, error_code, make, nested, response_class
from assigner.gateway.wire.frames import read_head

API_VERSIONS, METADATA = 18, 3


class SmallBroker:
    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.port = 0
        self.listed: dict[int, tuple[str, int]] = {}
        """What it says of the cluster: hosts and ports by node id."""
        self.topics: dict[str, int] = {}
        self.newest_api_versions = 3
        self.ranges = {METADATA: (0, 12), API_VERSIONS: (0, 4)}
        self.is_silent = False
        self.asked: list[tuple[int, int]] = []
        """API and version of each request."""
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[SmallBroker]:
        await self.start()
        self.listed = {self.node_id: ("127.0.0.1", self.port)}
        try:
            yield self
        finally:
            await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End as a process does: nothing listens, and connections are gone."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        self.hang_up()
        await asyncio.sleep(0)

    def hang_up(self) -> None:
        """Close all connections, and accept others."""
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                head = read_head(await reader.readexactly(size))
                assert head is not None
                self.asked.append((head.api, head.version))
                if not self.is_silent:
                    writer.write(self._answer(head.api, head.version, head.correlation))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    def _answer(self, api: int, version: int, correlation: int) -> bytes:
        if api == METADATA:
            return encode_answer(METADATA, version, correlation, self._metadata(version))
        code = 0 if version <= self.newest_api_versions else 35
        form = 0 if code else version
        schema = response_class(API_VERSIONS, form)
        key = nested(schema, "ApiVersion")
        keys = tuple(key(api_key=one, min_version=low, max_version=high) for one, (low, high) in self.ranges.items())
        answer = make(schema, error_code=error_code(code), api_keys=keys, throttle_time=NO_TIME)
        return encode_answer(API_VERSIONS, form, correlation, answer)

    def _metadata(self, version: int) -> Any:
        schema = response_class(METADATA, version)
        broker, topic = nested(schema, "MetadataResponseBroker"), nested(schema, "MetadataResponseTopic")
        partition = nested(schema, "MetadataResponsePartition")
        return make(
            schema,
            throttle_time=NO_TIME,
            brokers=tuple(
                make(broker, node_id=node_id, host=host, port=port, rack=None)
                for node_id, (host, port) in self.listed.items()
            ),
            cluster_id="small",
            controller_id=self.node_id,
            topics=tuple(
                make(
                    topic,
                    error_code=error_code(0),
                    name=name,
                    topic_id=None,
                    is_internal=False,
                    partitions=tuple(
                        make(partition, error_code=error_code(0), partition_index=n, leader_id=self.node_id)
                        for n in range(count)
                    ),
                )
                for name, count in self.topics.items()
            ),
        )
