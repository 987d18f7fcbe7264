"""A request that a router sent under an epoch enters the gate of that epoch, and may wait for it to open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import pytest

from assigner.aio.wakeup import Wakeup
from assigner.client.gate import ADMIT_WITHIN, MAX_WAITING, PartitionGate
from assigner.clock import LoopClock
from assigner.core.client.gate import Gate, GateClosed, Lease, Shut, StaleEpoch
from assigner.model.keys import TopicPartition

pytestmark = pytest.mark.virtual_time

TP = TopicPartition("orders", 3)


class Gates:
    """The gate of a partition, as the requests see it and as the consumer's state does."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.lease = Lease()
        self.lease.renewed(self.clock.now(), 3_600.0)
        self.state = Gate(TP, self.lease)
        self.changes = Wakeup()
        self.requests = PartitionGate(self.state, self.clock, self.changes)
        self.admitted: list[int] = []
        self.refused: list[Exception] = []

    async def request(self, epoch: int, within: float = ADMIT_WITHIN) -> None:
        try:
            async with self.requests.entering(epoch, within=within) as admitted:
                self.admitted.append(admitted)
        except (GateClosed, StaleEpoch) as error:
            self.refused.append(error)

    @property
    def reasons(self) -> list[Shut]:
        return [error.reason for error in self.refused if isinstance(error, GateClosed)]


@pytest.fixture
async def gates() -> Gates:
    return Gates()


@asynccontextmanager
async def requests(gates: Gates, *epochs: int) -> AsyncIterator[anyio.abc.TaskGroup]:
    """Requests that have come as far as they can when the block begins, and are answered when it has ended."""
    async with anyio.create_task_group() as tasks:
        for epoch in epochs:
            tasks.start_soon(gates.request, epoch)
        await anyio.wait_all_tasks_blocked()
        yield tasks


async def test_a_request_of_the_open_epoch_enters_at_once_and_is_counted(gates: Gates) -> None:
    gates.state.open(5)
    async with gates.requests.entering(5) as epoch:
        assert (epoch, gates.requests.inside) == (5, 1)
    assert gates.requests.inside == 0


@pytest.mark.parametrize("prepared", [True, False], ids=["being prepared", "not heard of yet"])
async def test_a_request_that_comes_before_its_epoch_waits_until_the_gate_opens(gates: Gates, prepared: bool) -> None:
    if prepared:
        gates.state.prepare(5)
    async with requests(gates, 5, 5):
        assert not gates.admitted
        assert gates.requests.waiting == 2
        gates.state.prepare(5)
        await anyio.wait_all_tasks_blocked()
        assert not gates.admitted
        gates.state.open(5)
    assert gates.admitted == [5, 5]
    assert gates.requests.waiting == 0


async def test_requests_enter_in_the_order_in_which_they_began_to_wait(gates: Gates) -> None:
    entered: list[int] = []

    async def request(number: int) -> None:
        async with gates.requests.entering(5):
            entered.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(request, number)
        await anyio.wait_all_tasks_blocked()
        gates.state.open(5)
    assert entered == list(range(20))


async def test_a_request_waits_no_longer_than_it_may(gates: Gates) -> None:
    began = gates.clock.now()
    await gates.request(5, within=2.0)
    assert gates.clock.now() - began == pytest.approx(2.0)
    assert gates.reasons == [Shut.NOT_OWNED]


async def test_a_request_that_may_not_wait_is_refused_at_once(gates: Gates) -> None:
    gates.state.prepare(5)
    began = gates.clock.now()
    await gates.request(5, within=0.0)
    assert gates.clock.now() == began
    assert gates.reasons == [Shut.PREPARING]


async def test_a_request_of_an_epoch_that_is_over_is_stale_at_once(gates: Gates) -> None:
    gates.state.open(5)
    await gates.request(4)
    gates.state.close(Shut.RELEASED)
    await gates.request(4)
    gates.state.prepare(7)
    await gates.request(4)
    assert [type(error) for error in gates.refused] == [StaleEpoch] * 3


@pytest.mark.parametrize("reason", [Shut.RELEASING, Shut.RELEASED, Shut.REVOKED, Shut.LEASE_OVER, Shut.CLOSED])
async def test_a_request_does_not_wait_for_an_epoch_that_was_open_and_is_not_any_more(
    gates: Gates, reason: Shut
) -> None:
    gates.state.open(5)
    gates.state.close(reason)
    began = gates.clock.now()
    await gates.request(5)
    assert gates.clock.now() == began
    assert gates.reasons == [reason]


async def test_a_request_whose_epoch_was_jumped_over_is_stale(gates: Gates) -> None:
    async with requests(gates, 5, 7):
        gates.state.prepare(7)
        await anyio.wait_all_tasks_blocked()
        assert [type(error) for error in gates.refused] == [StaleEpoch]
        gates.state.open(7)
    assert gates.admitted == [7]


@pytest.mark.parametrize("changes", ["prepare and revoke", "open and release"])
async def test_a_request_does_not_wait_for_a_gate_that_was_shut_again_before_it_looked(
    gates: Gates, changes: str
) -> None:
    gates.state.prepare(5)
    async with requests(gates, 5):
        if changes == "open and release":
            gates.state.open(5)
            gates.state.close(Shut.RELEASING)
        else:
            gates.state.close(Shut.REVOKED)
    assert gates.reasons == [Shut.RELEASING if changes == "open and release" else Shut.REVOKED]


async def test_requests_that_wait_are_refused_when_the_consumer_closes(gates: Gates) -> None:
    began = gates.clock.now()
    async with requests(gates, 5, 6):
        gates.state.close(Shut.CLOSED)
    assert gates.clock.now() - began < ADMIT_WITHIN
    assert gates.reasons == [Shut.CLOSED] * 2


async def test_a_request_is_not_admitted_by_a_lease_that_ended_while_it_waited(gates: Gates) -> None:
    gates.state.prepare(5)
    async with requests(gates, 5):
        gates.lease.end()
        gates.state.open(5)
    assert gates.reasons == [Shut.LEASE_OVER]


async def test_a_gate_can_be_drained_while_requests_wait_for_the_next_epoch(gates: Gates) -> None:
    gates.state.open(5)
    async with requests(gates, 6):
        gates.state.close(Shut.RELEASING)
        assert gates.requests.inside == 0
        await gates.requests.drained()
        gates.state.prepare(6)
        gates.state.open(6)
    assert gates.admitted == [6]


async def test_requests_beyond_the_bound_are_refused_at_once_and_those_that_wait_are_not(gates: Gates) -> None:
    gates.state.prepare(5)
    async with requests(gates, *[5] * MAX_WAITING):
        await gates.request(5)
        assert gates.reasons == [Shut.CROWDED]
        gates.state.open(5)
    assert len(gates.admitted) == MAX_WAITING


async def test_a_request_that_is_cancelled_while_it_waits_leaves_room_for_another(gates: Gates) -> None:
    gates.state.prepare(5)
    async with requests(gates, *[5] * MAX_WAITING) as tasks:
        tasks.cancel_scope.cancel()
    assert gates.requests.waiting == 0
    assert not gates.admitted
    async with requests(gates, 5):
        gates.state.open(5)
    assert gates.admitted == [5]


async def test_nobody_is_told_of_changes_once_nobody_waits(gates: Gates) -> None:
    gates.state.prepare(5)
    async with requests(gates, 5):
        assert gates.state.on_change is not None
        gates.state.open(5)
    assert gates.state.on_change is None


async def test_a_request_that_fails_inside_has_left(gates: Gates) -> None:
    gates.state.open(5)
    with pytest.raises(ZeroDivisionError):
        async with gates.requests.entering(5):
            raise ZeroDivisionError
    assert gates.requests.inside == 0
