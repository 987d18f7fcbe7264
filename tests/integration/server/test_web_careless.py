"""What is no HTTP at all: answered or closed, counted, and no reason for a stack in the log."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.integration.server.test_web import Site, running

MALFORMED = {
    "no_http": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "version": b"GET / HTTP/9.9.9\r\n\r\n",
    "header": b"GET / HTTP/1.1\r\nHost x\r\n\r\n",
    "lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "chunks": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "long": b"GET /" + 20_000 * b"x" + b" HTTP/1.1\r\n\r\n",
}


async def said(site: Site, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(-1), 30)
    finally:
        writer.close()


@pytest.mark.parametrize("kind", MALFORMED)
async def test_what_is_no_http_is_logged_by_nobody(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async with running() as site:
        answer = await said(site, MALFORMED[kind])
        assert b"400" in answer.partition(b"\r\n")[0] or not answer
        assert (await site.get("/readyz"))[0] == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("request_", [b"GET / HTTP/1.0\r\n\r\n", b"GET /nowhere HTTP/1.0\r\n\r\n", MALFORMED["header"]])
async def test_no_response_names_the_library_it_was_made_with(request_: bytes) -> None:
    async with running() as site:
        answer = (await said(site, request_)).lower()
    assert b"server: kafka-assigner\r\n" in answer
    assert b"aiohttp" not in answer
    assert b"python" not in answer
