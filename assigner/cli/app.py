"""The entry point of the command line: finds a command by name and imports its module only when it runs.

So `assigner groups` does not import the whole service.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import Any

import click

from assigner import __version__
from assigner.cli.exit_codes import USAGE, Failure

COMMANDS = {
    "serve": "serve:serve",
    "gateway": "serve:gateway",
    "groups": "groups:groups",
    "describe": "groups:describe",
    "history": "groups:history",
    "topics": "groups:topics",
    "drain": "drain:drain",
    "pause": "groups:pause",
    "resume": "groups:resume",
    "rebalance": "groups:rebalance",
    "loads": "loads:loads",
    "offsets": "offsets:offsets",
    "options": "groups:group_options",
    "plan": "plan:plan",
    "pipeline": "pipeline:pipeline",
    "consume": "consume:consume",
    "config": "config:config",
    "token": "token:token",
    "credential": "credential:credential",
    "demo": "demo:demo",
}


class LazyGroup(click.Group):
    """Imports a command's module when it is first needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(import_module(f"assigner.cli.commands.{module}"), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. An error while writing a file, or stdout on a full disk, ends it with a message."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except OSError as error:
            if error.errno == errno.ENOSPC:
                # The unwritten data is still buffered and would fail again when the process exits.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
            raise Failure(USAGE, f"{error}; choose a place that can be written", kind="file") from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="assigner")
def main() -> None:
    """Assign Kafka partitions to consumers and hand them over.

    Exit codes: 0 done, 1 refused by the service, 2 wrong usage or settings, 3 unreachable, 4 timed out waiting.
    """
