"""`assigner credential`: makes the entry of a user for the file of Kafka clients' credentials."""

from __future__ import annotations

import json
import sys

import click

from assigner.auth.identity import Role, principal
from assigner.cli.exit_codes import USAGE, Failure
from assigner.errors import AssignerError
from assigner.gateway.login.credentials import credential_line
from assigner.gateway.login.scram import HASHES, LEAST_ITERATIONS, MOST_ITERATIONS
from assigner.secret_files import read_secret


@click.command()
@click.option("--name", required=True, metavar="NAME", help="The user, as clients give it in sasl.username.")
@click.option("--org", default="", metavar="NAME", help="The tenant it belongs to.")
@click.option(
    "--group", "groups", multiple=True, required=True, metavar="PATTERN", help="Groups it may name; repeatable."
)
@click.option("--names", multiple=True, metavar="PATTERN", help="Members it may be; repeatable.")
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    type=click.Choice([role.value for role in Role]),
    help="What it may do; may be given repeatedly.",
)
@click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(list(HASHES)),
    help="What the keys are for; default: both. PLAIN uses either.",
)
@click.option(
    "--iterations", default=LEAST_ITERATIONS, show_default=True, type=click.IntRange(LEAST_ITERATIONS, MOST_ITERATIONS)
)
@click.option(
    "--password-file", metavar="FILE", help="Where the password is; else it is asked for, or read from stdin."
)
def credential(
    name: str,
    org: str,
    groups: tuple[str, ...],
    names: tuple[str, ...],
    roles: tuple[str, ...],
    mechanisms: tuple[str, ...],
    iterations: int,
    password_file: str | None,
) -> None:
    """Print the entry of a user for gateway.sasl_credentials: its rights, and keys in place of its password."""
    try:
        principal(name, organization=org, groups=groups, names=names, roles=roles)
        password = _password(password_file)
        lines = {one: credential_line(password, one, iterations=iterations) for one in mechanisms or HASHES}
    except AssignerError as error:
        raise Failure(USAGE, str(error), kind="credential") from error
    entry: dict[str, str | tuple[str, ...]] = {
        "name": name,
        "org": org,
        "role": roles,
        "groups": groups,
        "names": names,
    }
    click.echo("[[user]]")
    # A string, or a list of them, has the same form in JSON and in TOML.
    for field, value in (entry | {mechanism.lower(): line for mechanism, line in lines.items()}).items():
        if value:
            click.echo(f"{field} = {json.dumps(value, ensure_ascii=False)}")


def _password(file: str | None) -> str:
    if file is not None:
        return read_secret(file)
    if sys.stdin.isatty():
        answer: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return answer
    found = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not found:
        raise Failure(
            USAGE, "there is no password on stdin; write it there, or give --password-file", kind="credential"
        )
    return found
