"""100,000 hostile requests: none raises an error, keeps memory, or is noticed by a member on another connection."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any

import pytest

from assigner.gateway.checks import Malformed
from assigner.gateway.codec import heartbeat_answer
from assigner.gateway.requests import HandledApi, Request
from assigner.gateway.settings import SaslMechanism
from assigner.gateway.wire.frames import ProtocolViolation
from assigner.gateway.wire.traffic import REASONS
from assigner.gateway.wire.versions import offered
from tests.support.gateway.hostile import HostileClient
from tests.support.gateway.wired import BROKER_APIS, WiredGateway, settle

SEEDS = range(10)
FRAMES = 10_000
"""Of each seed."""
HEARTBEAT = 12
MEMBER: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}


def answers(request: Request, _: Any) -> bytes:
    """Answers a heartbeat; what else is asked for has no meaning here."""
    return heartbeat_answer(request.version, 0) if request.api == HEARTBEAT else b"\0\0"


async def answers_later(request: Request, entity: Any) -> bytes:
    await asyncio.sleep(0)
    return answers(request, entity)


HANDLED = {
    api: HandledApi(0, last, answers if api % 2 == 0 else answers_later)
    for api, last in {8: 10, 9: 10, 11: 9, 12: 4, 13: 5, 14: 5, 15: 6, 16: 5, 42: 2, 47: 0, 68: 1, 69: 1}.items()
}
FIRST = {8: 2, 9: 1}


@pytest.mark.parametrize("seed", SEEDS)
async def test_hostile_requests_end_their_own_connection_at_most(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    handled = {api: HandledApi(FIRST.get(api, 0), one.last, one.handle) for api, one in HANDLED.items()}
    more: dict[str, Any] = {}
    if seed % 5 == 0:
        more = {"sasl_mechanisms": (SaslMechanism.PLAIN,), "sasl_credentials": "none", "required": True}
    gateway = WiredGateway(handled, **more)
    quiet = WiredGateway(handled)
    quiet.wire.traffic = gateway.wire.traffic
    member, hostile = quiet.client(), HostileClient(seed, offered(BROKER_APIS, handled, with_sasl=True))
    while hostile.frames < FRAMES:
        client = gateway.client()
        for piece in hostile.stream():
            if client.transport.closed:
                break
            client.send(piece)
        await asyncio.sleep(0)
        if hostile.frames % 10 == 0:
            correlation = member.request(HEARTBEAT, 4, **MEMBER)
            assert member.correlations() == [correlation]
        client.gone()
    await settle()
    traffic = gateway.wire.traffic
    for connection in gateway.brokers.connections:
        assert connection.closed
        connection.is_lost()
    assert (traffic.buffered, traffic.parked, len(traffic.pipes)) == (0, 0, 0)
    assert traffic.connections == {member.connection}
    assert set(traffic.refused) <= set(REASONS)
    # Most got as far as to a look at what they ask for.
    assert traffic.refused["malformed"] > FRAMES / 20
    assert sum(traffic.requests.values()) > FRAMES / 4 or more
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_what_brokers_answer_wrongly_ends_the_connection_of_its_client_at_most() -> None:
    random, gateway = Random(5), WiredGateway()
    for _ in range(2_000):
        client = gateway.client()
        client.request(3, 12, topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
        await settle()
        body = b"\0\0\0\x01\0" + random.randbytes(random.randrange(60))
        try:
            client.upstream.answers(len(body).to_bytes(4, "big") + body)
        except (ProtocolViolation, Malformed):
            client.upstream.is_lost()
        client.gone()
    assert not gateway.wire.traffic.connections
