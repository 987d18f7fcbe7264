"""A client that sends request upon request: none overtakes another, and none waits for the end of a held answer."""

from __future__ import annotations

import asyncio
from typing import Any

from assigner.gateway.requests import HandledApi, Interruption, Request
from tests.support.gateway.wired import WiredGateway, framed, framed_body, settle

HEARTBEAT, PRODUCE = 12, 0
MEMBER: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
NO_TRANSACTION_ALL_ACKS = b"\x00\xff\xff"
LARGE = 40 * 1024


def produced(correlation: int) -> bytes:
    """A produce request whose records nobody here reads: each is of its own bytes."""
    return framed_body(PRODUCE, 9, correlation, NO_TRANSACTION_ALL_ACKS + bytes([correlation]) * LARGE)


async def test_requests_that_wait_for_the_broker_reach_it_before_those_that_came_later() -> None:
    """More than is kept for a broker that is being connected: the rest is read when it is there, and goes last."""
    gateway = WiredGateway()
    gateway.brokers.may_connect.clear()
    client = gateway.client()
    requests = [produced(correlation) for correlation in range(1, 6)]
    client.send(b"".join(requests))
    await settle()
    gateway.brokers.may_connect.set()
    await settle()
    assert bytes(client.upstream.sent) == b"".join(requests)


class Holding:
    """Holds the answer of each heartbeat, and notes the requests."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def heartbeat(self, request: Request, _: Any) -> Any:
        self.requests.append(request)
        return asyncio.get_running_loop().create_future()


async def test_a_request_in_the_same_segment_as_a_held_one_ends_the_hold() -> None:
    holding = Holding()
    client = WiredGateway({HEARTBEAT: HandledApi(0, 4, holding.heartbeat)}).client()
    heartbeat = _framed_heartbeat(1)
    client.send(heartbeat + _framed_heartbeat(2))
    assert [request.interruptions for request in holding.requests] == [(Interruption.FOLLOWED,)]


async def test_a_request_that_is_alone_is_held() -> None:
    holding = Holding()
    client = WiredGateway({HEARTBEAT: HandledApi(0, 4, holding.heartbeat)}).client()
    client.send(_framed_heartbeat(1))
    assert [request.interruptions for request in holding.requests] == [()]


def _framed_heartbeat(correlation: int) -> bytes:
    return framed(HEARTBEAT, 4, correlation, **MEMBER)
