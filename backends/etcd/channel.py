"""Opens a channel to one member: parses endpoints, reads TLS files, sets the channel's options.

Each channel is used for one connection and then discarded, so certificates are read again for every connection and a
hung connection is never shared. Not promised: that the member is healthy; `member` probes that.
"""

from __future__ import annotations

import re

import anyio
import msgspec

from assigner.backend import StoreSettings
from assigner.backends.etcd.rpc import Certificates, Option, RpcChannel, open_channel
from assigner.errors import InvalidInput

MAX_ENDPOINTS = 32
MAX_RESPONSE_BYTES = 32 * 1024 * 1024
"""More than any response needs: pages are limited and watch responses fragmented before."""

_ENDPOINT = re.compile(r"(?:(https?)://)?(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})/?")


class Endpoint(msgspec.Struct, frozen=True):
    address: str
    """`host:port`."""
    secure: bool
    """The endpoint was given as https."""


def parse_endpoints(endpoints: tuple[str, ...]) -> tuple[Endpoint, ...]:
    if not 0 < len(endpoints) <= MAX_ENDPOINTS:
        raise InvalidInput(f"etcd takes 1 to {MAX_ENDPOINTS} endpoints, {len(endpoints)} are given")
    return tuple(_parse_endpoint(text) for text in endpoints)


def _parse_endpoint(text: str) -> Endpoint:
    match = _ENDPOINT.fullmatch(text.strip())
    if match is None or not 0 < int(match[3]) < 65_536:
        raise InvalidInput(f"etcd endpoint {text!r} is not host:port; write for example etcd-0.etcd:2379")
    return Endpoint(f"{match[2]}:{match[3]}", secure=match[1] == "https")


def check_tls(settings: StoreSettings) -> None:
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise InvalidInput(
            "a client certificate for etcd needs both tls_cert and tls_key; give the one that is missing"
        )


async def read_tls(settings: StoreSettings, endpoint: Endpoint) -> Certificates | None:
    """Read the TLS files; None: a connection without TLS. Raises `OSError`."""
    if not (endpoint.secure or settings.tls_ca or settings.tls_cert):
        return None
    return Certificates(await _read(settings.tls_ca), await _read(settings.tls_cert), await _read(settings.tls_key))


async def _read(path: str | None) -> bytes | None:
    return None if path is None else await anyio.Path(path).read_bytes()


def channel_options(settings: StoreSettings) -> list[Option]:
    # A ping is sent after half of the timeout without a byte, and fails after the other half.
    half = max(1, round(settings.hang_timeout * 500))
    options: list[Option] = [
        ("grpc.keepalive_time_ms", half),
        ("grpc.keepalive_timeout_ms", half),
        # keepalive_timeout_ms alone has no effect: the transport waits for 60 s.
        ("grpc.http2.ping_timeout_ms", half),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
        ("grpc.max_send_message_length", -1),
        # A small window: when we read slowly, etcd should coalesce events into large responses, not send many small
        # ones.
        ("grpc.http2.bdp_probe", 0),
        # A new channel must open a new connection, not share a hung one with another channel.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.enable_http_proxy", 0),
    ]
    if settings.tls_server_name:
        options.append(("grpc.ssl_target_name_override", settings.tls_server_name))
    return options


async def connect(settings: StoreSettings, endpoint: Endpoint) -> RpcChannel:
    return open_channel(endpoint.address, channel_options(settings), await read_tls(settings, endpoint))
