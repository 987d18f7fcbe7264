"""Fixtures that all tests share: real etcd, Kafka and PostgreSQL servers, and the rule about skips."""

from __future__ import annotations

import logging
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from tests.support.project.skip_rule import SkipRule, is_ci, read_allowed
from tests.support.servers.etcd import (
    ContainerEtcd,
    EtcdCluster,
    EtcdServer,
    EtcdUnavailableError,
    RunningEtcd,
    docker_answers,
    external_etcd,
    find_binary,
)
from tests.support.servers.kafka import KafkaBroker, KafkaUnavailableError
from tests.support.servers.postgres import PostgresServer, PostgresUnavailableError

pytest_plugins = ["pytester", "assigner.testing.plugin", "tests.support.measurement"]

Server = TypeVar("Server", EtcdServer, EtcdCluster, KafkaBroker, PostgresServer)
StartEtcd = Callable[..., EtcdServer]
StartEtcdCluster = Callable[..., EtcdCluster]
StartKafka = Callable[..., KafkaBroker]

# A fixture that starts a real server gives its tests the marker, so `-m "not etcd"` needs no care.
_MARKER_OF_FIXTURE = {
    "etcd_server": "etcd",
    "etcd_prefix": "etcd",
    "start_etcd": "etcd",
    "start_etcd_cluster": "etcd",
    "kafka_broker": "kafka",
    "start_kafka": "kafka",
    "postgres_server": "postgres",
    "start_postgres": "postgres",
}


# How long an example takes says how busy the machine is.
settings.register_profile(
    "untimed", parent=settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")

# What a shell starts in the background ignores Ctrl-C, and so would every program that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    allowed = read_allowed(Path(__file__).with_name("allowed_skips.toml"))
    config.pluginmanager.register(SkipRule(config, allowed, strict=is_ci()), "skip-rule")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in _MARKER_OF_FIXTURE:
                item.add_marker(_MARKER_OF_FIXTURE[fixture])
            if fixture == "kafka_broker" and item.get_closest_marker("xdist_group") is None:
                # A broker takes some seconds and 300 MB: one worker starts it and runs all its tests, but for those
                # that belong together for a reason of their own.
                item.add_marker(pytest.mark.xdist_group("kafka"))


# -- etcd --------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEtcd]:
    """One etcd for all tests of this process. It is shared: use `etcd_prefix`, and leave it running."""
    external = external_etcd()
    if external is not None:
        yield external
        return
    try:
        find_binary()
    except EtcdUnavailableError as failure:
        yield from _etcd_in_container(failure)
        return
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


def _etcd_in_container(why: EtcdUnavailableError) -> Iterator[RunningEtcd]:
    if not docker_answers():
        pytest.skip(str(why))
    try:
        container = ContainerEtcd()
    except EtcdUnavailableError as failure:
        pytest.skip(f"{why}; {failure}")
    yield container
    container.stop()


@pytest.fixture
def etcd_prefix() -> str:
    """A root in etcd's key space that is this test's alone, such as ``/test-1f2e3d4c/``."""
    return f"/test-{uuid.uuid4().hex[:12]}/"


@pytest.fixture
def start_etcd(tmp_path: Path) -> Iterator[StartEtcd]:
    """Start etcd servers of this test's own: ``start_etcd(**options of EtcdServer)``.

    With ``killed=True`` the test says that it kills the server and expects the data to survive.
    """
    servers: list[EtcdServer] = []

    def start(*, killed: bool = False, **options: Any) -> EtcdServer:
        options.setdefault("name", f"etcd-{len(servers) + 1}")
        server = _or_skip(lambda: EtcdServer(tmp_path, **options))
        servers.append(server)
        _skip_if_unfit(server, killed)
        return server.start()

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def start_etcd_cluster(tmp_path: Path) -> Iterator[StartEtcdCluster]:
    """Start an etcd cluster of this test's own: ``start_etcd_cluster(3, killed=True)``."""
    clusters: list[EtcdCluster] = []

    def start(n: int = 3, *, killed: bool = False, **options: Any) -> EtcdCluster:
        directory = tmp_path / f"cluster-{len(clusters) + 1}"
        directory.mkdir()
        cluster = _or_skip(lambda: EtcdCluster(directory, n, **options))
        clusters.append(cluster)
        _skip_if_unfit(cluster, killed)
        return cluster.start()

    yield start
    for cluster in clusters:
        cluster.stop()


def _skip_if_unfit(etcd: RunningEtcd, killed: bool) -> None:
    if killed and not etcd.fit_for_kill_tests:
        pytest.skip("this etcd release can lose writes when it is killed; run `make etcd` for a current one")


# -- Kafka -------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One Kafka broker, in rack ``rack-1``, for all tests of this process. Leave it running."""
    broker = _or_skip(lambda: KafkaBroker(tmp_path_factory.mktemp("kafka"), rack="rack-1"))
    with broker:
        yield broker


@pytest.fixture
def start_kafka(tmp_path: Path) -> Iterator[StartKafka]:
    """Start Kafka brokers of this test's own: ``start_kafka(**options of KafkaBroker)``."""
    brokers: list[KafkaBroker] = []

    def start(**options: Any) -> KafkaBroker:
        directory = tmp_path / f"kafka-{len(brokers) + 1}"
        broker = _or_skip(lambda: KafkaBroker(directory, **options))
        brokers.append(broker)
        return broker.start()

    yield start
    for broker in brokers:
        broker.stop()


# -- PostgreSQL --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests of this process. It is shared: use `new_schema()`, and leave it running."""
    with _or_skip(PostgresServer) as server:
        yield server


@pytest.fixture
def start_postgres() -> Iterator[Callable[[], PostgresServer]]:
    """Start PostgreSQL servers of this test's own, which it may crash."""
    servers: list[PostgresServer] = []

    def start() -> PostgresServer:
        server = _or_skip(PostgresServer)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.stop()


def _or_skip(create: Callable[[], Server]) -> Server:
    try:
        return create()
    except (EtcdUnavailableError, KafkaUnavailableError, PostgresUnavailableError) as failure:
        pytest.skip(str(failure))


@pytest.fixture(autouse=True)
def _logging_is_left_as_it_was() -> Iterator[None]:
    """A level that a test leaves behind silences what another one waits for, an hour later in another file."""
    before = _levels()
    yield
    after = _levels()
    assert after == before, f"the test left log levels changed: {dict(before ^ after)}"


def _levels() -> set[tuple[str, int]]:
    loggers = logging.getLogger().manager.loggerDict
    ours = {(name, logging.getLogger(name).level) for name in loggers if name.partition(".")[0] == "assigner"}
    changed = {one for one in ours if one[1] != logging.NOTSET}
    return {*changed, ("", logging.getLogger().level), ("disabled", logging.getLogger().manager.disable)}
