"""What is measured: the broker, and a service with a gateway in front of it, each a process of its own."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.ports import free_port
from tests.support.servers.process import ServerProcess, answers

ROOT = Path(__file__).parents[2]
_UP_WITHIN = 60.0
_DELAY = 3.0
"""Seconds for which the first rebalance of a classic group waits for more members: Kafka's default, for both."""


class Subject(msgspec.Struct, frozen=True):
    name: str
    bootstrap: str
    pid: int

    def cpu(self) -> float:
        """Seconds of processor time that the process has taken."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


@contextmanager
def running_broker() -> Iterator[tuple[KafkaBroker, Subject]]:
    with tempfile.TemporaryDirectory() as directory:
        delay = {"group.initial.rebalance.delay.ms": f"{_DELAY * 1000:.0f}"}
        broker = KafkaBroker(Path(directory), settings=delay).start()
        try:
            yield broker, Subject("broker", broker.bootstrap, broker.pid)
        finally:
            broker.shut_down()


@contextmanager
def running_gateway(store: str, endpoint: str | None, upstream: str) -> Iterator[Subject]:
    """`assigner serve --gateway` with Kafka's defaults where it has such."""
    port = free_port()
    http = free_port()
    settings = {
        "store.backend": store,
        "grpc.port": "0",
        "http.port": str(http),
        "gateway.enabled": "true",
        "gateway.port": str(port),
        # Of broker 1: any free port.
        "gateway.broker_base_port": str(free_port() - 1),
        "gateway.initial_rebalance_delay": str(_DELAY),
        "kafka.bootstrap_servers": upstream,
        "group.handoff_mode": "exclusive",
        "quotas.commit_rate": "1000000000",
        "log.level": "warning",
        **({"store.endpoints": endpoint} if endpoint else {}),
    }
    arguments = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with tempfile.TemporaryDirectory() as directory:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ASSIGNER_")}
        log = Path(directory) / "gateway.log"
        command = [sys.executable, "-m", "assigner.cli", "serve", *arguments]
        process = ServerProcess(command, log, {**environment, "PYTHONPATH": str(ROOT)})
        try:
            process.wait_until(lambda: answers(f"http://127.0.0.1:{http}/readyz"), _UP_WITHIN)
            yield Subject(f"gateway, {store}", f"127.0.0.1:{port}", process.pid)
        finally:
            process.terminate(10.0)
