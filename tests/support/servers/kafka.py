"""A real Kafka broker for the tests: one node, broker and controller in one process."""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.servers.mock_kafka import LOGGED
from tests.support.servers.ports import free_port
from tests.support.servers.process import ServerFailedError, ServerProcess
from tools.install_kafka import kafka_home, missing_tool

_READY_SECONDS = 60.0
_STOP_SECONDS = 10.0
_TOPIC_SECONDS = 60.0
# Made for a quick start and a small footprint rather than for throughput.
_JVM_FLAGS = ["-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
_STARTED = "Kafka Server started"


class KafkaUnavailableError(RuntimeError):
    """No Kafka can be started here; the message says what to do about it."""


def ensure_kafka() -> Path:
    """Return Kafka's home; raise `KafkaUnavailableError`, naming the remedy, where it cannot be had."""
    problem = missing_tool()
    if problem is not None:
        raise KafkaUnavailableError(problem)
    home = kafka_home()
    if not home.exists():
        raise KafkaUnavailableError(f"Kafka is not in {home}: run `make kafka`")
    return home


class KafkaBroker:
    """One Kafka node with a data directory and ports of its own, which outlast restarts."""

    def __init__(
        self,
        directory: Path,
        *,
        rack: str | None = None,
        node_id: int = 1,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._home = ensure_kafka()
        self._directory = directory
        self.log = directory / "kafka.log"
        self.node_id = node_id
        self.port, self._controller_port = free_port(), free_port()
        self._properties = self._default_properties() | dict(settings or {})
        if rack is not None:
            self._properties["broker.rack"] = rack
        self._formatted = False
        self._process: ServerProcess | None = None

    @property
    def bootstrap(self) -> str:
        """The address for clients' ``bootstrap.servers``."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self) -> Self:
        """Start the broker, with formatted storage, and wait until it accepts clients."""
        if not self._formatted:
            self._format()
        began_at = self.log.stat().st_size
        command = [*self._java(), "kafka.Kafka", str(self._properties_file)]
        self._process = ServerProcess(command, self.log)
        self._process.wait_until(lambda: self._has_started(began_at), _READY_SECONDS)
        return self

    def create_topic(self, name: str, partitions: int, **config: str) -> None:
        """Create a topic, and return when clients can use it.

        The controller answers a creation before the broker's own metadata has the topic, so a client that asks for it
        right after the answer may be told that it is unknown, or that a partition has no leader.
        """
        admin: Any = AdminClient({"bootstrap.servers": self.bootstrap, **LOGGED})
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(_TOPIC_SECONDS)
        self._running().wait_until(lambda: _has_leaders(admin, name, partitions), _TOPIC_SECONDS)

    def kill(self) -> None:
        """Crash the broker (SIGKILL)."""
        self._running().kill()
        self._process = None

    def freeze(self) -> None:
        """Make the broker silent without closing its connections (SIGSTOP)."""
        self._running().freeze()

    def thaw(self) -> None:
        """Let a frozen broker go on (SIGCONT)."""
        self._running().thaw()

    def restart(self) -> Self:
        """Start again on the same data and ports, after an orderly stop where the broker still runs."""
        self.shut_down()
        return self.start()

    def shut_down(self) -> None:
        """End the broker in an orderly way (SIGTERM), as a rolling restart would."""
        if self._process is not None:
            self._process.terminate(_STOP_SECONDS)
            self._process = None

    def stop(self) -> None:
        """End the broker, if it runs, by SIGKILL: an orderly end only costs time here."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # .. inner workings ..

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise RuntimeError("the broker does not run; start() it first")
        return self._process

    def _has_started(self, began_at: int) -> bool:
        with self.log.open(errors="replace") as log:
            log.seek(began_at)
            if _STARTED not in log.read():
                return False
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def _properties_file(self) -> Path:
        return self._directory / "server.properties"

    def _default_properties(self) -> dict[str, str]:
        controller = f"127.0.0.1:{self._controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": str(self.node_id),
            "controller.quorum.voters": f"{self.node_id}@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self._directory / "kafka-data"),
            # One node holds the only copy of everything.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            # A killed broker may come back once its old session is over; the default makes that 9 s.
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "1000",
            # Tests say what topics there are, and groups are not to wait for members to come.
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
        }

    def _format(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        lines = (f"{name}={value}\n" for name, value in self._properties.items())
        self._properties_file.write_text("".join(lines))
        # Kafka's ids are 16 bytes in URL-safe base64, of which it refuses those that start with a dash.
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        command = [*self._java(), "kafka.tools.StorageTool", "format", "-t", cluster_id]
        done = subprocess.run([*command, "-c", str(self._properties_file)], check=False, capture_output=True, text=True)
        self.log.write_text(done.stdout + done.stderr)
        if done.returncode != 0:
            raise ServerFailedError(f"Kafka's storage could not be formatted:\n{done.stdout}{done.stderr}")
        self._formatted = True

    def _java(self) -> list[str]:
        java = shutil.which("java") or "java"
        logging = f"-Dlog4j2.configurationFile={self._home / 'log4j2.properties'}"
        return [java, *_JVM_FLAGS, logging, "-cp", f"{self._home / 'libs'}/*"]


def _has_leaders(admin: Any, topic: str, partitions: int) -> bool:
    try:
        described = admin.describe_topics(TopicCollection([topic]))[topic].result(_TOPIC_SECONDS)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return False
        raise
    led = [one for one in described.partitions if one.leader is not None and one.leader.id >= 0]
    return len(led) == partitions
