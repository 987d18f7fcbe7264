"""Tells how far committed offsets are behind the end of their partitions, where a command is given Kafka's address."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import anyio.to_thread
import click
import msgspec

from assigner.cli.commands.offsets.kafka import KafkaGroups, properties_in

Lags = dict[tuple[str, int], int]
"""(topic, partition) -> records that are in Kafka and not committed."""


class KafkaAccess(msgspec.Struct, frozen=True):
    """Where a command finds the brokers."""

    bootstrap: str
    properties: dict[str, str]


def asks_kafka(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options `--kafka` and `--kafka-properties` to a command, which receives them as `kafka`, or None."""

    @functools.wraps(command)
    def with_kafka(**values: Any) -> None:
        bootstrap, path = values.pop("kafka"), values.pop("kafka_properties")
        if path and not bootstrap:
            raise click.UsageError("--kafka-properties goes with --kafka")
        command(kafka=KafkaAccess(bootstrap, properties_in(path)) if bootstrap else None, **values)

    decorated: Callable[..., None] = with_kafka
    for option in (
        click.option(
            "--kafka-properties", metavar="FILE", help="librdkafka properties for TLS and SASL, a name=value in a line."
        ),
        click.option(
            "--kafka", metavar="BOOTSTRAP", help="Ask these brokers for the ends of partitions, to show the lag."
        ),
    ):
        decorated = option(decorated)
    return decorated


async def lags_of(committed: dict[tuple[str, int], int], access: KafkaAccess, timeout: float) -> Lags:
    """Partitions that Kafka does not have any more are left out."""
    kafka = KafkaGroups(access.bootstrap, access.properties, timeout)
    ends = await anyio.to_thread.run_sync(lambda: kafka.ends(sorted(committed)), abandon_on_cancel=True)
    return {one: max(0, end - committed[one]) for one, end in ends.items()}
