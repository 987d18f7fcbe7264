"""Wraps aetcd and grpcio, which no other module imports: the generated stubs, the messages and the kinds of calls.

aetcd's own client is not used, for the reasons in `docs/decisions/2026-11-16-own-etcd-channel-and-watch-loop.md`. The
libraries are untyped, so the rest of the package sees them through the protocols below.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio
import msgspec
from aetcd.rpc import (
    AuthenticateRequest,
    AuthStub,
    Compare,
    DeleteRangeRequest,
    Event,
    KeyValue,
    KVStub,
    LeaseGrantRequest,
    LeaseKeepAliveRequest,
    LeaseRevokeRequest,
    LeaseStub,
    LeaseTimeToLiveRequest,
    MaintenanceStub,
    PutRequest,
    RangeRequest,
    RequestOp,
    ResponseHeader,
    StatusRequest,
    TxnRequest,
    WatchCancelRequest,
    WatchCreateRequest,
    WatchProgressRequest,
    WatchRequest,
    WatchResponse,
    WatchStub,
)

from assigner.aio.supervision import is_cancelled

__all__ = [
    "CHANNEL_CLOSED",
    "EOF",
    "AuthStub",
    "AuthenticateRequest",
    "Certificates",
    "Code",
    "Compare",
    "DeleteRangeRequest",
    "Event",
    "KVStub",
    "KeyValue",
    "LeaseGrantRequest",
    "LeaseKeepAliveRequest",
    "LeaseRevokeRequest",
    "LeaseStub",
    "LeaseTimeToLiveRequest",
    "MaintenanceStub",
    "Metadata",
    "Option",
    "PutRequest",
    "RangeRequest",
    "RequestOp",
    "ResponseHeader",
    "RpcChannel",
    "RpcError",
    "StatusRequest",
    "StreamCall",
    "StreamMethod",
    "TxnRequest",
    "UnaryMethod",
    "UsageError",
    "WatchCancelRequest",
    "WatchCreateRequest",
    "WatchProgressRequest",
    "WatchRequest",
    "WatchResponse",
    "WatchStub",
    "cancellable",
    "cancelled",
    "never_sent",
    "open_channel",
]

Code = grpc.StatusCode
RpcError = grpc.aio.AioRpcError
UsageError = grpc.aio.UsageError
"""Raised for a call on a closed channel: nothing was sent."""
CHANNEL_CLOSED = "the channel was closed before the request was sent"
EOF = grpc.aio.EOF
"""Returned by a stream's `read` once the server has closed the stream without an error."""

Metadata = tuple[tuple[str, str], ...]
Option = tuple[str, str | int]


class UnaryMethod(Protocol):
    def __call__(
        self, request: Any, *, timeout: float, metadata: Metadata, wait_for_ready: bool = False
    ) -> Awaitable[Any]: ...


def cancellable(method: UnaryMethod) -> UnaryMethod:
    """Wrap a grpc method for use in anyio's cancel scopes: every failure becomes an `RpcError`.

    A grpc call raises a CancelledError of its own, even if the channel was closed and the task was not cancelled. anyio
    does not recognise it: it would leave every scope and end the task silently.
    """

    async def call(request: Any, *, timeout: float, metadata: Metadata, wait_for_ready: bool = False) -> Any:
        try:
            return await method(request, timeout=timeout, metadata=metadata, wait_for_ready=wait_for_ready)
        except asyncio.CancelledError as error:
            if await is_cancelled():
                raise
            raise cancelled() from error
        except UsageError as error:
            raise never_sent() from error

    return call


def never_sent() -> Exception:
    """Make the error for a request that could not be sent because the channel was closed."""
    error: Exception = RpcError(Code.UNAVAILABLE, details=CHANNEL_CLOSED)
    return error


def cancelled() -> Exception:
    """Make the error for a call that was cancelled with its channel, not by the task that waits for it."""
    error: Exception = RpcError(Code.CANCELLED, details="the call was cancelled with its channel")
    return error


class StreamCall(Protocol):
    async def write(self, request: Any) -> None: ...

    async def read(self) -> Any: ...

    def cancel(self) -> bool: ...


class StreamMethod(Protocol):
    def __call__(self, *, metadata: Metadata) -> StreamCall: ...


class RpcChannel(Protocol):
    async def close(self, grace: float | None = None) -> None: ...


class Certificates(msgspec.Struct, frozen=True):
    """TLS files as PEM bytes. `ca` None: the system's authorities; `cert` None: no client certificate."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None


def open_channel(target: str, options: Sequence[Option], certificates: Certificates | None) -> RpcChannel:
    """Open a channel, which connects at the first call."""
    channel: RpcChannel
    if certificates is None:
        channel = grpc.aio.insecure_channel(target, options=list(options))
    else:
        credentials = grpc.ssl_channel_credentials(certificates.ca, certificates.key, certificates.cert)
        channel = grpc.aio.secure_channel(target, credentials, options=list(options))
    return channel
