"""One connection to a broker: opened and logged in, it answers one question after the other, or becomes a pipe.

Questions are the gateway's own. As a pipe it carries what one client sends, byte by byte, and what the broker answers,
so the correlation ids stay the client's. Nothing is sent again: a connection that is lost is lost for its client too.

A login that the broker limits in time (KIP-368) is not renewed: the broker closes the connection then, and the client
connects again.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
from typing import Any, Protocol, Self

import anyio

from assigner.errors import SourceUnavailable
from assigner.gateway.checks import Malformed
from assigner.gateway.codec import API_VERSIONS, decode_response, encode, has_tagged_header, make, request_class
from assigner.gateway.login.scram import HASHES, ScramClient, ScramError
from assigner.gateway.requests import Entity
from assigner.gateway.upstream.security import BrokerLogin, BrokerSecurity
from assigner.gateway.wire.frames import FrameReader, ProtocolViolation, Receiver, Wanted, skip_tags
from assigner.logs.printable import one_line

CLIENT_ID = "kafka-assigner-gateway"
LARGEST_ANSWER = 256 * 1024 * 1024
"""Bytes of an answer that is read whole."""
_FLUSH_WITHIN = 30.0
"""Seconds that a broker may take to read what its client sent before it left."""
_SASL_HANDSHAKE = 17
_SASL_AUTHENTICATE = 36
_UNSUPPORTED_VERSION = 35
_INT16 = struct.Struct(">h")
_CORRELATION = struct.Struct(">i")


class Pipe(Receiver, Protocol):
    """The client's end of a connection that became a pipe."""

    def broker_is_full(self, full: bool) -> None:
        """The broker does not read as fast as it is sent to, or does so again."""
        ...

    def broker_is_lost(self) -> None: ...


class BrokerConnection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(self)
        self._pipe: Pipe | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._aborting: asyncio.TimerHandle | None = None
        self._correlation = 0
        self._asking = anyio.Lock()
        self.lost = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, host: str, port: int, security: BrokerSecurity, timeout: float) -> Self:
        """Connect and log in. Raises `SourceUnavailable`."""
        name = f"broker {host}:{port}"
        connection: Self | None = None
        try:
            with anyio.fail_after(timeout):
                loop = asyncio.get_running_loop()
                server_name = host if security.tls is not None else None
                _, connection = await loop.create_connection(
                    cls, host, port, ssl=security.tls, server_hostname=server_name
                )
                if security.login is not None:
                    await connection._log_in(security.login)
        except BaseException as error:
            if connection is not None:
                connection.abort()
            if isinstance(error, TimeoutError):
                raise SourceUnavailable(f"{name} did not answer within {timeout:g} s; is it overloaded?") from None
            if isinstance(error, OSError | Malformed | ScramError | ProtocolViolation):
                raise SourceUnavailable(f"{name} can't be reached: {_reason(error)}") from error
            raise
        return connection

    # --- questions ---

    async def ask(self, api: int, version: int, request: Entity, *, timeout: float) -> Entity:
        """Send the request and return the answer. Raises `SourceUnavailable`."""
        body = await self.ask_within(timeout, api, version, encode(request))
        try:
            return decode_response(api, version, body)
        except Malformed as error:
            self.abort()
            raise SourceUnavailable(f"a broker's answer to API {api} can't be read: {error}") from error

    async def ask_within(self, timeout: float, api: int, version: int, body: bytes) -> bytes:
        """Send the request's body and return that of the answer. Raises `SourceUnavailable`."""
        try:
            with anyio.fail_after(timeout):
                return await self.ask_bytes(api, version, body)
        except TimeoutError:
            self.abort()
            raise SourceUnavailable(f"a broker did not answer API {api} within {timeout:g} s") from None
        except (OSError, Malformed) as error:
            self.abort()
            raise SourceUnavailable(f"a broker did not answer API {api}: {_reason(error)}") from error

    async def ask_bytes(self, api: int, version: int, body: bytes) -> bytes:
        """Send the request's body and return that of the answer. Raises `OSError` or `Malformed`."""
        async with self._asking:
            transport = self._transport
            if transport is None or self.lost.done():
                raise ConnectionResetError("the connection was lost")
            self._correlation += 1
            head = struct.pack(">hhih", api, version, self._correlation, len(CLIENT_ID)) + CLIENT_ID.encode()
            if request_class(api, version).__flexible__:
                head += b"\0"
            self._answer = asyncio.get_running_loop().create_future()
            transport.write(_CORRELATION.pack(len(head) + len(body)) + head + body)
            try:
                frame = await self._answer
            finally:
                self._answer = None
        if len(frame) < 4 or _CORRELATION.unpack_from(frame)[0] != self._correlation:
            self.abort()
            raise Malformed("it belongs to another request")
        if not has_tagged_header(api, version):
            return frame[4:]
        try:
            return frame[skip_tags(frame, 4) :]
        except IndexError:
            raise Malformed("it ends within its header") from None

    async def ask_versions(self, *, timeout: float) -> Entity:
        """Ask which APIs the broker has, in a version that it understands. Raises `SourceUnavailable`."""
        newest = make(request_class(API_VERSIONS, 3), client_software_name=CLIENT_ID, client_software_version="1")
        body = await self.ask_within(timeout, API_VERSIONS, 3, encode(newest))
        version = 3
        if body[:2] == _INT16.pack(_UNSUPPORTED_VERSION):
            version, body = 0, await self.ask_within(timeout, API_VERSIONS, 0, b"")
        try:
            return decode_response(API_VERSIONS, version, body)
        except Malformed as error:
            self.abort()
            raise SourceUnavailable(f"a broker's ApiVersions can't be read: {error}") from error

    async def _log_in(self, login: BrokerLogin) -> None:
        handshake = request_class(_SASL_HANDSHAKE, 1)(mechanism=login.mechanism)
        answer = decode_response(_SASL_HANDSHAKE, 1, await self.ask_bytes(_SASL_HANDSHAKE, 1, encode(handshake)))
        if int(answer.error_code):
            raise ScramError(f"it offers {', '.join(answer.mechanisms)} and not {login.mechanism}")
        if login.mechanism not in HASHES:
            await self._authenticate(f"\0{login.user}\0{login.password}".encode())
            return
        exchange = ScramClient(login.mechanism, login.user, login.password, secrets.token_urlsafe(24))
        challenge = await self._authenticate(exchange.first())
        # The iterations take milliseconds, on a thread.
        final = await anyio.to_thread.run_sync(exchange.final, challenge)
        exchange.check(await self._authenticate(final))

    async def _authenticate(self, message: bytes) -> bytes:
        request = request_class(_SASL_AUTHENTICATE, 0)(auth_bytes=message)
        answer = decode_response(_SASL_AUTHENTICATE, 0, await self.ask_bytes(_SASL_AUTHENTICATE, 0, encode(request)))
        if int(answer.error_code):
            raise ScramError(f"it refuses the login: {answer.error_message}")
        return bytes(answer.auth_bytes)

    # --- the pipe ---

    def join(self, pipe: Pipe) -> None:
        """Become the pipe's other end, for good."""
        self._pipe = pipe

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def pause_reading(self, paused: bool) -> None:
        """Stop or go on taking what the broker sends."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def close(self) -> None:
        """Close once all has been sent, or after a while."""
        if self._transport is not None and not self.lost.done():
            self._transport.close()
            self._aborting = asyncio.get_running_loop().call_later(_FLUSH_WITHIN, self.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- what the transport calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        keep_alive(transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
        except (ProtocolViolation, Malformed):
            # What comes next can't be told from what was before.
            self._reader.close()
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._reader.close()
        if self._aborting is not None:
            self._aborting.cancel()
        if not self.lost.done():
            self.lost.set_result(None)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error if isinstance(error, OSError) else ConnectionResetError("it hung up"))
        if self._pipe is not None:
            self._pipe.broker_is_lost()

    def pause_writing(self) -> None:
        if self._pipe is not None:
            self._pipe.broker_is_full(True)

    def resume_writing(self) -> None:
        if self._pipe is not None:
            self._pipe.broker_is_full(False)

    # --- the frames ---

    @property
    def is_busy(self) -> bool:
        return self._pipe is not None and self._pipe.is_busy

    def begins(self, size: int, start: bytes) -> Wanted:
        if self._pipe is not None:
            return self._pipe.begins(size, start)
        if not 4 <= size <= LARGEST_ANSWER:
            raise ProtocolViolation("upstream", f"a broker's answer has {size} bytes")
        return Wanted.WHOLE

    def frame(self, body: bytes) -> None:
        if self._pipe is not None:
            self._pipe.frame(body)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(body)

    def piece(self, data: bytes, *, is_last: bool) -> None:
        if self._pipe is not None:
            self._pipe.piece(data, is_last=is_last)


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Have the system notice a peer whose machine is gone, as Kafka's brokers do."""
    found = transport.get_extra_info("socket")
    if found is not None:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _reason(error: BaseException) -> str:
    text: Any = error.strerror if isinstance(error, OSError) and error.strerror else error
    return one_line(str(text) or type(error).__name__)
