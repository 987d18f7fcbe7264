"""`assigner config` prints and checks the settings of `assigner serve`, and `takes_settings` adds them as flags."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from enum import Enum
from typing import Any

import click

from assigner.cli.exit_codes import USAGE, Failure
from assigner.cli.output import print_json
from assigner.errors import InvalidInput
from assigner.settings import Loaded, load
from assigner.settings.catalog import Leaf, leaves
from assigner.settings.rendering import as_json, as_toml, schema


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of the settings to a command, which receives all of them as one argument, `loaded`."""

    @functools.wraps(command)
    def with_settings(**values: Any) -> None:
        flags = {key: values.pop(_parameter(key)) for key in _flagged()}
        flags["topics"] = _topics(flags["topics"])
        command(loaded=read_settings(flags, values.pop("set_"), values.pop("config")), **values)

    decorated: Callable[..., None] = with_settings
    for leaf in reversed(list(_flagged().values())):
        decorated = _option(leaf)(decorated)
    decorated = click.option("--set", "set_", multiple=True, metavar="KEY=VALUE", help="Set any key.")(decorated)
    return click.option("--config", metavar="FILE", help="TOML file with settings. [env: ASSIGNER_CONFIG]")(decorated)


def read_settings(flags: dict[str, Any], assignments: tuple[str, ...], config: str | None) -> Loaded:
    try:
        return load(flags=flags, assignments=assignments, environment=os.environ, config=config)
    except InvalidInput as error:
        raise Failure(USAGE, str(error), kind="invalid_settings") from error


def _flagged() -> dict[str, Leaf]:
    return {name: leaf for name, leaf in leaves().items() if leaf.key.flag}


def _parameter(key: str) -> str:
    return "setting_" + key.replace(".", "_")


def _option(leaf: Leaf) -> Callable[[Callable[..., None]], Callable[..., None]]:
    names = (leaf.key.flag, _parameter(leaf.key.name))
    help_text = f"{leaf.key.meaning} [{leaf.key.name}]"
    if leaf.key.name == "topics":
        return click.option(*names, multiple=True, metavar="[GROUP/]TOPIC=N", help=help_text)
    if leaf.type is bool:
        return click.option(*names, flag_value="true", default=None, help=help_text)
    if isinstance(leaf.type, type) and issubclass(leaf.type, Enum):
        return click.option(*names, type=click.Choice([member.value for member in leaf.type]), help=help_text)
    return click.option(*names, metavar="VALUE", help=help_text)


def _topics(given: tuple[str, ...]) -> dict[str, dict[str, int]] | None:
    found: dict[str, dict[str, int]] = {}
    for text in given:
        name, equals, count = text.rpartition("=")
        if not equals or not (count.isascii() and count.isdecimal()):
            raise click.UsageError(f"--topic {text!r} is not GROUP/TOPIC=N or TOPIC=N")
        group, _, topic = name.rpartition("/")
        found.setdefault(group or "default", {})[topic] = int(count)
    return found or None


@click.group()
def config() -> None:
    """Show, check and describe the settings."""


@config.command("print")
@click.option("-o", "--output", type=click.Choice(["toml", "json"]), default="toml", show_default=True)
@takes_settings
def print_settings(loaded: Loaded, output: str) -> None:
    """Print the settings in force and where each came from. Secrets are masked."""
    if output == "json":
        print_json(as_json(loaded))
    else:
        click.echo(as_toml(loaded), nl=False)


@config.command()
@takes_settings
def validate(loaded: Loaded) -> None:
    """Check the settings and list every problem. Exit code 2 if there is one."""
    for note in loaded.notes:
        click.secho(f"note: {note}", fg="yellow", err=True)
    click.echo("the settings are valid")


@config.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of the settings file."""
    print_json(schema())
