"""`assigner consume`: a consumer that works on nothing and tells everything, to see what a group does to it."""

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

from assigner.cli.connection import ServiceTarget, reaches_service
from assigner.cli.exit_codes import REFUSED, TIMED_OUT, UNREACHABLE, Failure
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
from assigner.errors import AssignerError

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
_GOLDEN = 0.618


class DrainUnfinished(Exception):
    """The consumer had to leave before all was handed over."""


class Tell(Protocol):
    def __call__(self, event: str, partition: TopicPartition | Ownership | None = None, /, **facts: Any) -> None: ...


class Teller:
    """One line per event."""

    def __init__(self, *, as_json: bool, clock: Clock) -> None:
        self._as_json = as_json
        self._clock = clock
        self._console = console()

    def __call__(self, event: str, partition: TopicPartition | Ownership | None = None, /, **facts: Any) -> None:
        known = {name: value for name, value in facts.items() if value not in ("", None)}
        if partition is not None:
            known = {"topic": partition.topic, "partition": partition.partition, **known}
        if isinstance(partition, Ownership):
            known["epoch"] = partition.epoch
        if self._as_json:
            line = {"event": event, "time": self._clock.wall(), **known}
            click.echo(json.dumps(line, ensure_ascii=False))
        else:
            self._console.print(self._text(event, known), soft_wrap=True)

    def _text(self, event: str, known: dict[str, Any]) -> Text:
        at = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%H:%M:%S.%f")[:-3]
        what = f"{known.pop('topic')}/{known.pop('partition')}" if "partition" in known else ""
        rest = "  ".join(f"{name} {value}" for name, value in known.items())
        return Text.assemble(
            (f"{at}  ", "dim"), (f"{event:10}", _STYLES.get(event, "bold")), f"{what:20} ", (rest, "dim")
        )


class TellingHandler(Handler):
    """Takes its time for warming and releasing, if told to: half to one and a half times the seconds given, by
    partition, so that a crowd does not move in step."""

    def __init__(self, tell: Tell, *, warm_seconds: float = 0.0, release_seconds: float = 0.0) -> None:
        self._tell = tell
        self._warm_seconds = warm_seconds
        self._release_seconds = release_seconds

    async def assigned(self, partition: Ownership) -> None:
        self._tell("assigned", partition)

    async def warm(self, partition: TopicPartition, order: Warm) -> None:
        copy = "standby" if order.standby else ""
        self._tell("warm", partition, cause=order.cause, copy=copy, **{"from": order.current_owner})
        await anyio.sleep(_spread(self._warm_seconds, partition.partition))
        self._tell("warmed", partition)

    async def release(self, partition: Ownership, order: Release) -> None:
        self._tell("release", partition, cause=order.cause, to=order.new_owner)
        await anyio.sleep(_spread(self._release_seconds, partition.partition))
        self._tell("released", partition)

    async def revoked(self, partition: Ownership, reason: str) -> None:
        self._tell("revoked", partition, reason=reason)

    async def discard(self, partition: TopicPartition) -> None:
        self._tell("discard", partition)

    async def standby_added(self, partition: TopicPartition) -> None:
        self._tell("standby", partition)

    async def standby_removed(self, partition: TopicPartition) -> None:
        self._tell("no standby", partition)


def _spread(seconds: float, partition: int) -> float:
    return seconds * (0.5 + partition * _GOLDEN % 1)


@click.command()
@click.argument("group")
@click.option("--name", help="Name of the consumer.  [default: host and process]")
@click.option("--topic", "topics", multiple=True, help="Subscribe to this topic; none: to all of the group.")
@click.option("--capacity", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True)
@click.option("--rack", default="", help="Where the consumer is.")
@click.option("--warm-seconds", type=click.FloatRange(min=0), default=0.0, help="About how long warming takes.")
@click.option("--release-seconds", type=click.FloatRange(min=0), default=0.0, help="About how long releasing takes.")
@click.option("--drain", is_flag=True, help="Hand everything over before leaving; a second signal leaves at once.")
@click.option(
    "--drain-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=DRAIN_WITHIN,
    show_default=True,
    metavar="SECONDS",
    help="For --drain; then leave all the same.",
)
@reaches_service
def consume(target: ServiceTarget, group: str, name: str | None, **wishes: Any) -> None:
    """Join GROUP as a consumer and print what happens, until SIGTERM or SIGINT."""
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    tell = Teller(as_json=target.as_json, clock=SystemClock())
    try:
        anyio.run(_consume, target, group, name, wishes, tell)
    except DrainUnfinished as error:
        message = (
            f"left before everything was handed over, within {wishes['drain_timeout']:g} s or by a second signal: "
            "its partitions move when its lease ends; look whether the service runs, or raise --drain-timeout"
        )
        raise Failure(TIMED_OUT, message, kind="not_drained", as_json=target.as_json) from error
    except Unavailable as error:
        remedy = "is `assigner serve` running? pass --address"
        message = f"can't reach {target.address} ({error}): {remedy}"
        raise Failure(UNREACHABLE, message, kind="unreachable", as_json=target.as_json) from error
    except AssignerError as error:
        raise Failure(REFUSED, str(error), kind=type(error).__name__, as_json=target.as_json) from error


async def _consume(target: ServiceTarget, group: str, name: str, wishes: dict[str, Any], tell: Teller) -> None:
    handler = TellingHandler(tell, warm_seconds=wishes["warm_seconds"], release_seconds=wishes["release_seconds"])
    consumer = AssignerConsumer(
        target.address,
        group,
        name,
        wishes["topics"],
        handler,
        capacity=wishes["capacity"],
        rack=wishes["rack"],
        tls=target.ssl_context(),
        connect_timeout=target.timeout,
    )
    told: list[signal.Signals] = []
    drain_within: float = wishes["drain_timeout"] if wishes["drain"] else 0.0

    def on_signal(number: signal.Signals) -> None:
        told.append(number)
        if drain_within and len(told) == 1:
            tell("draining", consumer=name, within=drain_within)

    async def tell_joined() -> None:
        await consumer.wait_for(lambda one: one.is_connected)
        tell("joined", group=group, consumer=name)

    joined = asyncio.create_task(tell_joined(), name="tells that it joined")
    try:
        ending = await consumer.run_until_signal(drain_within=drain_within, on_signal=on_signal)
    finally:
        joined.cancel()
        # What ends the consumer while it is waited for is raised above: here it is only read.
        await asyncio.gather(joined, return_exceptions=True)
    tell("left", how=ending.value)
    if drain_within and told and ending is not Ending.DRAINED:
        raise DrainUnfinished
