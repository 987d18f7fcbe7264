"""A client that gives up while it connects leaves no socket behind."""

from __future__ import annotations

import asyncio
import ssl
from asyncio.trsock import TransportSocket

import pytest
import trustme
from grpclib.protocol import H2Protocol

from assigner.client.channel import Dialer, close_channel, parse_address, unary_call
from assigner.proto.kafka_assigner import v1
from assigner.testing.waiting import eventually


async def test_a_call_that_is_cancelled_right_after_the_handshake_closes_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authority = trustme.CA()
    at_server, at_client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(at_server)
    authority.configure_trust(at_client)
    accepted: list[asyncio.StreamWriter] = []

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # It reads nothing, so that it does not answer the client's goodbye.
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        accepted.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=at_server)
    channel = Dialer(at_client, 60, 60).dial(parse_address(f"127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    renewal = asyncio.create_task(unary_call(channel, "/x.Y/Z", v1.RenewRequest(), v1.RenewResponse, 60))
    sockets: list[TransportSocket] = []
    made = H2Protocol.connection_made

    def connection_made(protocol: H2Protocol, transport: asyncio.Transport) -> None:
        made(protocol, transport)
        sockets.append(transport.get_extra_info("socket"))
        renewal.cancel()

    monkeypatch.setattr(H2Protocol, "connection_made", connection_made)
    with pytest.raises(asyncio.CancelledError):
        await renewal
    await close_channel(channel)
    [socket] = sockets
    try:
        await eventually(lambda: socket.fileno() == -1, within=5, what="the client's socket is closed")
    finally:
        for writer in accepted:
            writer.transport.abort()
        server.close()
        await server.wait_closed()
