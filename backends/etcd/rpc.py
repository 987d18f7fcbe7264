"""The only module that knows aetcd and grpcio: the generated stubs, the messages and the shapes of a call.

Everything of aetcd's client is left aside; what it hides or gets wrong is told in
`docs/decisions/2026-11-16-own-etcd-channel-and-watch-loop.md`. The libraries are untyped, so the rest of the package
sees them through the protocols below.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

import anyio.lowlevel
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

__all__ = [
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
    "WatchCancelRequest",
    "WatchCreateRequest",
    "WatchProgressRequest",
    "WatchRequest",
    "WatchResponse",
    "WatchStub",
    "cancellable",
    "open_channel",
]

Code = grpc.StatusCode
RpcError = grpc.aio.AioRpcError
EOF = grpc.aio.EOF
"""What a stream's `read` returns once the server has ended it in good order."""

Metadata = tuple[tuple[str, str], ...]
Option = tuple[str, str | int]


class UnaryMethod(Protocol):
    def __call__(
        self, request: Any, *, timeout: float, metadata: Metadata, wait_for_ready: bool = False
    ) -> Awaitable[Any]: ...


def cancellable(method: UnaryMethod) -> UnaryMethod:
    """The same method, for use in anyio's cancel scopes.

    A call of grpc's answers a cancellation with a CancelledError of its own making. anyio does not know it for its
    own: it would pass every scope and end the task, in silence."""

    async def call(request: Any, *, timeout: float, metadata: Metadata, wait_for_ready: bool = False) -> Any:
        try:
            return await method(request, timeout=timeout, metadata=metadata, wait_for_ready=wait_for_ready)
        except asyncio.CancelledError:
            # Raises anyio's own, if a scope around us is cancelled.
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise

    return call


class StreamCall(Protocol):
    async def write(self, request: Any) -> None: ...

    async def read(self) -> Any: ...

    def cancel(self) -> bool: ...


class StreamMethod(Protocol):
    def __call__(self, *, metadata: Metadata) -> StreamCall: ...


class RpcChannel(Protocol):
    async def close(self, grace: float | None = None) -> None: ...


class Certificates(msgspec.Struct, frozen=True):
    """PEM bytes; None takes the machine's authorities, or sends no client certificate."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None


def open_channel(target: str, options: Sequence[Option], certificates: Certificates | None) -> RpcChannel:
    """A channel, which connects by itself at the first call."""
    channel: RpcChannel
    if certificates is None:
        channel = grpc.aio.insecure_channel(target, options=list(options))
    else:
        credentials = grpc.ssl_channel_credentials(certificates.ca, certificates.key, certificates.cert)
        channel = grpc.aio.secure_channel(target, credentials, options=list(options))
    return channel
