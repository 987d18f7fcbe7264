"""What no group is concerned with passes through a gateway: unmodified clients write, read and administer."""

from __future__ import annotations

import asyncio
import socket
import struct
import warnings
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from assigner.gateway.codec import NO_TIME, error_code, heartbeat_answer, make, nested, response_class
from assigner.gateway.requests import HandledApi, Request
from assigner.gateway.server import GatewayServer
from assigner.gateway.settings import GatewaySettings
from assigner.testing.waiting import eventually
from tests.support.gateway.clients import SECONDS, aio_round, read, write
from tests.support.gateway.serving import address, gateway_before
from tests.support.gateway.wired import framed
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.mock_kafka import LOGGED, PARTITIONS, MockKafka
from tests.support.servers.ports import free_port

PAGE = [f"{n}".encode() for n in range(500)]


async def test_records_pass_through_to_a_mock_cluster_and_back() -> None:
    mock = await asyncio.to_thread(MockKafka)
    async with gateway_before(mock.bootstrap) as server:
        await asyncio.to_thread(write, address(server), "t", PAGE)
        found = await asyncio.to_thread(read, address(server), "t", PARTITIONS, len(PAGE))
        assert sorted(found) == sorted(PAGE)


async def test_each_of_several_brokers_has_a_port_and_is_reached_by_it() -> None:
    mock = await asyncio.to_thread(MockKafka, 3)
    async with gateway_before(mock.bootstrap) as server:
        await eventually(lambda: len(server.ports) == 3, within=SECONDS)
        assert len({server.port, *server.ports.values()}) == 4
        await asyncio.to_thread(write, address(server), "t", PAGE)
        found = await asyncio.to_thread(read, address(server), "t", PARTITIONS, len(PAGE))
        assert sorted(found) == sorted(PAGE)
        # The partitions are spread over the brokers, and each was asked under its own port.
        assert server.statistics().refused.keys() <= {"idle"}


async def test_groups_are_listed_once_although_clients_ask_every_broker() -> None:
    names = [f"group-{n}" for n in range(20)]

    def listed(request: Request, _: Any) -> Any:
        schema = response_class(16, request.version)
        group = nested(schema, "ListedGroup")
        made = (
            make(group, group_id=name, protocol_type="consumer", group_state="Empty", group_type="classic")
            for name in names
        )
        return make(schema, throttle_time=NO_TIME, error_code=error_code(0), groups=tuple(made))

    mock = await asyncio.to_thread(MockKafka, 3)
    async with gateway_before(mock.bootstrap, {16: HandledApi(0, 5, listed)}) as server:
        await eventually(lambda: len(server.ports) == 3, within=SECONDS)
        admin: Any = AdminClient({"bootstrap.servers": address(server), **LOGGED})
        found = await asyncio.to_thread(lambda: admin.list_consumer_groups().result(SECONDS))
        assert sorted(group.group_id for group in found.valid) == sorted(names)


async def test_the_ports_of_brokers_follow_from_their_node_ids() -> None:
    mock = await asyncio.to_thread(MockKafka, 2)
    first = free_port()
    async with gateway_before(mock.bootstrap, broker_base_port=first) as server:
        await eventually(lambda: len(server.ports) == 2, within=SECONDS)
        assert server.ports == {1: first + 1, 2: first + 2}


async def test_clients_are_told_the_ports_of_the_gateway_and_no_others(kafka_broker: KafkaBroker) -> None:
    async with gateway_before(kafka_broker.bootstrap) as server:
        admin: Any = AdminClient({"bootstrap.servers": address(server), **LOGGED})
        listed = await asyncio.to_thread(lambda: admin.list_topics(timeout=SECONDS))
        here = [(1, "127.0.0.1", server.ports[1])]
        assert [(one.id, one.host, one.port) for one in listed.brokers.values()] == here
        described = await asyncio.to_thread(lambda: admin.describe_cluster().result(SECONDS))
        assert [(one.id, one.host, one.port) for one in described.nodes] == here


async def test_topics_are_made_written_with_large_records_and_read_through_a_gateway(
    kafka_broker: KafkaBroker,
) -> None:
    async with gateway_before(kafka_broker.bootstrap) as server:
        bootstrap = address(server)
        admin: Any = AdminClient({"bootstrap.servers": bootstrap, **LOGGED})
        made = admin.create_topics([NewTopic("through", 2, 1, config={"max.message.bytes": "8000000"})])["through"]
        await asyncio.to_thread(made.result, SECONDS)

        async def is_listed() -> bool:
            return any(topic.name == "through" and topic.partitions == 2 for topic in await server.list_topics())

        await eventually(is_listed, within=SECONDS)
        large = [bytes([n]) * 3_000_000 for n in range(4)]
        await asyncio.to_thread(write, bootstrap, "through", large, **{"message.max.bytes": 8_000_000})
        assert sorted(await asyncio.to_thread(read, bootstrap, "through", 2, 4)) == large
        assert await aio_round(bootstrap, "through", b"aiokafka") == b"aiokafka"
        assert await asyncio.to_thread(kafka_python_round, bootstrap, "through", b"kafka-python") == b"kafka-python"


async def test_writes_without_acks_stop_nobody(kafka_broker: KafkaBroker) -> None:
    # The mock cluster answers such writes, which no broker does.
    await asyncio.to_thread(kafka_broker.create_topic, "no-acks", PARTITIONS)
    async with gateway_before(kafka_broker.bootstrap) as server:
        # A broker that does not know yet that it leads a partition drops what it need not answer.
        await asyncio.to_thread(write, address(server), "no-acks", PAGE, acks=1)
        held = await asyncio.to_thread(write, address(server), "no-acks", PAGE, acks=0)
        found = await asyncio.to_thread(read, address(server), "no-acks", PARTITIONS, 2 * len(PAGE))
        assert sorted(found) == sorted(2 * PAGE)
        assert held.flush(0) == 0


async def test_idempotent_and_transactional_producers_find_their_coordinator(kafka_broker: KafkaBroker) -> None:
    await asyncio.to_thread(kafka_broker.create_topic, "transactions", 1)
    async with gateway_before(kafka_broker.bootstrap) as server:
        bootstrap = address(server)

        def transact() -> None:
            producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "through-a-gateway", **LOGGED})
            producer.init_transactions(SECONDS)
            producer.begin_transaction()
            producer.produce("transactions", b"committed")
            producer.commit_transaction(SECONDS)

        await asyncio.to_thread(transact)
        assert await asyncio.to_thread(read, bootstrap, "transactions", 1, 1) == [b"committed"]


async def test_the_port_of_a_broker_is_closed_while_it_is_away(start_kafka: Callable[..., KafkaBroker]) -> None:
    broker = await asyncio.to_thread(start_kafka)
    async with gateway_before(broker.bootstrap) as server:
        port = server.ports[broker.node_id]
        staying = socket.create_connection(("127.0.0.1", port))
        staying.setblocking(False)
        assert is_open(port)
        await asyncio.to_thread(broker.kill)
        await eventually(lambda: not is_open(port), within=SECONDS)
        # Whoever was connected is told too.
        await eventually(lambda: is_at_end(staying), within=SECONDS)
        # The first port stands for no broker.
        assert is_open(server.port)
        await asyncio.to_thread(broker.start)
        await eventually(lambda: is_open(port), within=SECONDS)
        assert server.ports[broker.node_id] == port
        staying.close()


async def test_a_broker_that_is_frozen_is_away(start_kafka: Callable[..., KafkaBroker]) -> None:
    broker = await asyncio.to_thread(start_kafka)
    async with gateway_before(broker.bootstrap, connect_timeout=1.0) as server:
        port = server.ports[broker.node_id]
        broker.freeze()
        try:
            await eventually(lambda: not is_open(port), within=SECONDS)
        finally:
            broker.thaw()
        await eventually(lambda: is_open(port), within=SECONDS)


async def test_a_gateway_waits_for_brokers_that_are_not_there_yet() -> None:
    server = GatewayServer(GatewaySettings(port=0, upstream=f"127.0.0.1:{free_port()}"))
    async with server.serving({}):
        assert not server.is_ready
        await eventually(lambda: server.statistics().upstream_failures > 1, within=SECONDS)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\0\0\0\x0a\0\x12\0\0\0\0\0\x01\xff\xff")
        assert await reader.read() == b""
        writer.close()


def kafka_python_round(bootstrap: str, topic: str, value: bytes) -> bytes:
    with warnings.catch_warnings():
        # It reads its schemas in a way that is deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka

        producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
        written = producer.send(topic, value).get(SECONDS)
        producer.close()
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=int(SECONDS * 1000))
        where = kafka.TopicPartition(topic, written.partition)
        consumer.assign([where])
        consumer.seek(where, written.offset)
        found: bytes = next(consumer).value
        consumer.close()
        return found


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_at_end(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


# --- draining ------------------------------------------------------------------------------------------------------


async def test_a_gateway_that_drains_has_held_answers_sent_and_takes_nobody_new() -> None:
    def held(request: Request, _: Any) -> Any:
        interrupted = request.interrupted()
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        interrupted.add_done_callback(lambda _: answer.set_result(heartbeat_answer(request.version, 0)))
        return answer

    mock = await asyncio.to_thread(MockKafka)
    async with gateway_before(mock.bootstrap, {12: HandledApi(0, 4, held)}) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(framed(12, 4, 5, group_id="g", generation_id=1, member_id="m", group_instance_id=None))
        await eventually(lambda: server.statistics().parked == 1, within=SECONDS)
        await server.drain(SECONDS)
        assert struct.unpack(">ii", (await reader.read())[:8])[1] == 5
        assert not is_open(server.port)
        assert server.statistics().connections == 0
        writer.close()


async def test_a_gateway_that_drains_closes_after_the_timeout_what_is_still_owed() -> None:
    forever: list[asyncio.Future[bytes]] = []

    def held(*_: Any) -> Any:
        forever.append(asyncio.get_running_loop().create_future())
        return forever[-1]

    mock = await asyncio.to_thread(MockKafka)
    async with gateway_before(mock.bootstrap, {12: HandledApi(0, 4, held)}) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(framed(12, 4, 5, group_id="g", generation_id=1, member_id="m", group_instance_id=None))
        await eventually(lambda: server.statistics().parked == 1, within=SECONDS)
        await server.drain(0.1)
        assert await reader.read() == b""
        writer.close()
    # What nobody waits for any more ends with the gateway.
    assert forever[0].cancelled()
