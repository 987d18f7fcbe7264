"""A request may name any partition: it waits for one that its consumer has not heard of, and leaves nothing behind."""

from __future__ import annotations

import anyio
import pytest

from assigner.client.gate import ADMIT_WITHIN, MAX_WAITING
from assigner.client.handler import Handler
from assigner.client.runner import Runner
from assigner.clock import LoopClock
from assigner.core.client.gate import GateClosed, Shut, StaleEpoch
from assigner.model.commands import Commands
from assigner.model.keys import TopicPartition
from assigner.testing.waiting import eventually

pytestmark = pytest.mark.virtual_time

TP = TopicPartition("orders", 3)


class Requests:
    """What became of requests to one consumer."""

    def __init__(self, runner: Runner, clock: LoopClock) -> None:
        self.runner = runner
        self.clock = clock
        self.admitted: list[int] = []
        self.refused: list[Exception] = []

    async def send(self, epoch: int = 5, tp: TopicPartition = TP, within: float = ADMIT_WITHIN) -> None:
        try:
            async with self.runner.requests.entering(tp, epoch, within) as admitted:
                self.admitted.append(admitted)
        except (GateClosed, StaleEpoch) as error:
            self.refused.append(error)

    def assign(self, epoch: int, tp: TopicPartition = TP) -> None:
        self.runner.apply(Commands(assigned=((tp, epoch),)))

    @property
    def reasons(self) -> list[Shut]:
        return [error.reason for error in self.refused if isinstance(error, GateClosed)]


@pytest.fixture
async def requests() -> Requests:
    clock = LoopClock()
    runner = Runner(Handler(), clock, handler_concurrency=10, warm_concurrency=1)
    runner.renewed(clock.now(), 3_600.0)
    return Requests(runner, clock)


async def test_a_request_for_an_unknown_partition_waits_until_it_is_assigned(requests: Requests) -> None:
    async with anyio.create_task_group() as work:
        requests.runner.begin(work)
        began = requests.clock.now()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(requests.send)
            await anyio.wait_all_tasks_blocked()
            assert requests.runner.requests.waiting == 1
            requests.assign(7, TopicPartition("orders", 4))
            await anyio.wait_all_tasks_blocked()
            assert requests.runner.requests.waiting == 1
            requests.assign(5)
        assert requests.clock.now() - began < ADMIT_WITHIN
        assert requests.admitted == [5]
        work.cancel_scope.cancel()


async def test_a_known_partition_has_the_gate_that_the_program_asks_for(requests: Requests) -> None:
    async with anyio.create_task_group() as work:
        requests.runner.begin(work)
        requests.assign(5)
        gate = requests.runner.gate(TP)
        await eventually(lambda: gate.is_open)
        async with requests.runner.requests.entering(TP, 5, 0.0):
            assert gate.inside == 1
        await requests.send(4)
        assert [type(error) for error in requests.refused] == [StaleEpoch]
        work.cancel_scope.cancel()


async def test_requests_for_unknown_partitions_leave_nothing_behind(requests: Requests) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(requests.send, 5, TopicPartition("orders", number))
    assert requests.reasons == [Shut.NOT_OWNED] * 100
    assert requests.runner.requests.waiting == 0
    assert not any(requests.runner.state.knows(TopicPartition("orders", number)) for number in range(100))
    assert not requests.runner.requests._heard_of


async def test_a_request_waits_for_its_partition_and_for_its_gate_no_longer_than_it_may(requests: Requests) -> None:
    began = requests.clock.now()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(requests.send, 5, TP, 2.0)
        await anyio.sleep(1.5)
        # No handler runs here, so the gate stays shut.
        requests.assign(5)
    assert requests.clock.now() - began == pytest.approx(2.0)
    assert requests.reasons == [Shut.PREPARING]


async def test_requests_beyond_the_bound_are_refused_at_once_whatever_they_name(requests: Requests) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(MAX_WAITING):
            tasks.start_soon(requests.send, 5, TopicPartition("orders", number))
        await anyio.wait_all_tasks_blocked()
        began = requests.clock.now()
        await requests.send(5, TopicPartition("orders", MAX_WAITING))
        assert requests.clock.now() == began
        assert requests.reasons == [Shut.CROWDED]
        tasks.cancel_scope.cancel()
    assert requests.runner.requests.waiting == 0


async def test_requests_that_wait_are_refused_when_the_consumer_closes_and_so_are_later_ones(
    requests: Requests,
) -> None:
    began = requests.clock.now()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(requests.send)
        await anyio.wait_all_tasks_blocked()
        requests.runner.leave("closed")
    await requests.send()
    assert requests.clock.now() - began < ADMIT_WITHIN
    assert requests.reasons == [Shut.CLOSED] * 2
