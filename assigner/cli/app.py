"""The command line, put together from its commands."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import click

from assigner.cli import admin
from assigner.cli.configuring import config
from assigner.cli.consuming import consume
from assigner.cli.demonstrating import demo
from assigner.cli.draining import drain
from assigner.cli.serving import serve


def _version() -> str:
    try:
        return version("kafka-assigner")
    except PackageNotFoundError:
        return "unknown"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(_version(), prog_name="assigner")
def main() -> None:
    """Assign Kafka partitions to consumers and hand them over.

    Exit codes: 0 done, 1 refused by the service, 2 wrong usage or settings, 3 unreachable, 4 waited in vain.
    """


for _command in (
    serve,
    admin.groups,
    admin.describe,
    admin.topics,
    drain,
    admin.pause,
    admin.resume,
    admin.rebalance,
    admin.group_options,
    consume,
    config,
    demo,
):
    main.add_command(_command)
