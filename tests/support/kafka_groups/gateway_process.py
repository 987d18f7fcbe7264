"""A gateway in a process of its own, in front of a broker: Kafka clients connect to it in place of the broker.

On the memory store the process is the whole service. On etcd the gateway stands alone, so that it can be killed while a
service beside it keeps the groups: `ServiceProcess`.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.servers.mock_kafka import LOGGED
from tests.support.servers.ports import free_port
from tests.support.servers.process import ServerProcess

ROOT = Path(__file__).parents[3]
_UP_WITHIN = 60.0
_PROGRAM = shlex.split(os.environ.get("GATEWAY_PROGRAM", f"{sys.executable} -m assigner.cli"))
"""Another build of it may be tried, such as one in another checkout."""
_MOST_BROKERS = 4
"""Node ids below this get a port of their own."""


class GatewayProcess:
    """`assigner serve --gateway`, or `assigner gateway` where a store is given that others serve too."""

    def __init__(
        self,
        directory: Path,
        upstream: str,
        *,
        name: str = "gateway",
        store: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`upstream`: the broker's bootstrap servers. `store`: settings of a store, without which it is the memory of
        this process. `settings`: others, by their full names."""
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log = directory / f"{name}.log"
        self.port = _port_before_free_ones(_MOST_BROKERS + 1)
        self.grpc_port, self.http_port = free_port(), free_port()
        self._alone = store is None
        self._settings = {
            "instance.name": name,
            "gateway.port": self.port,
            "gateway.upstream": upstream,
            "grpc.port": self.grpc_port,
            "http.port": self.http_port,
            "kafka.bootstrap_servers": upstream,
            **dict(store or {"store.backend": "memory"}),
            **dict(settings or {}),
        }
        self._process: ServerProcess | None = None

    @property
    def bootstrap(self) -> str:
        """The address for clients' ``bootstrap.servers``."""
        return f"127.0.0.1:{self.port}"

    @property
    def grpc_address(self) -> str:
        """Where the service in this process answers, on the memory store."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    def start(self) -> GatewayProcess:
        """Start the process, and wait until it serves clients."""
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        self._process = ServerProcess(self._command(), self.log, _environment())

    def wait_ready(self, within: float = _UP_WITHIN) -> None:
        self._running().wait_until(self._serves, within)

    def kill(self) -> None:
        """Crash it (SIGKILL)."""
        self._running().kill()
        self._process = None

    def freeze(self) -> None:
        self._running().freeze()

    def thaw(self) -> None:
        self._running().thaw()

    def stop(self, timeout: float = 10.0) -> int:
        """End it in an orderly way (SIGTERM), if it runs; its exit status."""
        process, self._process = self._process, None
        return process.terminate(timeout) if process is not None else 0

    def log_tail(self, lines: int = 40) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join([f"--- end of {self.log}", *text.splitlines()[-lines:]])

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise RuntimeError(f"{self.name} does not run; start() it first")
        return self._process

    def _command(self) -> list[str]:
        what = ["serve", "--gateway"] if self._alone else ["gateway"]
        flags = [word for key, value in self._settings.items() for word in ("--set", f"{key}={value}")]
        return [*_PROGRAM, *what, *flags]

    def _serves(self) -> bool:
        """Whether a client gets an answer: the port is open before the brokers behind it are known."""
        if not _accepts(self.port):
            return False
        asking: Any = AdminClient({"bootstrap.servers": self.bootstrap, "broker.address.family": "v4", **LOGGED})
        try:
            return bool(asking.list_topics(timeout=2).brokers)
        except KafkaException:
            return False


class ServiceProcess:
    """`assigner serve` on a store that it shares with gateways."""

    def __init__(self, directory: Path, *, name: str, store: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / f"{name}.log"
        self.grpc_port, self.http_port = free_port(), free_port()
        ports = {"grpc.port": self.grpc_port, "http.port": self.http_port}
        all_settings = {"instance.name": name, **ports, **store, **settings}
        flags = [word for key, value in all_settings.items() for word in ("--set", f"{key}={value}")]
        command = [*_PROGRAM, "serve", *flags]
        self._process = ServerProcess(command, self.log, _environment())

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def wait_ready(self, within: float = _UP_WITHIN) -> None:
        self._process.wait_until(lambda: _accepts(self.grpc_port), within)

    def kill(self) -> None:
        self._process.kill()

    def stop(self, timeout: float = 10.0) -> int:
        return self._process.terminate(timeout)


def etcd_store(endpoint: str, root: str = "") -> dict[str, Any]:
    """Settings of a store on that etcd, in a branch of its own."""
    return {
        "store.backend": "etcd",
        "store.endpoints": endpoint,
        "store.root": root or f"/gateway-{uuid4().hex[:12]}/",
    }


def wait_for(condition: Any, within: float, what: str) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s: {what}")
        time.sleep(0.05)


def _environment() -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ASSIGNER_")}
    # A test may run in a directory that holds other people's modules.
    return environment | {"PYTHONPATH": str(ROOT)}


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _port_before_free_ones(count: int) -> int:
    """A free port that as many free ones follow: the gateway gives each broker one after its own."""
    while True:
        first = free_port()
        if all(not _accepts(first + more) for more in range(1, count)):
            return first
