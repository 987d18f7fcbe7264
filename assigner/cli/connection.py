"""The commands' way to the service: options every command has, and one channel with a deadline on every call."""

from __future__ import annotations

import difflib
import functools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import click
import msgspec
from grpclib.client import Channel
from grpclib.config import Configuration
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from assigner.cli.exit_codes import Failure, failures
from assigner.proto.kafka_assigner.v1 import AdminStub, ListGroupsRequest

R = TypeVar("R")
DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_TIMEOUT = 10.0


class ServiceTarget(msgspec.Struct, frozen=True):
    """Whom to ask, and how to show the answer."""

    address: str = DEFAULT_ADDRESS
    timeout: float = DEFAULT_TIMEOUT
    output: str = "table"
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    @property
    def as_json(self) -> bool:
        return self.output == "json"

    @property
    def uses_tls(self) -> bool:
        return bool(self.tls or self.tls_ca or self.tls_cert)

    def ssl_context(self) -> ssl.SSLContext | None:
        if not self.uses_tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_cert:
                context.load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise click.UsageError(f"can't use the TLS files: {error}; check the --tls options") from error
        context.set_alpn_protocols(["h2"])
        return context


class Admin:
    """The Admin service with the command's deadline."""

    def __init__(self, stub: AdminStub, timeout: float) -> None:
        self.stub = stub
        self.timeout = timeout

    async def ask(self, method: Callable[..., Awaitable[R]], message: Any) -> R:
        return await method(message, timeout=self.timeout)


def split_address(address: str) -> tuple[str, int]:
    host, colon, port = address.strip().rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65_536:
        raise click.BadParameter(f"{address!r} is not host:port", param_hint="--address")
    return host.removeprefix("[").removesuffix("]"), int(port)


@asynccontextmanager
async def channel_to(target: ServiceTarget) -> AsyncIterator[Channel]:
    host, port = split_address(target.address)
    config = Configuration(http2_connection_window_size=64 * 2**20, http2_stream_window_size=2**24)
    channel = Channel(host, port, ssl=target.ssl_context(), config=config)
    try:
        yield channel
    finally:
        await _close(channel)


async def _close(channel: Channel) -> None:
    """Close, and be done with it: over TLS `close` only begins a farewell, which the end of the loop would cut off and
    leave an open socket behind."""
    protocol = channel._protocol
    transport = getattr(protocol.connection, "_transport", None) if protocol is not None else None
    channel.close()
    if transport is not None:
        transport.abort()
    with anyio.CancelScope(shield=True):
        await anyio.lowlevel.checkpoint()


def ask(target: ServiceTarget, question: Callable[[Admin], Awaitable[R]], *, group: str = "", hint: str = "") -> R:
    """Run `question` against the service, from a synchronous command. Where it is about a `group` that there is not,
    the error names the nearest one there is, and gives the `hint`."""

    async def run() -> R:
        async with channel_to(target) as channel:
            admin = Admin(AdminStub(channel), target.timeout)
            try:
                return await question(admin)
            except GRPCError as error:
                if error.status is not Status.NOT_FOUND or not group:
                    raise
                raise await _with_the_nearest(admin, error, group, hint) from error

    with failures(
        target.address, target.timeout, as_json=target.as_json, tls=target.uses_tls, certified=bool(target.tls_cert)
    ):
        return anyio.run(run)


async def _with_the_nearest(admin: Admin, error: GRPCError, group: str, hint: str) -> GRPCError:
    names = [one.group for one in (await admin.ask(admin.stub.list_groups, ListGroupsRequest())).groups]
    if group in names:
        return error
    near = difflib.get_close_matches(group, names, n=1)
    said = [error.message or "", f"did you mean {near[0]!r}?" if near else "", hint]
    return GRPCError(error.status, "; ".join(part for part in said if part))


def named(_ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty GROUP: it is a variable that is not set, and no wish for the default group."""
    if value == "":
        raise click.BadParameter(
            "GROUP is empty; is a variable not set? The default group has a name, too", param=param
        )
    return value


takes_group = click.argument("group", callback=named)

_OPTIONS = (
    click.option(
        "--address",
        default=DEFAULT_ADDRESS,
        envvar="ASSIGNER_ADDRESS",
        show_default=True,
        metavar="HOST:PORT",
        help="An instance of the service; any will do.",
    ),
    click.option(
        "--timeout",
        default=DEFAULT_TIMEOUT,
        envvar="ASSIGNER_TIMEOUT",
        show_default=True,
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Deadline of each call.",
    ),
    click.option(
        "-o",
        "--output",
        default="table",
        envvar="ASSIGNER_OUTPUT",
        show_default=True,
        type=click.Choice(["table", "json"]),
        help="Tables for people, JSON for programs.",
    ),
    click.option("--tls", is_flag=True, envvar="ASSIGNER_TLS", help="Use TLS with the system's authorities."),
    click.option("--tls-ca", envvar="ASSIGNER_TLS_CA", metavar="FILE", help="Use TLS and trust these authorities."),
    click.option("--tls-cert", envvar="ASSIGNER_TLS_CERT", metavar="FILE", help="Certificate to show."),
    click.option("--tls-key", envvar="ASSIGNER_TLS_KEY", metavar="FILE", help="Key of that certificate."),
)


def reaches_service(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the connection's options and, for them, one `target`."""

    @functools.wraps(command)
    def with_target(**values: Any) -> None:
        fields = {name: values.pop(name) for name in ServiceTarget.__struct_fields__}
        split_address(fields["address"])
        command(target=ServiceTarget(**fields), **values)

    decorated: Callable[..., None] = with_target
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


__all__ = [
    "Admin",
    "Failure",
    "ServiceTarget",
    "ask",
    "channel_to",
    "named",
    "reaches_service",
    "split_address",
    "takes_group",
]
