"""Exit codes of the commands, which scripts can rely on, and `Failure`, whose message names the remedy.

| code | meaning |
|---|---|
| 0 | done |
| 1 | the service refused |
| 2 | the command line or the settings are wrong |
| 3 | the service can't be reached, or did not answer in time |
| 4 | a timeout given on the command line passed |
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click
from grpclib.const import Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from assigner.logs.printable import as_json, shown

REFUSED, USAGE, UNREACHABLE, TIMED_OUT = 1, 2, 3, 4

SHOW_IDENTITY = "pass --token-file, or --tls-cert and --tls-key"
_REMEDIES = {
    Status.NOT_FOUND: "`assigner groups` lists what there is",
    Status.UNIMPLEMENTED: "the server is older than this command; upgrade it",
    Status.UNAUTHENTICATED: SHOW_IDENTITY,
    Status.PERMISSION_DENIED: "another token or certificate may be allowed to",
    Status.RESOURCE_EXHAUSTED: "a limit of the server was reached; see its metrics",
}


class Failure(click.ClickException):
    """Ends the command with an exit code and a message. `kind` is the machine-readable reason of JSON output."""

    def __init__(self, code: int, message: str, *, kind: str, as_json: bool = False) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]
        self.kind = kind
        self.as_json = as_json

    def show(self, file: IO[Any] | None = None) -> None:
        if self.as_json:
            click.echo(as_json({"error": {"kind": self.kind, "message": self.message}}), file=file, err=True)
        else:
            click.secho(f"Error: {shown(self.message)}", fg="red", file=file, err=True)


@contextmanager
def failures(
    address: str,
    timeout: float,
    *,
    as_json: bool,
    tls: bool = False,
    certified: bool = False,
    identified: bool = False,
) -> Iterator[None]:
    """Convert the errors of a call into a `Failure`. `tls`, `certified`, `identified`: whether the call uses TLS, a
    client certificate, and either that or a token."""
    try:
        yield
    except GRPCError as error:
        raise _refusal(error, address, as_json=as_json, identified=identified) from error
    except TimeoutError as error:
        message = f"{address} did not answer within {timeout:g} s: raise --timeout, or look at its /readyz"
        raise Failure(UNREACHABLE, message, kind="timeout", as_json=as_json) from error
    except (StreamTerminatedError, ProtocolError) as error:
        raise _connection_ended(str(error), address, as_json=as_json, tls=tls, certified=certified) from error
    except OSError as error:
        if tls and _is_rejection(error):
            raise _connection_ended(_reason(error), address, as_json=as_json, tls=tls, certified=certified) from error
        message = f"can't reach {address} ({_reason(error)}): is `assigner serve` running? pass --address"
        raise Failure(UNREACHABLE, message, kind="unreachable", as_json=as_json) from error


def _is_rejection(error: OSError) -> bool:
    """Whether the peer ended the connection, not this process."""
    ours = isinstance(error, ssl.SSLCertVerificationError)
    return isinstance(error, ConnectionResetError | ssl.SSLError) and not ours


def _connection_ended(reason: str, address: str, *, as_json: bool, tls: bool, certified: bool) -> Failure:
    message = f"{address} ended the connection ({reason}): {_hint(tls=tls, certified=certified)}"
    return Failure(UNREACHABLE, message, kind="unreachable", as_json=as_json)


def _hint(*, tls: bool, certified: bool) -> str:
    """Why a peer may have ended the connection without a status."""
    if not tls:
        return "does it want TLS? pass --tls, or --tls-ca FILE"
    if not certified:
        return "it probably wants a certificate: pass --tls-cert and --tls-key"
    return "it may not trust this certificate, or speak no TLS at all: check --tls-cert, or look at its log"


def _reason(error: OSError) -> str:
    if isinstance(error.errno, int) and error.errno > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error)).splitlines()[0]


def _refusal(error: GRPCError, address: str, *, as_json: bool, identified: bool) -> Failure:
    reason = error.message or error.status.name
    if error.status in (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED):
        message = f"{address} can't answer now: {reason}; try again, or look at its /readyz"
        return Failure(UNREACHABLE, message, kind=error.status.name.lower(), as_json=as_json)
    # Whoever has shown an identity is told by the service what is wrong with it.
    known = identified and error.status is Status.UNAUTHENTICATED
    remedy = None if known else _REMEDIES.get(error.status)
    message = f"{reason} ({remedy})" if remedy else reason
    return Failure(REFUSED, message, kind=error.status.name.lower(), as_json=as_json)
