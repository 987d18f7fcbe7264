"""Settings of the gRPC server: where it listens, every limit it enforces, and how it knows who calls. Times in
seconds, sizes in bytes."""

from __future__ import annotations

import ipaddress
import math
from enum import Enum

import msgspec

from assigner.errors import InvalidInput
from assigner.model.defaults import GRPC_PORT

_SMALLEST_WINDOW = 65_535
_LARGEST_WINDOW = 2**31 - 1


class Reflection(str, Enum):
    """Where gRPC reflection is offered."""

    LOOPBACK = "loopback"
    """Where only this machine can connect."""
    ON = "on"
    OFF = "off"


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    port: int = GRPC_PORT
    """0: any free one."""
    insecure: bool = False
    """Serve without TLS on an address that others can reach."""
    tls_certificate: str = ""
    """A file in PEM, the chain included."""
    tls_key: str = ""
    tls_client_ca: str = ""
    """If set, clients must show a certificate of this authority."""
    tls_reload_interval: float = 5.0
    """How often the files are checked for a change."""
    reflection: Reflection = Reflection.LOOPBACK

    backlog: int = 4096
    max_connections: int = 10_000
    """Lowered at the start to what the files that the process may open allow."""
    max_connections_per_address: int = 5_000
    """Half of all, because many consumers may stand behind one address: a NAT, a node of a cluster, a proxy."""
    max_streams: int = 20_000
    """Calls in progress over all connections."""
    max_streams_per_connection: int = 1_000
    max_streams_without_consumer: int = 100
    """Of a connection over which no consumer is registered; each that is adds ten, up to the bound above."""
    max_message_bytes: int = 1024 * 1024
    """Of one request."""
    max_metadata_bytes: int = 16 * 1024
    """Of a call's headers; a connection whose headers exceed twice this is closed."""
    max_batch: int = 1_000
    """Elements of any list in a request."""
    stream_window: int = 256 * 1024
    connection_window: int = 1024 * 1024
    """What a peer may send before it is read: the memory one connection can take up."""

    handshake_timeout: float = 10.0
    """For TLS, and again for the HTTP/2 preface."""
    first_request_timeout: float = 30.0
    request_timeout: float = 10.0
    """From a call's headers to the end of its request message."""
    idle_timeout: float = 300.0
    """A connection without calls is closed after this; clients open another one when they need it."""
    ping_interval: float = 5.0
    ping_timeout: float = 20.0
    """A peer that was silent for so long, pings included, is dead."""
    slow_consumer_timeout: float = 30.0
    """A stream whose reader reads nothing for so long is closed."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, bool | str) or name == "port":
                continue
            if not math.isfinite(value) or value <= 0:
                raise InvalidInput(f"{name} is {value}; it must be a number above 0")
        if not 0 <= self.port <= 65_535:
            raise InvalidInput(f"port is {self.port}; it must be 0 to 65535")
        for name in ("stream_window", "connection_window"):
            if not _SMALLEST_WINDOW <= getattr(self, name) <= _LARGEST_WINDOW:
                raise InvalidInput(f"{name} is {getattr(self, name)}; HTTP/2 allows 65535 to 2147483647")
        if self.ping_timeout <= self.ping_interval:
            raise InvalidInput(
                f"ping_timeout {self.ping_timeout} must be longer than ping_interval {self.ping_interval}, "
                "or every peer is taken for dead"
            )
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise InvalidInput("tls_certificate and tls_key go together; set both or none")
        if self.tls_client_ca and not self.tls_certificate:
            raise InvalidInput("tls_client_ca needs tls_certificate and tls_key too")


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    required: bool | None = None
    """Whether every call must show an identity; None: where others than this machine can connect."""
    keys: tuple[str, ...] = ()
    """Files or folders with the public keys that tokens are verified with."""
    certificates: str = ""
    """A file with the rules that make principals of TLS client certificates."""
    reload_interval: float = 5.0
    """How often these files are checked for a change."""

    @property
    def recognizes(self) -> bool:
        """Whether any caller can be recognized; else identity is off."""
        return bool(self.keys or self.certificates)


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
