"""One client's connection: answers in the order of requests, bounds on what is kept, and a reason for every close."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from assigner.errors import SourceUnavailable
from assigner.gateway.codec import (
    NO_TIME,
    encode,
    error_code,
    heartbeat_answer,
    make,
    nested,
    request_class,
    response_class,
)
from assigner.gateway.requests import CloseConnection, HandledApi, Interruption, Request
from assigner.gateway.upstream.brokers import Broker
from assigner.gateway.wire.connection import READ_AHEAD, SMALL_REQUEST
from assigner.gateway.wire.frames import ProtocolViolation
from assigner.gateway.wire.shared import BOOTSTRAP
from assigner.gateway.wire.traffic import MOST_BUFFERED
from tests.support.gateway.entities import make_entity
from tests.support.gateway.wired import (
    NODE,
    PORT,
    NotedTransport,
    ScriptedConnection,
    WiredClient,
    WiredGateway,
    framed,
    framed_answer,
    framed_body,
    settle,
)

HEARTBEAT, FETCH, METADATA, PRODUCE, API_VERSIONS, FIND_COORDINATOR, CREATE_TOPICS = 12, 1, 3, 0, 18, 10, 19
LIST_GROUPS = 16
MEMBER: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
LIST: dict[str, Any] = {"timestamp": 0, "replica_id": -1, "isolation_level": 0, "topics": (), "timeout": NO_TIME}
LIST_OFFSETS = 2


class Groups:
    """Handles heartbeats as the test says, and notes them."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.futures: list[asyncio.Future[Any]] = []
        self.answer: Any = None
        """Given at once; None: each is awaited."""

    def heartbeat(self, request: Request, _: Any) -> Any:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]

    def api(self, **more: Any) -> dict[int, HandledApi]:
        return {HEARTBEAT: HandledApi(0, 4, self.heartbeat, **more)}


def heartbeat(code: int = 0) -> Any:
    return make(response_class(HEARTBEAT, 4), throttle_time=NO_TIME, error_code=error_code(code))


@pytest.fixture
async def groups() -> Groups:
    return Groups()


@pytest.fixture
async def gateway(groups: Groups) -> WiredGateway:
    return WiredGateway(groups.api())


@pytest.fixture
async def client(gateway: WiredGateway) -> WiredClient:
    return gateway.client()


def reads(end: NotedTransport | ScriptedConnection) -> bool:
    return end.reads


def is_idle(client: WiredClient) -> bool:
    return client.connection.is_idle


async def passed_on(client: WiredClient, correlation: int, api: int = LIST_OFFSETS, version: int = 7) -> bytes:
    """Have the broker answer; returns what it sent."""
    answer = framed_answer(api, version, correlation, make_entity(response_class(api, version), Random(correlation)))
    client.upstream.answers(answer)
    await settle()
    return answer


# --- handled here --------------------------------------------------------------------------------------------------


async def test_a_handler_that_answers_at_once_costs_no_task(client: WiredClient, groups: Groups) -> None:
    groups.answer = heartbeat(27)
    before = asyncio.all_tasks()
    correlation = client.request(HEARTBEAT, 4, **MEMBER)
    assert asyncio.all_tasks() == before
    assert client.answers(HEARTBEAT, 4) == [(correlation, heartbeat(27))]


async def test_a_handler_may_answer_with_bytes_that_it_encoded(client: WiredClient, groups: Groups) -> None:
    groups.answer = heartbeat_answer(4, 25)
    client.request(HEARTBEAT, 4, **MEMBER)
    assert [answer for _, answer in client.answers(HEARTBEAT, 4)] == [heartbeat(25)]


async def test_a_handler_is_told_who_asks(client: WiredClient, groups: Groups) -> None:
    groups.answer = heartbeat()
    client.request(API_VERSIONS, 3, client_software_name="librdkafka", client_software_version="2.16.0")
    client.request(HEARTBEAT, 4, client_id="app", **MEMBER)
    request = groups.requests[0]
    assert (request.api, request.version, request.client_id, request.correlation) == (HEARTBEAT, 4, "app", 2)
    assert request.received == client.gateway.clock.now()
    who = request.client
    assert (who.host, who.listener, who.org, who.identity) == ("192.0.2.7", "test", "", "")
    assert (who.software, who.software_version) == ("librdkafka", "2.16.0")
    assert not who.closed


async def test_a_parked_answer_holds_back_what_follows_on_its_connection_and_nothing_else(
    gateway: WiredGateway, client: WiredClient, groups: Groups
) -> None:
    first = client.request(HEARTBEAT, 4, **MEMBER)
    second = client.request(HEARTBEAT, 4, **MEMBER)
    assert len(groups.requests) == 1
    other = gateway.client()
    other.request(HEARTBEAT, 4, **MEMBER)
    assert len(groups.requests) == 2
    groups.futures[1].set_result(heartbeat())
    await settle()
    assert other.correlations() == [1]
    assert client.correlations() == []
    assert gateway.wire.traffic.parked == 1
    groups.futures[0].set_result(heartbeat())
    await settle()
    assert client.correlations() == [first]
    groups.futures[2].set_result(heartbeat())
    await settle()
    assert client.correlations() == [second]
    assert gateway.wire.traffic.parked == 0


async def test_the_next_request_on_the_connection_is_told_to_whoever_holds_an_answer(
    client: WiredClient, groups: Groups
) -> None:
    client.request(HEARTBEAT, 4, **MEMBER)
    interrupted = groups.requests[0].interrupted()
    assert not interrupted.done()
    # Its first byte is enough.
    client.send(b"\0")
    assert interrupted.result() is Interruption.FOLLOWED
    told: list[Interruption] = []
    groups.requests[0].on_interruption(told.append)
    assert told == [Interruption.FOLLOWED]


async def test_a_request_that_came_together_with_one_whose_answer_is_held_ends_the_hold(
    client: WiredClient, groups: Groups
) -> None:
    both = framed(HEARTBEAT, 4, 1, **MEMBER) + framed(HEARTBEAT, 4, 2, **MEMBER)
    client.send(both + both)
    assert groups.requests[0].interruptions == (Interruption.FOLLOWED,)
    groups.futures[0].set_result(heartbeat())
    await settle()
    # The next one is followed too, and the last one by nobody.
    assert groups.requests[1].interruptions == (Interruption.FOLLOWED,)
    for future in (1, 2):
        groups.futures[future].set_result(heartbeat())
        await settle()
    assert groups.requests[3].interruptions == ()


async def test_a_handler_whose_client_went_away_is_told_and_not_cancelled(
    gateway: WiredGateway, client: WiredClient, groups: Groups
) -> None:
    client.request(HEARTBEAT, 4, **MEMBER)
    interrupted = groups.requests[0].interrupted()
    client.gone()
    assert interrupted.result() is Interruption.CLOSED
    assert groups.requests[0].client.closed
    await settle()
    assert not groups.futures[0].cancelled()
    groups.futures[0].set_result(heartbeat())
    await settle()
    assert client.frames() == []
    assert gateway.wire.traffic.parked == 0
    assert client.place.left == 1


async def test_too_many_handlers_of_clients_that_went_away_are_cancelled(gateway: WiredGateway, groups: Groups) -> None:
    for _ in range(1_001):
        client = gateway.client()
        client.request(HEARTBEAT, 4, **MEMBER)
        client.gone()
    await settle()
    assert [future.cancelled() for future in groups.futures] == [True] + [False] * 1_000


async def test_a_handler_that_fails_closes_the_connection(client: WiredClient, groups: Groups) -> None:
    groups.answer = RuntimeError("a defect")
    client.request(HEARTBEAT, 4, **MEMBER)
    assert not client.is_open
    assert client.gateway.refused == {"handler": 1}


@pytest.mark.parametrize("awaited", [False, True])
async def test_a_handler_that_fails_may_have_an_answer_for_that(groups: Groups, awaited: bool) -> None:
    gateway = WiredGateway(groups.api(failed=lambda *_: heartbeat(15)))
    client = gateway.client()
    if not awaited:
        groups.answer = RuntimeError("a defect")
    client.request(HEARTBEAT, 4, **MEMBER)
    if awaited:
        groups.futures[0].set_exception(RuntimeError("a defect"))
        await settle()
    assert [answer for _, answer in client.answers(HEARTBEAT, 4)] == [heartbeat(15)]
    assert client.is_open


async def test_a_handler_may_close_the_connection(client: WiredClient, groups: Groups) -> None:
    client.request(HEARTBEAT, 4, **MEMBER)
    groups.futures[0].set_exception(CloseConnection("no answer fits"))
    await settle()
    assert not client.is_open


async def test_a_coroutine_answers_when_it_is_done() -> None:
    async def later(request: Request, _: Any) -> Any:
        await asyncio.sleep(0)
        return heartbeat(request.correlation)

    client = WiredGateway({HEARTBEAT: HandledApi(0, 4, later)}).client()
    client.request(HEARTBEAT, 4, **MEMBER)
    client.request(HEARTBEAT, 4, **MEMBER)
    await settle()
    assert client.answers(HEARTBEAT, 4) == [(1, heartbeat(1)), (2, heartbeat(2))]


async def test_a_client_that_sends_a_thousand_requests_at_once_lets_others_have_their_turn(
    client: WiredClient, groups: Groups
) -> None:
    groups.answer = heartbeat()
    other = client.gateway.client()
    client.send(framed(HEARTBEAT, 4, 1, **MEMBER) * 1_000)
    assert len(client.frames()) == 50
    other.request(HEARTBEAT, 4, **MEMBER)
    assert other.correlations() == [1]
    found = 50
    while found < 1_000:
        await asyncio.sleep(0)
        found += len(client.frames())
    assert found == 1_000


async def test_what_is_read_ahead_of_a_parked_answer_is_bounded(client: WiredClient, groups: Groups) -> None:
    client.request(HEARTBEAT, 4, **MEMBER)
    one = framed(HEARTBEAT, 4, 2, **MEMBER)
    count = READ_AHEAD // len(one) + 1
    client.send(one * count)
    assert not reads(client.transport)
    groups.answer = heartbeat()
    groups.futures[0].set_result(heartbeat())
    found = 0
    while found < 1 + count:
        await settle()
        found += len(client.frames())
    assert found == 1 + count
    assert reads(client.transport)


# --- passed on -----------------------------------------------------------------------------------------------------


async def test_a_request_is_passed_on_as_it_was_sent_and_answered_as_the_broker_does(client: WiredClient) -> None:
    request = framed(LIST_OFFSETS, 7, 55, **LIST)
    client.send(request)
    await settle()
    assert client.upstream.sent == request
    answer = await passed_on(client, 55)
    assert client.transport.sent == answer


async def test_no_connection_to_a_broker_is_opened_before_it_is_needed(client: WiredClient, groups: Groups) -> None:
    groups.answer = heartbeat()
    client.request(API_VERSIONS, 3, client_software_name="x", client_software_version="1")
    client.request(HEARTBEAT, 4, **MEMBER)
    await settle()
    assert not client.gateway.brokers.connections


async def test_pieces_are_passed_on_in_both_directions_before_a_frame_is_whole(client: WiredClient) -> None:
    request = framed(LIST_OFFSETS, 7, 55, **LIST)
    client.send(request[:20])
    await settle()
    client.send(request[20:30])
    assert client.upstream.sent == request[:30]
    client.send(request[30:])
    answer = framed_answer(LIST_OFFSETS, 7, 55, make_entity(response_class(LIST_OFFSETS, 7), Random(1)))
    client.upstream.answers(answer[:9])
    assert client.transport.sent == answer[:9]
    client.upstream.answers(answer[9:])
    assert client.transport.sent == answer


async def test_answers_keep_the_order_of_the_requests_whoever_answers_them(client: WiredClient, groups: Groups) -> None:
    groups.answer = heartbeat()
    order = [
        client.request(LIST_OFFSETS, 7, **LIST),
        client.request(HEARTBEAT, 4, **MEMBER),
        client.request(LIST_OFFSETS, 7, **LIST),
        client.request(HEARTBEAT, 4, **MEMBER),
    ]
    await settle()
    assert len(groups.requests) == 2
    assert client.correlations() == []
    await passed_on(client, order[0])
    assert client.correlations() == order[:2]
    await passed_on(client, order[2])
    assert client.correlations() == order[2:]


async def test_a_request_is_not_passed_on_before_an_earlier_one_was_handled(
    client: WiredClient, groups: Groups
) -> None:
    client.request(HEARTBEAT, 4, **MEMBER)
    second = client.request(LIST_OFFSETS, 7, **LIST)
    await settle()
    assert not client.gateway.brokers.connections
    groups.futures[0].set_result(heartbeat())
    await settle()
    await passed_on(client, second)
    assert client.correlations() == [1, second]


async def test_a_produce_without_acks_has_no_answer_and_stops_nobody(client: WiredClient, groups: Groups) -> None:
    groups.answer = heartbeat()
    produce = {"transactional_id": None, "timeout": NO_TIME, "topic_data": ()}
    client.request(PRODUCE, 9, acks=0, **produce)
    second = client.request(HEARTBEAT, 4, **MEMBER)
    await settle()
    assert client.correlations() == [second]
    third = client.request(PRODUCE, 9, acks=1, **produce)
    client.request(HEARTBEAT, 4, **MEMBER)
    await settle()
    assert client.correlations() == []
    await passed_on(client, third, PRODUCE, 9)
    assert client.correlations() == [third, 4]


async def test_an_answer_that_names_brokers_names_the_ports_here(client: WiredClient) -> None:
    version = 12
    fields = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    correlation = client.request(METADATA, version, topics=None, **fields)
    await settle()
    made = make_entity(response_class(METADATA, version), Random(1))
    schema = response_class(METADATA, version)
    broker = nested(schema, "MetadataResponseBroker")(node_id=3, host="broker-3.internal", port=9092, rack="r")
    client.upstream.answers(framed_answer(METADATA, version, correlation, replace(made, brokers=(broker,))))
    ((found, answer),) = client.answers(METADATA, version)
    assert found == correlation
    assert [(one.host, one.port) for one in answer.brokers] == [("gateway.example", PORT)]


async def test_a_broker_that_answers_what_nobody_asked_ends_the_connection(client: WiredClient) -> None:
    client.request(LIST_OFFSETS, 7, **LIST)
    await settle()
    with pytest.raises(ProtocolViolation):
        await passed_on(client, 99)


async def test_a_broker_that_hangs_up_ends_the_connection(client: WiredClient) -> None:
    client.request(LIST_OFFSETS, 7, **LIST)
    await settle()
    client.upstream.is_lost()
    assert not client.is_open
    assert client.gateway.refused == {"upstream": 1}


async def test_a_broker_that_can_t_be_reached_ends_the_connection_and_is_looked_for(client: WiredClient) -> None:
    client.gateway.brokers.failure = SourceUnavailable("refused")
    client.request(LIST_OFFSETS, 7, **LIST)
    await settle()
    assert not client.is_open
    assert client.gateway.brokers.looked == 1


async def test_a_client_that_leaves_takes_its_connection_to_the_broker_along(client: WiredClient) -> None:
    client.request(LIST_OFFSETS, 7, **LIST)
    await settle()
    client.gone()
    # What it sent is still for the broker.
    assert (client.upstream.closed, client.upstream.aborted) == (True, False)
    client.upstream.is_lost()
    assert not client.gateway.wire.traffic.pipes


async def test_what_a_client_sent_before_it_left_reaches_the_broker(client: WiredClient) -> None:
    client.gateway.brokers.may_connect.clear()
    client.request(PRODUCE, 9, acks=0, transactional_id=None, timeout=NO_TIME, topic_data=())
    await settle()
    client.gone()
    client.gateway.brokers.may_connect.set()
    await settle()
    assert client.upstream.sent == framed(PRODUCE, 9, 1, acks=0, transactional_id=None, timeout=NO_TIME, topic_data=())
    assert client.upstream.closed
    client.upstream.is_lost()
    assert not client.gateway.wire.traffic.pipes


async def test_a_client_is_not_read_while_its_broker_is_slow(client: WiredClient) -> None:
    client.gateway.brokers.may_connect.clear()
    client.send(struct.pack(">i", 200_000) + framed(LIST_OFFSETS, 7, 1, **LIST)[4:] + bytes(70_000))
    assert not reads(client.transport)
    client.gateway.brokers.may_connect.set()
    await settle()
    assert reads(client.transport)
    client.upstream.pipe.broker_is_full(True)
    assert not reads(client.transport)
    client.upstream.pipe.broker_is_full(False)
    assert reads(client.transport)


async def test_a_broker_is_not_read_while_its_client_is_slow(client: WiredClient, groups: Groups) -> None:
    client.request(LIST_OFFSETS, 7, **LIST)
    await settle()
    client.connection.pause_writing()
    assert not reads(client.upstream)
    assert not reads(client.transport)
    client.connection.resume_writing()
    assert reads(client.upstream)
    assert reads(client.transport)
    assert not groups.requests


async def test_a_client_with_many_requests_in_flight_is_not_answered_more_until_some_are(groups: Groups) -> None:
    client = WiredGateway(groups.api(), max_requests_in_flight=3).client()
    sent = [client.request(LIST_OFFSETS, 7, **LIST) for _ in range(5)]
    await settle()
    one = len(framed(LIST_OFFSETS, 7, 1, **LIST))
    assert len(client.upstream.sent) == 3 * one
    for correlation in sent[:2]:
        await passed_on(client, correlation)
    assert len(client.upstream.sent) == 5 * one


# --- versions ------------------------------------------------------------------------------------------------------


async def test_a_version_of_api_versions_that_nobody_knows_is_answered_with_those_that_are(client: WiredClient) -> None:
    client.send(framed_body(API_VERSIONS, 4, 8, b"").replace(b"\0\x12\0\x04", b"\0\x12\0\x63"))
    ((correlation, answer),) = client.answers(API_VERSIONS, 0)
    assert correlation == 8
    assert int(answer.error_code) == 35
    assert [(int(one.api_key), int(one.min_version), int(one.max_version)) for one in answer.api_keys] == [(18, 0, 4)]
    assert client.is_open


@pytest.mark.parametrize("version", range(5))
async def test_clients_are_offered_what_is_handled_here_and_what_the_broker_has(
    client: WiredClient, version: int
) -> None:
    fields = {"client_software_name": "x", "client_software_version": "1"}
    correlation = client.request(API_VERSIONS, version, **fields)
    ((found, answer),) = client.answers(API_VERSIONS, version)
    assert found == correlation
    offered = {int(one.api_key): (int(one.min_version), int(one.max_version)) for one in answer.api_keys}
    assert offered[HEARTBEAT] == (0, 4)
    assert offered[FETCH] == (4, 15)
    assert offered[PRODUCE] == (0, 13)
    # Not without SASL.
    assert 17 not in offered
    assert not {25, 28, 38, 71, 72, 76, 88} & offered.keys()


@pytest.mark.parametrize(
    ("api", "version"),
    [(METADATA, 14), (FETCH, 16), (HEARTBEAT, 5), (25, 0), (999, 0), (-1, 0), (17, 0), (HEARTBEAT, -1)],
)
async def test_what_is_not_offered_closes_the_connection(client: WiredClient, api: int, version: int) -> None:
    client.send(struct.pack(">ihhih", 20, api, version, 1, -1) + bytes(10))
    assert not client.is_open
    assert client.gateway.refused == {"unsupported": 1}


@pytest.mark.parametrize("api", [17, 36])
async def test_who_tries_to_log_in_where_nobody_has_to_is_told(client: WiredClient, api: int) -> None:
    client.request(api, 1, mechanism="PLAIN", auth_bytes=b"\0alice\0pencil")
    ((_, answer),) = client.answers(api, 1)
    assert int(answer.error_code) == 34
    assert client.gateway.refused == {"unauthenticated": 1}


async def test_nothing_is_offered_while_no_broker_is_up(client: WiredClient) -> None:
    client.gateway.brokers.broker.apis = None
    client.request(API_VERSIONS, 0)
    assert client.gateway.refused == {"upstream": 1}


@pytest.mark.parametrize("version", range(7))
async def test_a_group_is_coordinated_here(client: WiredClient, version: int) -> None:
    client.request(FIND_COORDINATOR, version, key="g", key_type=0, coordinator_keys=("g", "h"))
    ((_, answer),) = client.answers(FIND_COORDINATOR, version)
    found = answer.coordinators if version >= 4 else (answer,)
    assert [(int(one.node_id), one.host, one.port) for one in found] == [(3, "gateway.example", PORT)] * len(found)
    if version >= 4:
        assert [one.key for one in found] == ["g", "h"]


async def test_a_coordinator_of_another_kind_is_unknown_and_one_of_transactions_is_the_brokers_business(
    client: WiredClient,
) -> None:
    client.request(FIND_COORDINATOR, 6, key_type=2, coordinator_keys=("s",))
    ((_, answer),) = client.answers(FIND_COORDINATOR, 6)
    assert [int(one.error_code) for one in answer.coordinators] == [42]
    correlation = client.request(FIND_COORDINATOR, 6, key_type=1, coordinator_keys=("t",))
    await settle()
    assert client.upstream.sent == framed(FIND_COORDINATOR, 6, correlation, key_type=1, coordinator_keys=("t",))


async def test_a_group_has_no_coordinator_while_no_broker_has_a_port(client: WiredClient) -> None:
    client.gateway.wire.ports.clear()
    client.request(FIND_COORDINATOR, 3, key="g", key_type=0)
    ((_, answer),) = client.answers(FIND_COORDINATOR, 3)
    assert int(answer.error_code) == 15


async def test_a_group_is_listed_at_the_port_where_it_is_coordinated_and_at_the_first_one() -> None:
    def listed(request: Request, _: Any) -> Any:
        schema = response_class(LIST_GROUPS, request.version)
        group = nested(schema, "ListedGroup")
        found = (make(group, group_id=name, protocol_type="consumer", group_state="", group_type="") for name in "ab")
        return make(schema, throttle_time=NO_TIME, error_code=error_code(0), groups=tuple(found))

    gateway = WiredGateway({LIST_GROUPS: HandledApi(0, 5, listed)})

    def names(node_id: int) -> list[str]:
        client = gateway.client(node_id=node_id)
        client.request(LIST_GROUPS, 4, states_filter=())
        ((_, answer),) = client.answers(LIST_GROUPS, 4)
        return [group.group_id for group in answer.groups]

    assert names(NODE) == names(BOOTSTRAP) == ["a", "b"]
    elsewhere: Any = Broker(NODE + 1, "elsewhere", 9092)
    gateway.brokers.coordinators = {"b": elsewhere}
    assert (names(NODE), names(BOOTSTRAP)) == (["a"], ["a", "b"])


# --- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-1, 0, 9, -(2**31)])
async def test_a_size_that_no_request_has_closes_the_connection(client: WiredClient, size: int) -> None:
    client.send(struct.pack(">i", size) + bytes(20))
    assert client.gateway.refused == {"malformed": 1}


async def test_a_request_that_is_too_large_closes_the_connection_at_its_first_bytes(groups: Groups) -> None:
    gateway = WiredGateway(groups.api(), max_request_bytes=1_000_000, max_group_request_bytes=100_000)
    client = gateway.client()
    client.send(struct.pack(">i", 1_000_001))
    assert gateway.refused == {"too_large": 1}
    client = gateway.client()
    client.send(struct.pack(">i", 100_001) + framed(HEARTBEAT, 4, 1, **MEMBER)[4:])
    assert gateway.refused == {"too_large": 2}
    client = gateway.client()
    client.send(struct.pack(">i", SMALL_REQUEST + 1) + framed_body(API_VERSIONS, 0, 1, b"")[4:])
    assert gateway.refused == {"too_large": 3}


async def test_what_all_connections_hold_together_is_bounded(groups: Groups) -> None:
    size = 64 * 1024 * 1024
    gateway = WiredGateway(groups.api(), max_group_request_bytes=size)
    start = struct.pack(">i", size) + framed(HEARTBEAT, 4, 1, **MEMBER)[4:]
    clients = [gateway.client() for _ in range(MOST_BUFFERED // size + 1)]
    for client in clients:
        client.send(start)
    assert [client.is_open for client in clients] == [True] * (len(clients) - 1) + [False]
    assert gateway.refused == {"memory": 1}
    for client in clients[:-1]:
        client.gone()
    assert gateway.wire.traffic.buffered == 0


async def test_a_malformed_request_closes_the_connection_and_no_other(client: WiredClient, groups: Groups) -> None:
    groups.answer = heartbeat()
    other = client.gateway.client()
    client.send(framed_body(HEARTBEAT, 4, 1, b"\xff" * 20))
    assert not client.is_open
    assert client.gateway.refused == {"malformed": 1}
    other.request(HEARTBEAT, 4, **MEMBER)
    assert other.correlations() == [1]


async def test_a_silent_connection_is_closed_after_a_while_and_one_that_waits_is_not(
    client: WiredClient, groups: Groups
) -> None:
    gateway = client.gateway
    waiting = gateway.client()
    waiting.request(HEARTBEAT, 4, **MEMBER)
    gateway.clock.time += 601
    for one in (client, waiting):
        one.connection.look(gateway.clock.now())
    assert (client.is_open, waiting.is_open) == (False, True)
    assert gateway.refused == {"idle": 1}
    assert len(groups.requests) == 1


@pytest.mark.parametrize("api", [HEARTBEAT, LIST_OFFSETS])
async def test_a_request_that_is_not_finished_in_time_closes_the_connection(client: WiredClient, api: int) -> None:
    start = framed(HEARTBEAT, 4, 1, **MEMBER) if api == HEARTBEAT else framed(LIST_OFFSETS, 7, 1, **LIST)
    client.send(start[:-1])
    client.gateway.clock.time += 29
    client.connection.look(client.gateway.clock.now())
    assert client.is_open
    client.gateway.clock.time += 1
    client.connection.look(client.gateway.clock.now())
    assert client.gateway.refused == {"slow": 1}


async def test_a_request_that_is_read_whole_may_not_trickle_in(client: WiredClient) -> None:
    start = framed(HEARTBEAT, 4, 1, **MEMBER)
    client.send(start[:20])
    for at in range(20, 26):
        client.gateway.clock.time += 5
        client.connection.look(client.gateway.clock.now())
        client.send(start[at : at + 1])
    client.connection.look(client.gateway.clock.now())
    assert client.gateway.refused == {"slow": 1}


async def test_a_client_that_does_not_read_is_cut_off(client: WiredClient) -> None:
    client.connection.pause_writing()
    client.gateway.clock.time += 30
    client.connection.look(client.gateway.clock.now())
    assert client.transport.aborted
    assert client.gateway.refused == {"slow": 1}


async def test_a_connection_that_did_something_is_not_closed_to_make_room(client: WiredClient, groups: Groups) -> None:
    groups.answer = heartbeat()
    client.request(API_VERSIONS, 0)
    assert client.place.used == 0
    client.request(HEARTBEAT, 4, **MEMBER)
    client.request(HEARTBEAT, 4, **MEMBER)
    assert client.place.used == 1
    client.place.close()
    assert client.transport.aborted


async def test_draining_ends_holds_and_refuses_newcomers(
    gateway: WiredGateway, client: WiredClient, groups: Groups
) -> None:
    client.request(HEARTBEAT, 4, **MEMBER)
    interrupted = groups.requests[0].interrupted()
    gateway.wire.traffic.draining = True
    gateway.wire.traffic.interrupt(Interruption.DRAINING)
    assert interrupted.result() is Interruption.DRAINING
    assert not gateway.client().is_open
    assert client.is_open
    assert not is_idle(client)
    groups.futures[0].set_result(heartbeat())
    await settle()
    assert is_idle(client)
    # A request that comes later is told at once.
    client.request(HEARTBEAT, 4, **MEMBER)
    assert groups.requests[1].interruptions == (Interruption.DRAINING,)


# --- connections that fetch ----------------------------------------------------------------------------------------


async def test_the_fetching_connections_of_a_client_are_closed_and_its_others_are_not(
    gateway: WiredGateway, groups: Groups
) -> None:
    groups.answer = heartbeat()
    fetch = make_fetch()
    fetching, coordinating, other = gateway.client(), gateway.client(), gateway.client()
    fetching.send(framed_body(FETCH, 15, 1, fetch, client_id="app"))
    coordinating.request(HEARTBEAT, 4, client_id="app", **MEMBER)
    other.send(framed_body(FETCH, 15, 1, fetch, client_id="other"))
    await settle()
    assert gateway.wire.traffic.close_fetchers("", "app", "192.0.2.8") == 0
    assert gateway.wire.traffic.close_fetchers("", "app", "192.0.2.7") == 1
    assert (fetching.is_open, coordinating.is_open, other.is_open) == (False, True, True)
    for one in (fetching, coordinating, other):
        one.gone()
    assert gateway.wire.traffic.close_fetchers("", "other", "192.0.2.7") == 0


async def test_who_may_not_change_the_cluster_is_told_and_who_may_not_even_read_is_cut_off(groups: Groups) -> None:
    client = WiredGateway(groups.api(), required=True).client()
    schema = request_class(CREATE_TOPICS, 7)
    topic = make_entity(nested(schema, "CreatableTopic"), Random(1))
    correlation = client.request(CREATE_TOPICS, 7, topics=(topic,), timeout=NO_TIME, validate_only=False)
    ((found, answer),) = client.answers(CREATE_TOPICS, 7)
    assert found == correlation
    assert [(one.name, int(one.error_code)) for one in answer.topics] == [(topic.name, 31)]
    assert client.is_open
    client.request(PRODUCE, 9, acks=1, transactional_id=None, timeout=NO_TIME, topic_data=())
    assert len(client.frames()) == 1
    client.request(LIST_OFFSETS, 7, **LIST)
    assert client.gateway.refused == {"forbidden": 1}
    assert not client.gateway.brokers.connections


async def test_a_refused_write_without_acks_ends_the_connection(groups: Groups) -> None:
    client = WiredGateway(groups.api(), required=True).client()
    client.request(PRODUCE, 9, acks=0, transactional_id=None, timeout=NO_TIME, topic_data=())
    assert client.gateway.refused == {"forbidden": 1}


def make_fetch() -> bytes:
    return encode(make_entity(request_class(FETCH, 15), Random(4)))
