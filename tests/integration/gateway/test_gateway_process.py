"""The gateway in a process of its own: on the store of a service, in front of a real broker, and what it says when
something is missing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from assigner.backends.memory import MemoryBackend, MemoryState
from assigner.clock import SystemClock
from assigner.errors import InvalidInput
from assigner.gateway.settings import GatewaySettings, SaslMechanism
from assigner.server import ServerSettings
from assigner.service import GatewayProcess, Service
from assigner.settings import HttpSettings, InstanceSection, KafkaSection, Settings
from assigner.testing.waiting import eventually
from bench.gateway.raw import COMMIT, classic_group, coordinator, joined
from tests.support.servers.etcd import RunningEtcd
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.ports import free_port
from tests.support.service_processes import until
from tests.support.spans import CollectedSpans, collected_spans

WITHIN = 60.0


def settings(name: str, upstream: str, **changes: Any) -> Settings:
    usual = Settings(
        instance=InstanceSection(name=name),
        grpc=ServerSettings(port=0),
        http=HttpSettings(port=0),
        kafka=KafkaSection(bootstrap_servers=upstream),
        gateway=GatewaySettings(port=0, initial_rebalance_delay=1.0),
        consumer_ttl=6.0,
    )
    return msgspec.structs.replace(usual, **changes)


class Pair:
    """A service that leads, and a gateway of its own process, here in one: they share the store and gRPC."""

    def __init__(self, service: Service, process: GatewayProcess) -> None:
        self.service = service
        self.process = process
        assert process.gateway is not None
        self.bootstrap = f"127.0.0.1:{process.gateway.port}"


@asynccontextmanager
async def paired(upstream: str) -> AsyncIterator[Pair]:
    backend = MemoryBackend.shared(MemoryState(SystemClock()))
    async with (
        Service(settings("leader", upstream), backend=backend) as service,
        GatewayProcess(settings("gateway", upstream), backend=backend) as process,
    ):
        await service.wait_ready()
        await process.wait_ready()
        assert process.gateway is not None
        await process.gateway.server.until_ready()
        yield Pair(service, process)


@pytest.fixture
async def pair(kafka_broker: KafkaBroker) -> AsyncIterator[Pair]:
    """In a task of its own: a fixture is left by another task than it was entered by, which a task group forbids."""
    over = asyncio.Event()
    ready: asyncio.Future[Pair] = asyncio.get_running_loop().create_future()

    async def live() -> None:
        async with paired(kafka_broker.bootstrap) as pair:
            ready.set_result(pair)
            await over.wait()

    task = asyncio.create_task(live())
    both: set[asyncio.Future[Any]] = {ready, task}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not ready.done():
        task.result()
    yield ready.result()
    over.set()
    await task


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> str:
    name = f"orders-{free_port()}"
    kafka_broker.create_topic(name, 4)
    return name


# --- members of both kinds, whose groups another process leads -----------------------------------------------------


async def test_kafka_4_members_join_and_commit_through_it(pair: Pair, topic: str) -> None:
    members = await joined(await coordinator(pair.bootstrap, "g"), "g", topic, 4, 2)
    assert sorted(number for one in members for number in one.partitions) == [0, 1, 2, 3]
    (first, *_) = members
    await first.connection.send(COMMIT, first.commit(first.partitions[0], 7))
    described = await pair.service.instance.operations.describe("g")
    assert {one.consumer.kind for one in described.members} == {"kafka"}
    assert {one.consumer.instance for one in described.members} == {"gateway"}
    assert described.summary.leader == "leader"
    assert pair.process.instance.leadership is None
    for one in members:
        await one.connection.close()


async def test_classic_members_join_at_the_leader_through_it(pair: Pair, topic: str) -> None:
    members = await classic_group(await coordinator(pair.bootstrap, "c"), "c", topic, 3)
    described = await pair.service.instance.operations.describe("c")
    assert described.classic is not None
    assert {one.member_id for one in described.classic.members} == {one.id for one in members}
    for one in members:
        await one.connection.close()


async def test_its_figures_are_in_its_metrics(pair: Pair, topic: str) -> None:
    members = await joined(await coordinator(pair.bootstrap, "m"), "m", topic, 4, 1)
    scraped = (await pair.process.instance.metrics.render()).decode()
    assert "assigner_gateway_members 1.0" in scraped
    assert "assigner_gateway_brokers_up 1.0" in scraped
    assert 'assigner_gateway_requests_total{api="ConsumerGroupHeartbeat"}' in scraped
    assert "assigner_gateway_" not in (await pair.service.instance.metrics.render()).decode()
    await members[0].connection.close()


async def test_a_drain_closes_its_connections_and_leaves_the_members_registered(pair: Pair, topic: str) -> None:
    (member,) = await joined(await coordinator(pair.bootstrap, "d"), "d", topic, 4, 1)
    pair.process.stop()
    await pair.process.run_until_stopped()
    assert pair.process.gateway is not None
    assert pair.process.gateway.snapshot().connections == 0
    described = await pair.service.instance.operations.describe("d")
    assert [one.owned for one in described.members] == [4], "another gateway goes on with it"
    await member.connection.close()


# --- spans ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def spans() -> Iterator[CollectedSpans]:
    with collected_spans() as collected:
        yield collected


async def test_the_spans_of_a_classic_join_reach_from_the_gateway_to_the_leader(
    pair: Pair, topic: str, spans: CollectedSpans
) -> None:
    (member,) = await classic_group(await coordinator(pair.bootstrap, "s"), "s", topic, 1)
    await member.connection.send(COMMIT, member.commit(0, 1))
    complete = spans.one("assigner.coordinator.rebalance-complete")
    assert dict(complete.attributes or {}) == {"generation_id": member.generation, "leader_id": member.id}
    at_leader = spans.parent_of(complete)
    assert at_leader is not None
    assert at_leader.name == "assigner.group.join"
    at_gateway = spans.parent_of(at_leader)
    assert at_gateway is not None
    assert at_gateway.name == "assigner.gateway.group.join"
    assert (at_gateway.attributes or {})["group"] == "s"
    assert at_gateway.parent is None
    assert {"assigner.gateway.kafka.find-coordinator", "assigner.gateway.group.sync", "assigner.group.sync"} <= set(
        spans.names
    )
    commit = spans.one("assigner.group.offset-commit")
    assert spans.parent_of(commit) == spans.one("assigner.gateway.group.offset-commit")
    await member.connection.close()


async def test_no_span_holds_the_session_of_a_kafka_4_member(pair: Pair, topic: str, spans: CollectedSpans) -> None:
    (member,) = await joined(await coordinator(pair.bootstrap, "n"), "n", topic, 4, 1)
    await member.connection.send(COMMIT, member.commit(0, 1))
    assert {"assigner.gateway.group.heartbeat", "assigner.gateway.group.offset-commit"} <= set(spans.names)
    assert member.id not in "".join(one.to_json() for one in spans.ended)
    await member.connection.close()


# --- what it says when something is missing ------------------------------------------------------------------------


def test_a_store_within_one_process_is_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidInput, match="or run the gateway in the service: assigner serve --gateway"):
        GatewayProcess(settings("g", "127.0.0.1:1"))


def test_libraries_that_are_missing_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "assigner.gateway.process", None)
    with pytest.raises(InvalidInput, match=r"pip install '.\[gateway\]'"):
        GatewayProcess(settings("g", "127.0.0.1:1"), backend=MemoryBackend.shared(MemoryState(SystemClock())))


@pytest.mark.parametrize(
    ("gateway", "remedy"),
    [
        (GatewaySettings(enabled=True, port=0), "gateway.upstream names no broker; set it, or kafka.bootstrap_servers"),
        (GatewaySettings(enabled=True, port=0, upstream="no port:x"), "write host:port"),
        (GatewaySettings(enabled=True, port=0, upstream="h:1", host="0.0.0.0"), "set gateway.tls_certificate"),
        (
            GatewaySettings(enabled=True, port=0, upstream="h:1", sasl_mechanisms=(SaslMechanism.OAUTHBEARER,)),
            "set auth.keys",
        ),
    ],
)
async def test_settings_that_do_not_do_are_refused_with_a_remedy(gateway: GatewaySettings, remedy: str) -> None:
    with pytest.raises(InvalidInput, match=remedy):
        async with Service(settings("s", "", gateway=gateway)):
            pass


async def test_a_port_that_is_taken_is_named_with_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wanted = GatewaySettings(enabled=True, port=port, upstream="127.0.0.1:1")
        with pytest.raises(InvalidInput, match=f"on 127.0.0.1:{port}: .*choose another --gateway-port"):
            async with Service(settings("s", "", gateway=wanted)):
                pass


async def test_a_service_whose_gateway_has_no_broker_is_ready_and_says_so() -> None:
    wanted = GatewaySettings(enabled=True, port=0, upstream=f"127.0.0.1:{free_port()}")
    async with Service(settings("s", "", gateway=wanted)) as service:
        await service.wait_ready()
        await eventually(lambda: not service._problems(), within=WITHIN)
        assert any("no Kafka broker can be reached: check gateway.upstream" in line for line in service._warnings())


# --- as a process --------------------------------------------------------------------------------------------------

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ASSIGNER_")}
        command = [sys.executable, "-m", "assigner.cli", *arguments]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def readiness(port: int) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


@pytest.mark.processes
def test_it_waits_for_brokers_says_so_and_ends_with_0_on_sigterm(
    start: Start, etcd_server: RunningEtcd, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    late = KafkaBroker(tmp_path / "late")
    http = free_port()
    process = start(
        "gateway",
        *("--store", "etcd", "--endpoints", etcd_server.endpoint, "--root", f"/gateway-{http}/"),
        *("--http-port", str(http), "--gateway-port", "0", "--gateway-upstream", late.bootstrap),
    )
    until(lambda: "no Kafka broker can be reached" in readiness(http)[1], WITHIN, "it says what is missing")
    assert readiness(http)[0] == 503
    try:
        late.start()
        until(lambda: readiness(http)[0] == 200, WITHIN, "it is ready once a broker answers")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=WITHIN)
    finally:
        late.shut_down()
    assert process.returncode == 0, errors
    events = [json.loads(line)["event"] for line in errors.splitlines() if line.startswith("{")]
    assert {"kafka_broker_unreachable", "instance_attached", "service_started"} <= set(events)
    assert "Traceback" not in errors
