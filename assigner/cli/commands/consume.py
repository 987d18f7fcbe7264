"""`assigner consume`: joins a group as a consumer that does no work and prints every event that it receives."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from datetime import UTC, datetime
from typing import Any, Protocol

import anyio
import click
from rich.text import Text

from assigner.cli.connection import ServiceTarget, connects_to_service
from assigner.cli.exit_codes import REFUSED, SHOW_IDENTITY, TIMED_OUT, UNREACHABLE, Failure
from assigner.cli.output import console
from assigner.client import (
    AssignerConsumer,
    Ending,
    Handler,
    Ownership,
    Release,
    TopicPartition,
    Unavailable,
    Warm,
)
from assigner.client.consumer import DRAIN_WITHIN
from assigner.clock import Clock, SystemClock
from assigner.errors import AssignerError, Unauthenticated

_STYLES = {
    "assigned": "bold green",
    "warm": "yellow",
    "warmed": "yellow",
    "release": "cyan",
    "released": "cyan",
    "revoked": "bold red",
    "discard": "dim",
    "standby": "blue",
    "no standby": "dim",
}
_GOLDEN_RATIO = 0.618


class DrainUnfinished(Exception):
    """The consumer left before all of its partitions were handed over."""


class PrintEvent(Protocol):
    def __call__(self, event: str, partition: TopicPartition | Ownership | None = None, /, **facts: Any) -> None: ...


class EventPrinter:
    """Prints one line per event, as text or as JSON."""

    def __init__(self, *, as_json: bool, clock: Clock) -> None:
        self._as_json = as_json
        self._clock = clock
        self._console = console()

    def __call__(self, event: str, partition: TopicPartition | Ownership | None = None, /, **facts: Any) -> None:
        shown = {name: value for name, value in facts.items() if value not in ("", None)}
        if partition is not None:
            shown = {"topic": partition.topic, "partition": partition.partition, **shown}
        if isinstance(partition, Ownership):
            shown["epoch"] = partition.epoch
        if self._as_json:
            line = {"event": event, "time": self._clock.wall(), **shown}
            click.echo(json.dumps(line, ensure_ascii=False))
        else:
            self._console.print(self._text(event, shown), soft_wrap=True)

    def _text(self, event: str, shown: dict[str, Any]) -> Text:
        at = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%H:%M:%S.%f")[:-3]
        what = f"{shown.pop('topic')}/{shown.pop('partition')}" if "partition" in shown else ""
        rest = "  ".join(f"{name} {value}" for name, value in shown.items())
        return Text.assemble(
            (f"{at}  ", "dim"), (f"{event:10}", _STYLES.get(event, "bold")), f"{what:20} ", (rest, "dim")
        )


class PrintingHandler(Handler):
    """Prints each call of the handler, and simulates the time that warming and releasing take.

    The time varies by partition, from 0.5 to 1.5 times the seconds given, so that partitions do not move in lockstep.
    """

    def __init__(self, print_event: PrintEvent, *, warm_seconds: float = 0.0, release_seconds: float = 0.0) -> None:
        self._print = print_event
        self._warm_seconds = warm_seconds
        self._release_seconds = release_seconds

    async def assigned(self, partition: Ownership) -> None:
        self._print("assigned", partition)

    async def warm(self, partition: TopicPartition, order: Warm) -> None:
        copy = "standby" if order.standby else ""
        self._print("warm", partition, cause=order.cause, copy=copy, **{"from": order.current_owner})
        await anyio.sleep(_varied(self._warm_seconds, partition.partition))
        self._print("warmed", partition)

    async def release(self, partition: Ownership, order: Release) -> None:
        self._print("release", partition, cause=order.cause, to=order.new_owner)
        await anyio.sleep(_varied(self._release_seconds, partition.partition))
        self._print("released", partition)

    async def revoked(self, partition: Ownership, reason: str) -> None:
        self._print("revoked", partition, reason=reason)

    async def discard(self, partition: TopicPartition) -> None:
        self._print("discard", partition)

    async def standby_added(self, partition: TopicPartition) -> None:
        self._print("standby", partition)

    async def standby_removed(self, partition: TopicPartition) -> None:
        self._print("no standby", partition)


def _varied(seconds: float, partition: int) -> float:
    return seconds * (0.5 + partition * _GOLDEN_RATIO % 1)


@click.command()
@click.argument("group")
@click.option("--name", help="Name of the consumer.  [default: host and process]")
@click.option(
    "--topic", "topics", multiple=True, help="Subscribe to this topic; repeatable. Default: all topics of the group."
)
@click.option("--capacity", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True)
@click.option("--rack", default="", help="Rack of the consumer, as in Kafka's client.rack.")
@click.option("--warm-seconds", type=click.FloatRange(min=0), default=0.0, help="Simulated time to warm a partition.")
@click.option("--release-seconds", type=click.FloatRange(min=0), default=0.0, help="Simulated time to release one.")
@click.option("--drain", is_flag=True, help="Hand everything over before leaving; a second signal leaves at once.")
@click.option(
    "--drain-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=DRAIN_WITHIN,
    show_default=True,
    metavar="SECONDS",
    help="With --drain: leave after this long even if partitions are left.",
)
@connects_to_service
def consume(target: ServiceTarget, group: str, name: str | None, **options: Any) -> None:
    """Join GROUP as a consumer and print its events until SIGTERM or SIGINT."""
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    print_event = EventPrinter(as_json=target.as_json, clock=SystemClock())
    try:
        anyio.run(_consume, target, group, name, options, print_event)
    except DrainUnfinished as error:
        message = (
            f"left before everything was handed over, within {options['drain_timeout']:g} s or by a second signal: "
            "its partitions move when its lease ends; look whether the service runs, or raise --drain-timeout"
        )
        raise Failure(TIMED_OUT, message, kind="not_drained", as_json=target.as_json) from error
    except Unavailable as error:
        remedy = "is `assigner serve` running? pass --address"
        message = f"can't reach {target.address} ({error}): {remedy}"
        raise Failure(UNREACHABLE, message, kind="unreachable", as_json=target.as_json) from error
    except AssignerError as error:
        unknown = isinstance(error, Unauthenticated) and not target.shows_identity
        message = f"{error} ({SHOW_IDENTITY})" if unknown else str(error)
        raise Failure(REFUSED, message, kind=type(error).__name__, as_json=target.as_json) from error


async def _consume(
    target: ServiceTarget, group: str, name: str, options: dict[str, Any], print_event: EventPrinter
) -> None:
    handler = PrintingHandler(
        print_event, warm_seconds=options["warm_seconds"], release_seconds=options["release_seconds"]
    )
    consumer = AssignerConsumer(
        target.address,
        group,
        name,
        options["topics"],
        handler,
        capacity=options["capacity"],
        rack=options["rack"],
        tls=target.ssl_context(),
        token=target.token(),
        connect_timeout=target.timeout,
    )
    signals: list[signal.Signals] = []
    drain_within: float = options["drain_timeout"] if options["drain"] else 0.0

    def on_signal(number: signal.Signals) -> None:
        signals.append(number)
        if drain_within and len(signals) == 1:
            print_event("draining", consumer=name, within=drain_within)

    async def print_joined() -> None:
        await consumer.wait_for(lambda one: one.is_connected)
        print_event("joined", group=group, consumer=name)

    joined = asyncio.create_task(print_joined(), name="prints that it joined")
    try:
        ending = await consumer.run_until_signal(drain_within=drain_within, on_signal=on_signal)
    finally:
        joined.cancel()
        # An error that ends the consumer is raised above; here the task's result is only retrieved.
        await asyncio.gather(joined, return_exceptions=True)
    print_event("left", how=ending.value)
    if drain_within and signals and ending is not Ending.DRAINED:
        raise DrainUnfinished
