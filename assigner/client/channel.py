"""Opens connections to instances of the service, makes calls over them, and translates errors into three kinds.

`Disconnected`: the connection is gone. `Unavailable`: the instance, or something behind it, can't answer now. Any
other `AssignerError`: the service refused, which a retry will not change.

Not promised: that a call which failed as `Unavailable` had no effect.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import anyio
import anyio.lowlevel
import msgspec
from google.protobuf.message import DecodeError
from grpclib.client import Channel, Stream
from grpclib.config import Configuration
from grpclib.const import Cardinality, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from grpclib.protocol import H2Protocol
from h2.exceptions import H2Error

from assigner import errors
from assigner.client.token import TokenSource
from assigner.errors import AssignerError, InvalidInput
from assigner.logs import get_logger
from assigner.model.defaults import GRPC_PORT

_ERROR_KEY = "assigner-error"
"""Trailing metadata: which error it was, where several share a status."""
_HOST = re.compile(r"[^\s\x00-\x1f\x7f/@?#%\\[\]]+")
"""What separates the parts of a URL is in no host."""
_M = TypeVar("_M")

_log = get_logger(__name__)


class Unavailable(AssignerError):
    """The service can't reply now; a retry may help."""


class Disconnected(Unavailable):
    """The connection to an instance failed or ended."""


class Address(msgspec.Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, default_port: int | None = GRPC_PORT) -> Address:
    """Parse an address: `host`, `host:port` or `[v6]:port`. `default_port`: None if the text has to name one."""
    stripped = text.strip()
    in_brackets = stripped.startswith("[")
    if in_brackets:
        host, _, rest = stripped[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = stripped.partition(":")
    port = port or str(default_port or "")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65_536
    if not is_port or not (_is_v6(host) if in_brackets else _is_host(host)):
        raise InvalidInput(f"address {text!r} is not host:port; write for example assigner.example:{GRPC_PORT}")
    return Address(host, int(port))


def _is_v6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _is_host(host: str) -> bool:
    """Whether it can be looked up. For what can't, asyncio raises errors that are not about connections."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return _HOST.fullmatch(host) is not None


def parse_addresses(addresses: str | Sequence[str]) -> list[Address]:
    """Parse one or more addresses, as a list or separated by commas."""
    listed = addresses.split(",") if isinstance(addresses, str) else addresses
    if not listed:
        raise InvalidInput("addresses is empty; name at least one host:port of the service")
    return [parse_address(one) for one in listed]


class Dialer(msgspec.Struct, frozen=True):
    """Opens connections to instances of the service."""

    tls: ssl.SSLContext | None
    keepalive: float
    """Seconds between pings."""
    keepalive_timeout: float
    token: TokenSource | None = None
    """What every call carries."""

    def dial(self, address: Address) -> Channel:
        """Make a channel that connects at its first call, and notices a peer that stopped responding."""
        config = Configuration(
            # Several times the stream's window, so that an unread stream can't block the other calls.
            http2_connection_window_size=64 * 2**20,
            http2_stream_window_size=2**20,
            _keepalive_time=self.keepalive,
            _keepalive_timeout=self.keepalive_timeout,
            _keepalive_permit_without_calls=True,
            _http2_max_pings_without_data=0,
            _http2_min_sent_ping_interval_without_data=self.keepalive / 2,
        )
        if self.token is not None and self.tls is None and not _is_loopback(address.host):
            _log.warning("token_sent_without_tls", address=str(address), remedy="set `tls`: it can be read on its way")
        channel = _Channel(address.host, address.port, codec=Codec(), ssl=self.tls, config=config)
        channel.token = self.token
        return channel


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Channel(Channel):
    """A channel whose calls carry the client's token, and that leaves no socket behind when it is cancelled while it
    connects."""

    token: TokenSource | None = None
    first_shown = ""
    """The token of the first call: the connection belongs to its principal."""
    _connecting: H2Protocol | None = None

    def request(self, *args: Any, **options: Any) -> Stream[Any, Any]:
        if self.token is not None:
            token = self.token.current()
            self.first_shown = self.first_shown or token
            options["metadata"] = {**(options.get("metadata") or {}), "authorization": f"Bearer {token}"}
        return super().request(*args, **options)

    def _protocol_factory(self) -> H2Protocol:
        self._connecting = super()._protocol_factory()
        return self._connecting

    async def _create_connection(self) -> H2Protocol:
        try:
            return await super()._create_connection()
        except BaseException:
            # After the TLS handshake asyncio closes a connection by waiting for the peer's answer, which the end of the
            # loop would interrupt.
            transport = _transport_of(self._connecting)
            if transport is not None:
                transport.abort()
            raise
        finally:
            self._connecting = None


def _transport_of(protocol: H2Protocol | None) -> asyncio.Transport | None:
    """Return the transport of a connection; None before it is made."""
    return getattr(getattr(protocol, "connection", None), "_transport", None)


def shows_another_token(channel: Channel) -> bool:
    """Whether the client's token is another one than at the channel's first call. If it is another principal's, it is
    refused over this connection and needs one of its own."""
    token = channel.token if isinstance(channel, _Channel) else None
    return token is not None and token.current() != cast(_Channel, channel).first_shown


async def close_channel(channel: Channel) -> None:
    """Close a connection so that nothing of it outlives its event loop.

    `Channel.close` only begins to close: it waits for the peer's close-notify over TLS, and for data that is not sent
    yet. The end of the loop would cut that off and leave an open socket.
    """
    transport = _transport_of(channel._protocol)
    channel.close()
    if transport is not None:
        transport.abort()
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()


class Codec(CodecBase):
    """The client's grpclib codec: for messages of protobuf's C runtime, which consumers use, and for generated ones.

    The generated classes take 30 us per command, which would hold the event loop for a third of a second when ten
    thousand partitions move, and would make the client slow to import.
    """

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message.SerializeToString())

    def decode(self, data: bytes, message_type: Any) -> Any:
        try:
            return message_type.FromString(data)
        except (DecodeError, ValueError, EOFError) as error:
            raise InvalidInput(f"the service sent what is not a {message_type.__name__}: {error}") from None


# --- calls ---------------------------------------------------------------------------------------------------------


async def unary_call(
    channel: Channel,
    path: str,
    request: Any,
    reply: type[_M],
    timeout: float,
    metadata: Mapping[str, str] | None = None,
) -> _M:
    """Make a unary call and return its reply. `path`: `/package.Service/Method`. `timeout`: seconds. `metadata`: what
    the call carries beside the client's token."""
    method = path.rpartition("/")[2]
    stream = channel.request(path, Cardinality.UNARY_UNARY, type(request), reply, metadata=metadata)
    # anyio's timeout instead of grpclib's deadline: leaving the call resets it at the server just the same.
    with anyio.move_on_after(timeout):
        with _typed_errors(stream):
            async with stream:
                await stream.send_message(request, end=True)
                message = await stream.recv_message()
        if message is None:
            raise Unavailable(f"{method} was answered with nothing")
        return message
    raise Unavailable(f"{method} was not answered within {timeout:.1f} s") from TimeoutError()


async def stream_call(channel: Channel, path: str, request: Any, reply: type[_M]) -> AsyncGenerator[_M, None]:
    """Make a streaming call, and yield its messages until the service ends the stream. No deadline."""
    stream = channel.request(path, Cardinality.UNARY_STREAM, type(request), reply)
    with _typed_errors(stream):
        async with stream:
            await stream.send_message(request, end=True)
            async for message in stream:
                yield message


# --- errors --------------------------------------------------------------------------------------------------------


@contextmanager
def _typed_errors(stream: Stream[Any, Any]) -> Iterator[None]:
    """Raises the client's errors in place of grpclib's, which become their causes."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        yield
    except GRPCError as error:
        raise error_of(error.status, error.message or "", _error_name(stream)) from error
    except ssl.SSLCertVerificationError as error:
        raise errors.FailedPrecondition(f"the service's certificate was not accepted: {error}; check `tls`") from error
    except (StreamTerminatedError, OSError, ProtocolError, H2Error, AssertionError, AttributeError) as error:
        # The last two: grpclib's own, when a connection ends in the middle of a message or of a ping's timeout.
        # grpclib wakes its caller by cancelling the task and never takes it back.
        if task is not None and task.cancelling() > before and task.uncancel() > before:
            raise asyncio.CancelledError from error
        raise Disconnected(str(error) or type(error).__name__) from error


def _error_name(stream: Stream[Any, Any]) -> str:
    metadata = stream.trailing_metadata
    return cast(str, metadata.get(_ERROR_KEY, "")) if metadata is not None else ""


_REFUSALS: dict[str, type[AssignerError]] = {
    kind.__name__: kind
    for kind in (
        errors.InvalidName,
        errors.InvalidInput,
        errors.NotRegistered,
        errors.NotTheTarget,
        errors.UnknownTopic,
        errors.UnknownGroup,
        errors.FailedPrecondition,
        errors.GroupKindMismatch,
        errors.SessionHeld,
        errors.Unauthenticated,
        errors.PermissionDenied,
        errors.Superseded,
        errors.Evicted,
    )
}
_STATUSES: dict[Status, type[AssignerError]] = {
    Status.INVALID_ARGUMENT: InvalidInput,
    Status.OUT_OF_RANGE: InvalidInput,
    Status.NOT_FOUND: errors.NotRegistered,
    Status.FAILED_PRECONDITION: errors.FailedPrecondition,
    Status.PERMISSION_DENIED: errors.PermissionDenied,
    Status.UNAUTHENTICATED: errors.Unauthenticated,
    Status.UNIMPLEMENTED: errors.FailedPrecondition,
    Status.ABORTED: errors.Superseded,
}


def error_of(status: Status, message: str, name: str) -> AssignerError:
    """Translate a status to an error: `Unavailable` if it is neither named nor a known refusal."""
    text = message or status.name
    if name in _REFUSALS:
        return _REFUSALS[name](text)
    if name or status not in _STATUSES:
        return Unavailable(f"{text} ({status.name})")
    return _STATUSES[status](text)
