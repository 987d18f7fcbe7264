"""Members of groups, each a process that may be killed and frozen, and what it has said so far."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.support.kafka_groups.events import Event, Kind, read
from tests.support.kafka_groups.ledger import Accident, Mishap
from tests.support.servers.process import ServerProcess
from tools.install_kafka import kafka_home

_JAVA_SOURCE = Path(__file__).parent / "java" / "GroupMember.java"
_JVM = ("-Xms32m", "-Xmx160m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_LEAVE_WITHIN = 30.0


class GroupMember:
    """A member of a group in a process of its own."""

    def __init__(self, name: str, command: Sequence[str], directory: Path, *, in_batches: bool = False) -> None:
        self.name = name
        self.in_batches = in_batches
        """Whether it commits many records at once."""
        self.accidents: list[Accident] = []
        self._log = directory / f"{name}.jsonl"
        self._process = ServerProcess(command, self._log)
        self._is_over = False

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    def events(self) -> list[Event]:
        return read(self._log)

    def owned(self) -> set[str]:
        """The partitions that it says it owns now."""
        found: set[str] = set()
        for event in self.events():
            if event.event is Kind.ASSIGNED:
                found |= set(event.partitions)
            elif event.event in (Kind.REVOKED, Kind.LOST):
                found -= set(event.partitions)
            elif event.event is Kind.CLOSED:
                found.clear()
        return found

    def processed(self) -> int:
        return sum(event.event is Kind.RECORD for event in self.events())

    def leave(self) -> None:
        """Let it go in an orderly way; returns when it is gone."""
        self._is_over = True
        self._process.terminate(_LEAVE_WITHIN)

    def kill(self) -> None:
        self.accidents.append(Accident(self.name, Mishap.KILLED, time.monotonic()))
        self._is_over = True
        self._process.kill()

    def freeze(self) -> None:
        self._process.freeze()
        self.accidents.append(Accident(self.name, Mishap.FROZEN, time.monotonic()))

    def thaw(self, *, session: float) -> None:
        """`session`: the seconds after which its partitions go to others."""
        last = self.accidents.pop()
        now = time.monotonic()
        self.accidents.append(
            Accident(last.member, last.mishap, last.at, until=now, outlasted_session=now - last.at > session)
        )
        self._process.thaw()

    def close(self) -> None:
        """End it, however it is, without an accident on record."""
        if not self._is_over and self._process.is_running:
            self._process.kill()
        self._is_over = True

    def log_tail(self) -> str:
        return self._process.log_tail(15)


class Members:
    """Makes members of one group that read one topic."""

    def __init__(self, directory: Path, group: str, topic: str, *, session: float) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.all: dict[str, GroupMember] = {}
        self._words = {"group": group, "topics": topic, "session": f"{session:g}"}

    def java(self, name: str, bootstrap: str, protocol: str = "consumer", **more: str) -> GroupMember:
        command = ["java", *_JVM, "-cp", f"{compiled_java()}:{kafka_home() / 'libs'}/*", "GroupMember"]
        return self._add(name, command, bootstrap=bootstrap, protocol=protocol, **more)

    def confluent(self, name: str, bootstrap: str, protocol: str = "consumer", **more: str) -> GroupMember:
        return self._python("confluent", name, bootstrap, protocol=protocol, **more)

    def kafka_python(self, name: str, bootstrap: str, **more: str) -> GroupMember:
        return self._python("kafka-python", name, bootstrap, **more)

    def aiokafka(self, name: str, bootstrap: str, **more: str) -> GroupMember:
        return self._python("aiokafka", name, bootstrap, **more)

    def assigner(self, name: str, broker: str, addresses: Sequence[str]) -> GroupMember:
        """A gRPC consumer; it fetches from the broker itself."""
        command = [sys.executable, "-m", "tests.support.kafka_groups.assigner_member"]
        return self._add(name, command, bootstrap=broker, assigner=",".join(addresses))

    def spark(self, name: str, broker: str, address: str) -> GroupMember:
        command = [sys.executable, "-m", "tests.support.kafka_groups.spark_member"]
        checkpoint = str(self.directory / f"{name}-checkpoint")
        return self._add(name, command, bootstrap=broker, assigner=address, checkpoint=checkpoint)

    def accidents(self) -> list[Accident]:
        return [one for member in self.all.values() for one in member.accidents]

    def close(self) -> None:
        for member in self.all.values():
            member.close()

    def _python(self, library: str, name: str, bootstrap: str, **more: str) -> GroupMember:
        command = [sys.executable, "-m", "tests.support.kafka_groups.python_member"]
        return self._add(name, command, library=library, bootstrap=bootstrap, **more)

    def _add(self, name: str, command: Sequence[str], **words: str) -> GroupMember:
        if name in self.all:
            raise ValueError(f"there was a member {name} already: what two of that name did could not be told apart")
        in_batches = "checkpoint" in words
        given = {"client_id": name, **self._words, **words}
        whole = [*command, *(f"{key}={value}" for key, value in given.items())]
        self.all[name] = GroupMember(name, whole, self.directory, in_batches=in_batches)
        return self.all[name]


@cache
def compiled_java() -> Path:
    """The directory with our Java member, compiled once per process against the jars of the tests' Kafka."""
    classes = Path(tempfile.gettempdir()) / f"assigner-group-member-{_JAVA_SOURCE.stat().st_mtime_ns}"
    if not classes.exists():
        with tempfile.TemporaryDirectory() as scratch:
            made = Path(scratch) / "classes"
            libs = f"{kafka_home() / 'libs'}/*"
            command = ["javac", "-nowarn", "-d", str(made), "-cp", libs, str(_JAVA_SOURCE)]
            subprocess.run(command, check=True, capture_output=True, text=True)
            # A rename of the whole, so that half of it is never found. It fails if another process was quicker.
            with suppress(OSError):
                made.rename(classes)
    return classes


def java_missing() -> str | None:
    """Why no Java member can be run here, if so."""
    if shutil.which("javac") is None:
        return "a Java compiler (javac) is not on the PATH"
    return None if kafka_home().exists() else "Kafka's jars are not there: run `make kafka`"


def until(condition: Callable[[], object], within: float, what: str, every: float = 0.05) -> float:
    """Wait until the condition holds; how long that took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > within:
            raise AssertionError(f"not within {within:g} s: {what}")
        time.sleep(every)
    return time.monotonic() - began
