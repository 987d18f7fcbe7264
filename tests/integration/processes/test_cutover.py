"""The benchmark of cutovers runs, in small, and its routers send requests in their order whatever becomes of owners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from assigner.model.records import HandoffMode
from bench.cutover import routed_group
from bench.cutover.analysis import analyse
from bench.cutover.course import Action, Effort
from bench.cutover.report import broken
from bench.cutover.wire import Connections, Cut, NotSent, Request, Requests, Verdict
from tests.support.servers.etcd import EtcdUnavailableError, find_binary

TINY = Effort(rate=200, seconds=4.0, pace=0.1, ttl=4.0, in_turn=True)

# --- what routers and pods speak -------------------------------------------------------------------------------------


class Owner:
    """A pod's end that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Request, Callable[[Verdict], None]]] = []
        self.arrived = asyncio.Event()
        self._made: list[Requests] = []

    async def start(self) -> None:
        self.server = await asyncio.get_running_loop().create_server(self._connection, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    def _connection(self) -> Requests:
        self._made.append(Requests(self._handle))
        return self._made[-1]

    def _handle(self, request: Request, answer: Callable[[Verdict], None]) -> None:
        self.asked.append((request, answer))
        self.arrived.set()

    async def until(self, count: int) -> None:
        while len(self.asked) < count:
            self.arrived.clear()
            await self.arrived.wait()

    def hang_up(self) -> None:
        for made in self._made:
            if made.transport is not None:
                made.transport.abort()

    def close(self) -> None:
        self.server.close()
        self.hang_up()


@pytest.fixture
async def owner() -> AsyncIterator[Owner]:
    made = Owner()
    await made.start()
    yield made
    made.close()


@pytest.fixture
async def connections() -> AsyncIterator[Connections]:
    made = Connections()
    yield made
    made.close()


async def test_requests_leave_in_order_also_while_the_connection_is_opened(
    owner: Owner, connections: Connections
) -> None:
    answers = [connections.ask(owner.address, 0, 1, "key", sequence) for sequence in range(20)]
    await owner.until(1)
    answers += [connections.ask(owner.address, 0, 1, "key", sequence) for sequence in range(20, 40)]
    await owner.until(40)
    assert [request.sequence for request, _ in owner.asked] == list(range(40))
    for request, answer in reversed(owner.asked):
        answer(Verdict.DONE if request.sequence % 2 else Verdict.STALE)
    assert await asyncio.gather(*answers) == [Verdict.STALE, Verdict.DONE] * 20


async def test_a_request_in_flight_when_the_connection_ends_is_cut(owner: Owner, connections: Connections) -> None:
    first = connections.ask(owner.address, 0, 1, "key", 0)
    await owner.until(1)
    owner.hang_up()
    with pytest.raises(Cut):
        await first
    second = connections.ask(owner.address, 0, 1, "key", 1)
    await owner.until(2)
    owner.asked[1][1](Verdict.DONE)
    assert await second is Verdict.DONE


async def test_a_request_to_an_address_without_a_listener_is_not_sent(owner: Owner, connections: Connections) -> None:
    owner.close()
    await owner.server.wait_closed()
    with pytest.raises(NotSent):
        await connections.ask(owner.address, 0, 1, "key", 0)
    assert owner.asked == []


# --- the course ------------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.etcd
@pytest.mark.slow
@pytest.mark.parametrize("mode", [HandoffMode.EXCLUSIVE, HandoffMode.OVERLAP])
async def test_pods_that_join_drain_and_are_killed_cost_no_request(mode: HandoffMode, tmp_path: Path) -> None:
    try:
        find_binary()
    except EtcdUnavailableError as missing:
        pytest.skip(str(missing))
    recording = await routed_group.run(mode.value, TINY, tmp_path, mode=mode.value, instances=2, tell=lambda _: None)
    found = analyse(recording)
    assert broken(found) == []
    assert found.failed == 0
    assert found.requests >= int(TINY.rate * TINY.steps[-1].at)
    assert set(found.pauses) == set(Action)
    # Those in flight when the pod was killed, and no others.
    assert found.cut < TINY.rate * 0.5
