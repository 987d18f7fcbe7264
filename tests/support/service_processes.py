"""A fleet: several `assigner serve` processes on one real etcd, and consumers that work on them.

Everything is driven from a synchronous test: instances and some consumers are child processes that are killed and
frozen by signal, the other consumers run on a thread. What happened is read from etcd itself, from the consumers'
common sink and from the instances' logs, and is the same whichever instance tells it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from assigner.core.leader_spread import spread
from assigner.model.keys import TopicPartition
from tests.support.clients.threaded_consumers import Crew, Worker
from tests.support.clients.worker_process import Sink
from tests.support.servers.etcd import RunningEtcd
from tests.support.servers.etcd_history import EtcdTruth
from tests.support.servers.ports import free_port
from tests.support.servers.process import ServerProcess, answers

ROOT = Path(__file__).parents[2]
CONSUMER_TTL = 3.0
LEADER_TTL = 3.0
UP_WITHIN = 30.0
"""For a process to start or to do what it was told, on a machine that is busy with other things."""


def until(condition: Callable[[], Any], within: float, what: str, every: float = 0.02) -> float:
    """Wait until the condition holds; how long that took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > within:
            raise AssertionError(f"not within {within:g} s: {what}")
        time.sleep(every)
    return time.monotonic() - began


class Child:
    """A process of the fleet with its log."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: ServerProcess | None = None

    def run(self, arguments: list[str]) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ASSIGNER_")}
        command = [sys.executable, *arguments]
        self._process = ServerProcess(command, self.log, {**environment, "PYTHONPATH": str(ROOT)})

    @property
    def process(self) -> ServerProcess:
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    def kill(self) -> None:
        self.process.kill()

    def freeze(self) -> None:
        self.process.freeze()

    def thaw(self) -> None:
        self.process.thaw()

    def tell(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def wait_frozen(self) -> None:
        """Wait until the process has stopped itself."""
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def ended(self, within: float) -> int:
        """Wait for the end that is on its way; the exit status."""
        until(lambda: not self.is_running, within, f"{self.name} ends")
        return self.process.terminate(0)

    def close(self) -> None:
        if self._process is not None:
            # SIGKILL ends a frozen process as well. One that has ended by itself still has its guard.
            self._process.kill()

    def lines(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """The lines of JSON in the log about that event."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines() if self.log.exists() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("event") == event and all(entry.get(name) == value for name, value in fields.items()):
                found.append(entry)
        return found


class Instance(Child):
    """One `assigner serve`. Its ports outlast restarts."""

    def __init__(self, name: str, fleet: Fleet, endpoint: str) -> None:
        super().__init__(name, fleet.directory / f"instance-{name}.log")
        self.port, self.http_port = free_port(), free_port()
        self._fleet = fleet
        self._endpoint = endpoint

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def web(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    def start(self) -> None:
        settings = {
            "instance.name": self.name,
            "store.backend": "etcd",
            "store.endpoints": self._endpoint,
            "store.root": self._fleet.root,
            "grpc.port": self.port,
            "http.port": self.http_port,
            "log.format": "json",
            **self._fleet.settings,
        }
        flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self.run(["-m", "assigner.cli", "serve", *flags, *self._fleet.flags])

    @property
    def is_ready(self) -> bool:
        return self.is_running and answers(f"http://{self.web}/readyz")


class Fleet:
    def __init__(self, etcd: RunningEtcd, directory: Path, flags: list[str] | None = None, **settings: Any) -> None:
        self.etcd = etcd
        self.directory = directory
        self.root = f"/fleet-{uuid4().hex[:12]}/"
        self.flags = flags or []
        self.settings = {
            "consumer_ttl": CONSUMER_TTL,
            "leader_ttl": LEADER_TTL,
            "store.request_timeout": 1.0,
            "shutdown_timeout": 2.0,
            "group.debounce": 0.1,
            "spread.settle": 1.0,
            "spread.batch": 20,
            "spread.pause": 0.2,
            "spread.handover_backoff": 1.0,
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        self.truth = EtcdTruth(etcd.endpoint, self.root)
        self.sink = directory / "sink.txt"
        self.crew = Crew(Sink(self.sink))
        self.instances: dict[str, Instance] = {}
        self.consumers: list[Child] = []

    # --- instances -------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Instance:
        return self.instances[name]

    def add(self, name: str, endpoint: str = "") -> Instance:
        """An instance that is not started yet; `endpoint`: by which way it goes to etcd."""
        self.instances[name] = Instance(name, self, endpoint or self.etcd.endpoint)
        return self.instances[name]

    def make_whole(self) -> None:
        """Start what does not run, and wait until everything is ready and has found its place."""
        for instance in self.instances.values():
            if not instance.is_running:
                instance.start()
        self.wait_ready(UP_WITHIN)
        self.wait_spread()

    def wait_spread(self, within: float = 2 * UP_WITHIN) -> float:
        """Wait until every group is led where it should be, so that no handover comes in between."""
        running = [name for name, instance in self.instances.items() if instance.is_running]

        def is_spread() -> bool:
            return self.truth.leaders() == spread(self.truth.groups(), running).preferred_leaders

        return until(is_spread, within, "every group is led by its home", every=0.1)

    def wait_ready(self, within: float) -> float:
        return until(lambda: not self._not_ready(), within, f"ready: {self._not_ready()}")

    def _not_ready(self) -> list[str]:
        return [name for name, instance in self.instances.items() if not instance.is_ready]

    def others(self, *names: str) -> list[str]:
        return [name for name in self.instances if name not in names]

    def addresses(self, *first: str) -> list[str]:
        """Of all instances, these first."""
        return [self[name].address for name in (*first, *self.others(*first))]

    def name_of(self, address: str) -> str:
        return next((name for name, instance in self.instances.items() if instance.address == address), "")

    # --- groups ----------------------------------------------------------------------------------------------------

    def group(self, partitions: int, via: str, mode: str = "exclusive") -> str:
        """A new group with one topic, made through that instance."""
        group = f"group-{uuid4().hex[:6]}"
        self.crew.set_topic(self[via].address, group, partitions)
        self.crew.set_options(self[via].address, group, handoff_mode=mode)
        return group

    def leader(self, group: str) -> str:
        """The instance that leads the group, once there is one."""
        until(lambda: self.truth.leader(group), UP_WITHIN, f"{group} has a leader")
        found = self.truth.leader(group)
        assert found is not None
        return found.name

    def wait_led_by_another(self, group: str, than: str, within: float) -> float:
        def led() -> bool:
            found = self.truth.leader(group)
            return found is not None and found.name != than

        return until(led, within, f"{group} is led by another than {than}")

    def is_shared(self, group: str, *names: str, partitions: int) -> bool:
        """Whether these own everything, evenly, and nothing is in flight."""
        owned = [one.owner for one in self.truth.assignments(group).values()]
        counts = [owned.count(name) for name in names]
        return (
            sum(counts) == len(owned) == partitions
            and max(counts) - min(counts) <= 1
            and not self.truth.handoffs(group)
        )

    def wait_shared(self, group: str, *names: str, partitions: int, within: float = UP_WITHIN) -> float:
        what = f"{names} share the {partitions} partitions of {group}"
        return until(lambda: self.is_shared(group, *names, partitions=partitions), within, what)

    # --- consumers -------------------------------------------------------------------------------------------------

    def join(self, group: str, name: str, at: str) -> Worker:
        """A consumer on a thread of the tests that starts at the instance `at`."""
        return self.crew.join(group, name, self.addresses(at))

    def spawn(self, name: str, groups: list[str], at: str, **extra: Any) -> Child:
        """A consumer of the groups in a process of its own. `extra`: further options of the program."""
        child = Child(name, self.directory / f"consumer-{name}-{len(self.consumers)}.log")
        options = {"name": name, "groups": groups, "addresses": self.addresses(at), "sink": str(self.sink), **extra}
        child.run(["-m", "tests.support.clients.worker_process", json.dumps(options)])
        self.consumers.append(child)
        return child

    # --- what was done ---------------------------------------------------------------------------------------------

    def effects(self, group: str, since: int = 0) -> list[Effect]:
        """What the consumers did, in order, from a byte of the sink on."""
        with self.sink.open("rb") as file:
            file.seek(since)
            # A line that is being written has no end yet.
            lines = file.read().decode().splitlines(keepends=True)
        found = [Effect(line) for line in lines if line.endswith("\n")]
        return [effect for effect in found if effect.group == group]

    def sink_size(self) -> int:
        return self.sink.stat().st_size

    def double_owners(self, group: str) -> list[str]:
        """Work under an epoch that was over already, or by two under one epoch. Of an `exclusive` group: none."""
        latest: dict[TopicPartition, Effect] = {}
        found = []
        for effect in self.effects(group):
            before = latest.get(effect.tp)
            if before is not None and (
                effect.epoch < before.epoch or (effect.epoch == before.epoch and effect.who != before.who)
            ):
                found.append(f"{effect} after {before}")
            latest[effect.tp] = effect
        return found

    # --- the end ---------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """After a test: no consumer is left."""
        for child in self.consumers:
            child.close()
        self.crew.dismiss()

    def close(self) -> None:
        self.clear()
        for instance in self.instances.values():
            instance.close()
        self.crew.close()

    def logs(self) -> str:
        children = (*self.instances.values(), *self.consumers)
        return "\n".join(child.process.log_tail(60) for child in children if child.log.exists())


class Effect:
    def __init__(self, line: str) -> None:
        self.group, topic, partition, epoch, self.name, self.session = line.split()
        self.tp = TopicPartition(topic, int(partition))
        self.epoch = int(epoch)
        self.who = (self.name, self.session)

    def __str__(self) -> str:
        return f"{self.name} ({self.session[:6]}) on {self.tp}@{self.epoch}"


def at(entry: dict[str, Any]) -> float:
    """When a line was logged."""
    return datetime.fromisoformat(entry["time"]).timestamp()


@contextmanager
def shown_on_failure(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """For the fixture that a test gets the fleet by: a failed test shows the end of every log, and leaves nobody
    frozen and no consumer behind."""
    failed_before = request.session.testsfailed
    try:
        yield fleet
    finally:
        for instance in fleet.instances.values():
            if instance.is_running:
                instance.thaw()
        if request.session.testsfailed > failed_before:
            print(fleet.logs())
            print("\n".join(fleet.crew.notes()))
        fleet.clear()
