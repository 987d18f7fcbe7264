"""Connects commands to the service: their connection options, and an `AdminClient` with a deadline on every call."""

from __future__ import annotations

import difflib
import functools
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import click
import msgspec
from grpclib.const import Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from assigner.cli.exit_codes import Failure, failures
from assigner.client.admin import DEFAULT_TIMEOUT, AdminClient
from assigner.client.tls import tls_context_from_files
from assigner.client.token import TokenSource
from assigner.errors import AssignerError, InvalidInput
from assigner.model.defaults import GRPC_PORT

R = TypeVar("R")
DEFAULT_ADDRESS = f"127.0.0.1:{GRPC_PORT}"


class ServiceTarget(msgspec.Struct, frozen=True):
    """Which instance a command calls, and how it prints the reply."""

    address: str = DEFAULT_ADDRESS
    timeout: float = DEFAULT_TIMEOUT
    output: str = "table"
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    token_file: str | None = None

    @property
    def as_json(self) -> bool:
        return self.output == "json"

    @property
    def shows_identity(self) -> bool:
        return bool(self.token_file or self.tls_cert)

    @property
    def uses_tls(self) -> bool:
        return bool(self.tls or self.tls_ca or self.tls_cert)

    def ssl_context(self) -> ssl.SSLContext | None:
        if not self.uses_tls:
            return None
        try:
            return tls_context_from_files(self.tls_ca or "", self.tls_cert or "", self.tls_key or "")
        except InvalidInput as error:
            raise click.UsageError(f"{error}; check the --tls options") from error

    def token(self) -> Path | None:
        """The token file, if there is one; it is read once, so that a wrong one is a usage error."""
        if not self.token_file:
            return None
        path = Path(self.token_file)
        try:
            TokenSource(path)
        except InvalidInput as error:
            raise click.UsageError(f"{error}; check --token-file") from error
        return path


def split_address(address: str) -> tuple[str, int]:
    host, colon, port = address.strip().rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65_536:
        raise click.BadParameter(f"{address!r} is not host:port", param_hint="--address")
    return host.removeprefix("[").removesuffix("]"), int(port)


def call_service(
    target: ServiceTarget, request: Callable[[AdminClient], Awaitable[R]], *, group: str = "", hint: str = ""
) -> R:
    """Run `request` with a connected `AdminClient`, from a synchronous command.

    If the service does not know the `group`, the error suggests the most similar name and adds the `hint`.
    """

    async def run() -> R:
        tls, token = target.ssl_context(), target.token()
        async with AdminClient([target.address], tls=tls, token=token, timeout=target.timeout) as admin:
            try:
                return await request(admin)
            except AssignerError as error:
                cause = _cause(error)
                if isinstance(cause, GRPCError) and cause.status is Status.NOT_FOUND and group:
                    cause = await _suggest_group(admin, cause, group, hint)
                raise cause from error

    with failures(
        target.address,
        target.timeout,
        as_json=target.as_json,
        tls=target.uses_tls,
        certified=bool(target.tls_cert),
        identified=target.shows_identity,
    ):
        return anyio.run(run)


def _cause(error: AssignerError) -> Exception:
    """The error that the client's error was raised from; exit codes and remedies depend on it."""
    cause = error.__cause__
    if isinstance(cause, GRPCError | OSError | ProtocolError | StreamTerminatedError):
        return cause
    return StreamTerminatedError(str(error))


async def _suggest_group(admin: AdminClient, error: GRPCError, group: str, hint: str) -> GRPCError:
    try:
        names = [one.group for one in (await admin.list_groups()).groups]
    except AssignerError:
        return error
    if group in names:
        return error
    near = difflib.get_close_matches(group, names, n=1)
    parts = [error.message or "", f"did you mean {near[0]!r}?" if near else "", hint]
    return GRPCError(error.status, "; ".join(part for part in parts if part))


def check_group(_ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty GROUP, which is most likely an unset shell variable and not meant as the default group."""
    if value == "":
        raise click.BadParameter("GROUP is empty; is a variable not set? The default group has a name too", param=param)
    return value


takes_group = click.argument("group", callback=check_group)

_OPTIONS = (
    click.option(
        "--address",
        default=DEFAULT_ADDRESS,
        envvar="ASSIGNER_ADDRESS",
        show_default=True,
        metavar="HOST:PORT",
        help="Address of any instance of the service.",
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
    click.option("--tls", is_flag=True, envvar="ASSIGNER_TLS", help="Use TLS and trust the system's CAs."),
    click.option("--tls-ca", envvar="ASSIGNER_TLS_CA", metavar="FILE", help="Use TLS and trust these CAs."),
    click.option("--tls-cert", envvar="ASSIGNER_TLS_CERT", metavar="FILE", help="Client certificate."),
    click.option("--tls-key", envvar="ASSIGNER_TLS_KEY", metavar="FILE", help="Private key of --tls-cert."),
    click.option(
        "--token-file",
        envvar="ASSIGNER_TOKEN_FILE",
        metavar="FILE",
        help="Token to show; the file is read again when it changes.",
    ),
)


def connects_to_service(command: Callable[..., None]) -> Callable[..., None]:
    """Add the connection options to a command, which receives them as one argument, `target`."""

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
    "AdminClient",
    "Failure",
    "ServiceTarget",
    "call_service",
    "check_group",
    "connects_to_service",
    "split_address",
    "takes_group",
]
