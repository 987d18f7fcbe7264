"""The peer: a plain Kafka consumer group on a real broker, which goes through the same course.

The consumers are Java's, threads of one JVM; the one that is killed has a JVM of its own. Records are produced at the
rate of the requests, one key for each partition. A leave is `close()`, a kill is SIGKILL. Whether a record was served
late or again is seen in the same way as of our requests; its generation stands for the epoch.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from confluent_kafka import Producer

from assigner.testing.waiting import eventually
from bench.cutover.course import (
    FIRST_PODS,
    GROUP,
    KILLED,
    PARTITIONS,
    SECOND,
    TOPIC,
    Action,
    Effort,
    Step,
    requests,
)
from bench.cutover.recording import Happened, Outcome, Recording, Sent, Served, served_in
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.mock_kafka import LOGGED
from tools import install_kafka

SOURCE = Path(__file__).with_name("KafkaPods.java")
HEAP = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC")
UP_WITHIN = 120.0
SAME_CLOCK = 5 * SECOND
"""Two readings of one clock in two processes are not further apart than this."""


class Jvm:
    """A JVM full of consumers, told by lines who joins and who leaves."""

    def __init__(self, process: asyncio.subprocess.Process, owned: dict[str, int]) -> None:
        self._process = process
        self._owned = owned
        self._left: set[str] = set()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, arguments: Sequence[str], owned: dict[str, int], log: Path) -> Jvm:
        java = shutil.which("java") or "java"
        home = install_kafka.kafka_home()
        command = [java, *HEAP, "-cp", f"{home / 'libs'}/*", f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}"]
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                str(SOURCE),
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert process.stdout
        clock = (await _line(process.stdout, "clock", log)).removeprefix("clock")
        if abs(time.monotonic_ns() - int(clock)) > SAME_CLOCK:
            raise RuntimeError("Java's clock is not Python's monotonic clock here; pauses can't be compared")
        return cls(process, owned)

    async def _read(self) -> None:
        assert self._process.stdout
        async for line in self._process.stdout:
            match line.decode().split():
                case ["owns", name, count]:
                    self._owned[name] = int(count)
                case ["left", name]:
                    self._left.add(name)
                    self._owned.pop(name, None)

    def tell(self, command: Action, pod: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{'join' if command is Action.JOIN else 'leave'} {pod}\n".encode())

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)

    async def close(self) -> None:
        self.kill()
        await self._process.wait()
        await self._reading


async def _line(output: asyncio.StreamReader, word: str, log: Path) -> str:
    line = (await asyncio.wait_for(output.readline(), UP_WITHIN)).decode().strip()
    if not line.startswith(word):
        raise RuntimeError(f"the JVM did not start, and said {line!r}; {await asyncio.to_thread(_tail, log)}")
    return line


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


class KafkaGroup:
    """The consumers of the group."""

    def __init__(self, jvm: Jvm, doomed: Jvm, owned: dict[str, int]) -> None:
        self._jvms = {KILLED: doomed}
        self._others = jvm
        self._owned = owned
        self.happened: list[Happened] = []

    def do(self, step: Step) -> None:
        self.happened.append(Happened(time.monotonic_ns(), step.action, step.pod))
        jvm = self._jvms.get(step.pod, self._others)
        if step.action is Action.KILL:
            jvm.kill()
            self._owned.pop(step.pod, None)
        else:
            jvm.tell(step.action, step.pod)

    def is_even(self, pods: Iterable[str]) -> bool:
        shares = [self._owned.get(pod, 0) for pod in pods]
        return sum(shares) == PARTITIONS and max(shares) - min(shares) <= 1


class Records(threading.Thread):
    """Produces the records, each when it is due."""

    def __init__(self, bootstrap: str, rate: int, seconds: float, start_at: int) -> None:
        super().__init__(name="records", daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, **LOGGED})
        self._rate, self._seconds, self._start_at = rate, seconds, start_at
        self.scheduled: list[tuple[str, int, int, int]] = []
        """Key, sequence, partition, and when it was due."""

    def run(self) -> None:
        for due in requests(self._rate, self._seconds):
            at = self._start_at + due.at
            while (early := at - time.monotonic_ns()) > 0:
                self._producer.poll(0)
                time.sleep(early / SECOND)
            key = f"p-{due.partition}"
            self._producer.produce(TOPIC, str(due.sequence).encode(), key.encode(), due.partition)
            self.scheduled.append((key, due.sequence, due.partition, at))
        self._producer.flush(30)


async def run(
    contestant: str,
    effort: Effort,
    directory: Path,
    *,
    settings: Mapping[str, str],
    detection: float,
    tell: Callable[[str], None],
) -> Recording:
    """`settings` of the consumers; `detection`: seconds until the broker notices a death."""
    journal, seconds = directory / "served.jsonl", effort.lasting(detection)
    before = os.getloadavg()[0]
    with KafkaBroker(directory / "kafka") as broker:
        broker.create_topic(TOPIC, PARTITIONS)
        properties = [f"{name}={value}" for name, value in settings.items()]
        async with consumers([broker.bootstrap, TOPIC, GROUP, str(journal), *properties], directory) as group:
            tell(f"{contestant}: {', '.join(FIRST_PODS)} join")
            for pod in FIRST_PODS:
                group.do(Step(0.0, Action.JOIN, pod))
            await eventually(partial(group.is_even, FIRST_PODS), within=UP_WITHIN, what="Kafka's group is even")
            group.happened.clear()
            records = Records(broker.bootstrap, effort.rate, seconds, time.monotonic_ns() + SECOND)
            records.start()
            await asyncio.sleep(1.0)
            began = time.monotonic()
            for step in effort.steps:
                await asyncio.sleep(began + step.at - time.monotonic())
                tell(f"{contestant}: {step.at:4.1f} s, {step.action.value} {step.pod}")
                group.do(step)
            await asyncio.to_thread(records.join)
            # What was produced last is still to be read.
            await asyncio.sleep(2.0)
    served = served_in(journal)
    return Recording(
        contestant=contestant,
        load=(before, os.getloadavg()[0]),
        sent=sent(records.scheduled, served),
        served=served,
        happened=group.happened,
    )


def sent(scheduled: Iterable[tuple[str, int, int, int]], served: Iterable[Served]) -> list[Sent]:
    """A record counts as answered when it was served for the first time."""
    done: dict[tuple[str, int], int] = {}
    for one in served:
        name = (one.key, one.sequence)
        done[name] = min(one.ended, done.get(name, one.ended))
    return [
        Sent(
            key,
            sequence,
            partition,
            at,
            done.get((key, sequence), at),
            Outcome.ANSWERED if (key, sequence) in done else Outcome.LOST,
        )
        for key, sequence, partition, at in scheduled
    ]


@asynccontextmanager
async def consumers(arguments: Sequence[str], directory: Path) -> AsyncIterator[KafkaGroup]:
    owned: dict[str, int] = {}
    jvms: list[Jvm] = []
    try:
        for name in ("consumers", "doomed"):
            jvm = await Jvm.start(arguments, owned, directory / f"{name}.log")
            jvms.append(jvm)
        yield KafkaGroup(jvms[0], jvms[1], owned)
    finally:
        for jvm in jvms:
            await jvm.close()
