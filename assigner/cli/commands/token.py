"""`assigner token`: makes keys, issues tokens that are signed with them, and shows what a token says."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from assigner.auth.identity import Principal, Role
from assigner.auth.issuing import (
    TokenRequest,
    generate_key,
    issue,
    new_file,
    private_pem,
    public_pem,
    read_private_key,
    write_new,
)
from assigner.auth.keys import public_key, read_keys
from assigner.auth.rules import Denial
from assigner.auth.tokens import LEEWAY, LONGEST, MAX_BYTES, TokenVerifier, UnverifiedToken, unverified
from assigner.cli.exit_codes import REFUSED, USAGE, Failure
from assigner.cli.output import console, print_json, table
from assigner.errors import AssignerError, InvalidInput
from assigner.gateway.login.credentials import credential_line
from assigner.secret_files import why_unread

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_STDIN = "-"


def _duration(_ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Parse a number with a unit into seconds."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", value)
    if found is None:
        text = f"{value!r} is no duration; write a number and a unit: 30d, 12h, 90m, 45s"
        raise click.BadParameter(text, param=param)
    return float(found[1]) * _UNITS[found[2]]


_output = click.option(
    "-o", "--output", default="table", show_default=True, envvar="ASSIGNER_OUTPUT", type=click.Choice(["table", "json"])
)
_force = click.option("--force", is_flag=True, help="Replace files that exist.")


@click.group()
def token() -> None:
    """Make keys, issue tokens with them, and look at tokens."""


@token.command()
@click.option("--private", required=True, metavar="FILE", help="Where the private key goes; with mode 0600.")
@click.option("--public", required=True, metavar="FILE", help="Where the public key goes, for auth.keys.")
@_force
def keygen(private: str, public: str, force: bool) -> None:
    """Make an Ed25519 key pair: the private key signs tokens, the public one is for every instance of the service."""
    key = generate_key()
    with _refusals():
        if Path(private).absolute() == Path(public).absolute():
            raise InvalidInput(f"{private} can't hold both keys; give --public another file")
        with new_file(public, public_pem(key), mode=0o644, replace=force):
            write_new(private, private_pem(key), replace=force)
    click.echo(f"key {public_key(key.public_key()).kid}: private in {private}, public in {public}", err=True)


@token.command("issue")
@click.option("--key", required=True, metavar="FILE", help="The private key, from `assigner token keygen`.")
@click.option("--name", required=True, metavar="NAME", help="Who the token is for; claim `sub`.")
@click.option("--org", default="", metavar="NAME", help="The tenant it belongs to.")
@click.option(
    "--group",
    "groups",
    multiple=True,
    required=True,
    metavar="PATTERN",
    help="Groups it may name, such as 'billing-*'; may be given repeatedly.",
)
@click.option(
    "--names",
    multiple=True,
    metavar="PATTERN",
    help="Consumers or routers it may be, such as 'worker-*'; may be given repeatedly.",
)
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    type=click.Choice([role.value for role in Role]),
    help="What it may do; may be given repeatedly.",
)
@click.option(
    "--expires", required=True, callback=_duration, metavar="DURATION", help="How long it counts: 30d, 12h, 90m."
)
@click.option("--out", metavar="FILE", help="Where the token goes, with mode 0600; else to stdout.")
@_force
def issue_token(
    key: str,
    name: str,
    org: str,
    groups: tuple[str, ...],
    names: tuple[str, ...],
    roles: tuple[str, ...],
    expires: float,
    out: str | None,
    force: bool,
) -> None:
    """Issue a token: what its holder may do, where, as whom, and until when."""
    request = TokenRequest(name=name, organization=org, groups=groups, names=names, roles=roles, lifetime=expires)
    with _refusals():
        signed = issue(read_private_key(key), request, time.time())
        if out is None:
            click.echo(signed)
            return
        write_new(out, f"{signed}\n", replace=force)
    until = _moment(time.time() + expires)
    click.echo(f"token of {name} until {until} in {out}", err=True)


@token.command("user")
@click.option("--name", required=True, metavar="NAME", help="Of the user, at a Kafka client's login.")
@click.option("--org", default="", metavar="NAME", help="The tenant it belongs to.")
@click.option("--group", "groups", multiple=True, required=True, metavar="PATTERN", help="Groups it may use.")
@click.option("--names", multiple=True, metavar="PATTERN", help="Members it may be, such as 'reader*'.")
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    type=click.Choice([role.value for role in Role]),
    help="Its rights.",
)
@click.option(
    "--mechanism", default="SCRAM-SHA-256", show_default=True, type=click.Choice(["SCRAM-SHA-256", "SCRAM-SHA-512"])
)
def kafka_user(
    name: str, org: str, groups: tuple[str, ...], names: tuple[str, ...], roles: tuple[str, ...], mechanism: str
) -> None:
    """Print a user for `gateway.sasl_credentials`: who may log in at the gateway for Kafka clients by a password, which
    is asked for, or read from stdin where that is no terminal. What is printed does not hold it."""
    asked = sys.stdin.isatty()
    password = click.prompt("Password", hide_input=True, confirmation_prompt=True) if asked else sys.stdin.readline()
    with _refusals():
        keys = credential_line(password.rstrip("\r\n"), mechanism)
    listed = {"role": roles, "groups": groups, **({"names": names} if names else {})}
    lines = ["[[user]]", f"name = {json.dumps(name)}", *([f"org = {json.dumps(org)}"] if org else [])]
    lines += [f"{field} = {json.dumps(list(values))}" for field, values in listed.items()]
    click.echo("\n".join([*lines, f"{mechanism.lower()} = {json.dumps(keys)}"]))


@token.command()
@click.argument("file", default=_STDIN)
@click.option(
    "--keys", multiple=True, metavar="PATH", help="Verify with the public keys of this file or folder; repeatable."
)
@_output
def show(file: str, keys: tuple[str, ...], output: str) -> None:
    """Show what the token in FILE (default: stdin) says and how long it counts. With --keys, verify it: exit code 1 if
    the service would refuse it."""
    now = time.time()
    with _refusals(as_json=output == "json"):
        text = _read_token(file)
        found = unverified(text)
        if isinstance(found, Denial):
            raise InvalidInput(found.message)
        verdict = _verify(text, keys, now)
    fields = _fields(found, now)
    fields["verified"] = None if verdict is None else isinstance(verdict, Principal)
    if output == "json":
        print_json(fields)
    else:
        console().print(table("", ("claim", "value"), _rows(fields, now)))
    if isinstance(verdict, Denial):
        raise Failure(REFUSED, verdict.message, kind="refused_token", as_json=output == "json")


def _read_token(file: str) -> str:
    if file.startswith("eyJ") and file.count(".") == 2:
        raise InvalidInput("a token on the command line stands in the process list; give a file, or pipe it in")
    try:
        if file == _STDIN:
            text = sys.stdin.read(2 * MAX_BYTES)
        else:
            with Path(file).open() as opened:
                text = opened.read(2 * MAX_BYTES)
    except OSError as error:
        reason = f"{why_unread(error)}, or make one: assigner token issue"
        raise InvalidInput(f"can't read a token from {file}: {reason}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} holds no text; is it the file of a token?") from error
    if not text.strip():
        raise InvalidInput(f"there is no token in {file}; make one: assigner token issue")
    return text.strip()


def _verify(text: str, keys: tuple[str, ...], now: float) -> Principal | Denial | None:
    if not keys:
        return None
    live = read_keys(keys)
    return TokenVerifier(lambda: live).verify(text, "", now)


def _fields(token: UnverifiedToken, now: float) -> dict[str, Any]:
    claims = token.claims
    return {
        "name": claims.sub,
        "organization": claims.org,
        "roles": list(claims.roles),
        "groups": list(claims.groups),
        "names": list(claims.names),
        "audience": [claims.aud] if isinstance(claims.aud, str) else list(claims.aud),
        "issued_at": claims.iat,
        "not_before": claims.nbf,
        "expires_at": claims.exp,
        "valid_for": max(0.0, round(claims.exp - now, 3)),
        "id": claims.jti,
        "kid": token.kid,
    }


def _rows(fields: dict[str, Any], now: float) -> Iterator[tuple[str, str]]:
    for name in ("name", "organization", "roles", "groups", "names", "audience", "id", "kid"):
        value = fields[name]
        yield name, ", ".join(value) if isinstance(value, list) else value
    for name in ("issued_at", "not_before", "expires_at"):
        if fields[name] is not None:
            yield name.replace("_", " "), _moment(fields[name])
    yield "valid", _validity(fields["not_before"], fields["expires_at"], now)
    verified = fields["verified"]
    yield "signature", "not looked at; give --keys" if verified is None else "verified" if verified else "not accepted"


def _validity(begins: float | None, ends: float, now: float) -> str:
    if now >= ends + LEEWAY:
        return f"no more, since {_span(now - ends)}"
    if ends > now + LONGEST + LEEWAY:
        return f"never: it ends in more than {LONGEST / _UNITS['d']:g} days"
    if begins is not None and begins > now:
        return f"not yet, in {_span(begins - now)}"
    return f"for {_span(ends - now)}"


def _span(seconds: float) -> str:
    """A duration in its two largest units, such as `29 d 23 h`."""
    rest, parts = max(0, int(seconds)), []
    for unit, size in sorted(_UNITS.items(), key=lambda one: -one[1]):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} (no date)"


@contextmanager
def _refusals(*, as_json: bool = False) -> Iterator[None]:
    try:
        yield
    except AssignerError as error:
        raise Failure(USAGE, str(error), kind="invalid_input", as_json=as_json) from error
