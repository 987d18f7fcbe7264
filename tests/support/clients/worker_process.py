"""Consumers that work all the time: what they do behind their gates goes into one file, line after line.

The same code runs on a thread of the tests and, as a program, in a process of its own that may be killed and frozen.
The file is the effect: whatever two owners believe, its order shows who worked under which epoch when.

As a program it takes a JSON object of options, says in lines of JSON what happens to it, leaves on SIGTERM, and on
SIGUSR1 freezes itself in the middle of a piece of work, after the gate let it in and before its effect.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio

from assigner.client import (
    AssignerConsumer,
    GateClosed,
    Handler,
    Ownership,
    Release,
    StaleEpoch,
    Timing,
    TopicPartition,
    Warm,
)
from assigner.client.session import new_session
from assigner.errors import AssignerError

QUICK = Timing(
    call_timeout=2.0, keepalive=0.5, keepalive_timeout=0.5, first_pause=0.05, longest_pause=0.3, close_timeout=5.0
)
TICK = 0.02
SUPERSEDED = 3
"""Exit status of a process whose consumer lost its name to another."""


class Sink:
    """A file that many processes append to. A line is written at once or not at all."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, group: str, tp: TopicPartition, epoch: int, name: str, session: str) -> None:
        os.write(self._file, f"{group} {tp.topic} {tp.partition} {epoch} {name} {session}\n".encode())


class Noting(Handler):
    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note = note

    async def assigned(self, partition: Ownership) -> None:
        self._note("assigned", str(partition))

    async def warm(self, partition: TopicPartition, order: Warm) -> None:
        self._note("warm", str(partition))

    async def release(self, partition: Ownership, order: Release) -> None:
        self._note("release", str(partition))

    async def revoked(self, partition: Ownership, reason: str) -> None:
        self._note("revoked", f"{partition}: {reason}")


def consumer(group: str, name: str, addresses: list[str], handler: Handler, **options: Any) -> AssignerConsumer:
    """A consumer that tries the addresses in this order."""
    session = options.pop("session", None) or new_session()
    # The client begins at an address that its session decides upon: turn the list so that it is the first.
    first = int.from_bytes(session.encode(), "big") % len(addresses)
    turned = addresses[len(addresses) - first :] + addresses[: len(addresses) - first]
    options.setdefault("timing", QUICK)
    return AssignerConsumer(turned, group, name, [], handler, session=session, **options)


async def work(group: str, consumer: AssignerConsumer, sink: Sink, pause: Callable[[str, int], None]) -> None:
    """Work on every partition whose gate lets us in; `pause` is called in the middle of each piece."""
    while True:
        for tp in consumer.partitions:
            gate = consumer.gate(tp.topic, tp.partition)
            try:
                with gate.enter() as epoch:
                    pause(str(tp), epoch)
                    gate.check(epoch)
                    sink.write(group, tp, epoch, consumer.name, consumer.session)
            except (GateClosed, StaleEpoch) as refusal:
                _refused(str(tp), refusal)
        await anyio.sleep(TICK)


async def commit(group: str, consumer: AssignerConsumer, answered: Path) -> None:
    """Commit a little more of every partition, beginning where the last owner ended; each commit that was answered is a
    line of the file."""
    file = os.open(answered, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    positions: dict[Ownership, int] = {}
    while True:
        await anyio.sleep(5 * TICK)
        held = {Ownership(tp.topic, tp.partition, epoch) for tp, epoch in consumer.partitions.items()}
        positions = {owned: offset for owned, offset in positions.items() if owned in held}
        for owned in held:
            try:
                if owned not in positions:
                    found = await consumer.committed([owned])
                    positions[owned] = found[owned.tp].offset if owned.tp in found else 0
                # Also if it is not answered, it may be on record.
                positions[owned] += 1
                await consumer.commit({owned: positions[owned]})
            except AssignerError:
                continue
            tp = owned.tp
            os.write(file, f"{group} {tp.topic} {tp.partition} {positions[owned]}\n".encode())


_frozen_at: list[tuple[str, int]] = []


def _refused(tp: str, refusal: AssignerError) -> None:
    if _frozen_at and _frozen_at[-1][0] == tp:
        _, epoch = _frozen_at.pop()
        say("refused", partition=tp, epoch=epoch, reason=type(refusal).__name__)


# --- as a program ------------------------------------------------------------------------------------------------


def say(event: str, **details: Any) -> None:
    print(json.dumps({"event": event, **details}), flush=True)


class _Nap:
    """Freezes the process when it was asked to, in the middle of the next piece of work."""

    def __init__(self) -> None:
        self.wanted = False

    def __call__(self, tp: str, epoch: int) -> None:
        if self.wanted:
            self.wanted = False
            _frozen_at.append((tp, epoch))
            say("freezing", partition=tp, epoch=epoch)
            os.kill(os.getpid(), signal.SIGSTOP)


async def main(options: dict[str, Any]) -> int:
    nap, stop = _Nap(), anyio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, setattr, nap, "wanted", True)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    sink, name, groups = Sink(Path(options["sink"])), options["name"], options["groups"]
    endings: list[int] = []
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        for group in groups:
            handler = Noting(lambda event, what, group=group: say(event, group=group, what=what))  # type: ignore[misc]
            member = await stack.enter_async_context(
                consumer(group, name, options["addresses"], handler, **options.get("extra", {}))
            )
            say("registered", group=group, session=member.session)
            tasks.start_soon(work, group, member, sink, nap)
            if answered := options.get("answered"):
                tasks.start_soon(commit, group, member, Path(answered))
            tasks.start_soon(_until_over, member, stop, endings)
        await stop.wait()
        tasks.cancel_scope.cancel()
    return max(endings, default=0)


async def _until_over(member: AssignerConsumer, stop: anyio.Event, endings: list[int]) -> None:
    try:
        ending = await member.closed()
        say("ended", how=ending.value)
    except AssignerError as error:
        say("ended", how=type(error).__name__, why=str(error))
        endings.append(SUPERSEDED)
    stop.set()


if __name__ == "__main__":
    sys.exit(anyio.run(main, json.loads(sys.argv[1])))
