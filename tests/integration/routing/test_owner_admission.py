"""An owner admits routed requests over HTTP and gRPC by their headers; whatever it refuses, it has done nothing of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import anyio
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from assigner.client import GateClosed, Shut, TopicPartition
from assigner.client.gate import ADMIT_WITHIN, MAX_WAITING
from assigner.routing import Target
from assigner.routing.headers import EPOCH, OWNER, PARTITION, TOPIC, headers_of
from assigner.testing.waiting import eventually
from tests.support.clients.recording_handler import Recorder
from tests.support.routed_owners import GROUP, METHOD, OWNERS, Owner, RoutedGroup, owns, routed_group
from tests.support.routed_owners import TOPIC as ORDERS

TP = TopicPartition(ORDERS, 0)


@pytest.fixture(params=OWNERS)
async def group(request: pytest.FixtureRequest) -> AsyncIterator[RoutedGroup]:
    async with routed_group(request.param) as group:
        yield group


@asynccontextmanager
async def owning(group: RoutedGroup, name: str = "a", **options: float) -> AsyncIterator[Owner]:
    """An owner whose gate is open."""
    async with group.owner(name, None, **options) as owner:
        await owns(owner, 0)
        yield owner


def epoch_of(owner: Owner) -> int:
    return owner.consumer.partitions[TP]


def target(owner: Owner, epoch: int | None = None, /, **changes: object) -> dict[str, str]:
    """The headers of a request for the owner's partition."""
    fields: dict[str, object] = {
        "topic": ORDERS,
        "partition": 0,
        "owner": owner.consumer.name,
        "address": owner.address,
    }
    fields["epoch"] = epoch_of(owner) if epoch is None else epoch
    return headers_of(Target(**(fields | changes)), GROUP)  # type: ignore[arg-type]


# --- admitted ------------------------------------------------------------------------------------------------------


async def test_a_request_of_the_epoch_is_served_and_counted_while_it_lasts(group: RoutedGroup) -> None:
    async with owning(group) as owner:
        owner.work.may_end = anyio.Event()
        gate = owner.consumer.gate(ORDERS, 0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(owner.send, target(owner))
            await eventually(lambda: owner.work.begun == ["x"])
            assert gate.inside == 1
            owner.work.may_end.set()
        await eventually(lambda: gate.inside == 0)
        assert (await owner.send(target(owner))).text == "x done"
        (first, _) = owner.work.targets
        assert (first.topic, first.partition, first.epoch, first.group) == (ORDERS, 0, epoch_of(owner), GROUP)


async def test_a_request_that_fails_in_its_handler_was_begun_and_is_counted_no_more(group: RoutedGroup) -> None:
    async with owning(group) as owner:
        owner.work.failure = GateClosed(TP, Shut.RELEASED)
        answer = await owner.send(target(owner))
        assert (answer.kind, answer.reason) == ("failed", "")
        assert owner.consumer.gate(ORDERS, 0).inside == 0


async def test_a_probe_needs_no_target_and_has_none_even_after_a_request_on_the_same_connection(
    group: RoutedGroup,
) -> None:
    async with owning(group) as owner:
        assert (await owner.send(target(owner))).kind == "done"
        assert (await owner.probe()).text == "alive"


# --- refused -------------------------------------------------------------------------------------------------------


async def test_a_stale_epoch_is_refused_at_once(group: RoutedGroup) -> None:
    async with owning(group) as owner:
        answer = await owner.send(target(owner, epoch_of(owner) - 1))
        assert (answer.kind, answer.reason) == ("look again", "stale_epoch")
        assert not owner.work.begun


async def test_a_request_for_another_owner_is_refused_at_once(group: RoutedGroup) -> None:
    """Its epoch may be any: the address was somebody else's when the router learned it."""
    async with owning(group) as owner:
        for epoch in (epoch_of(owner), epoch_of(owner) + 1):
            with anyio.fail_after(ADMIT_WITHIN):
                answer = await owner.send(target(owner, epoch, owner="b"))
            assert (answer.kind, answer.reason) == ("look again", "other_owner")
        assert not owner.work.begun


async def test_a_request_for_another_group_is_refused(group: RoutedGroup) -> None:
    async with owning(group) as owner:
        answer = await owner.send(target(owner) | {"assigner-group": "shipping"})
        assert (answer.kind, answer.reason) == ("malformed", "other_group")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (EPOCH, "seven", "malformed_target"),
        (PARTITION, "-1", "malformed_target"),
        (TOPIC, "no topic", "malformed_target"),
        (OWNER, "%20", "malformed_target"),
        (EPOCH, None, "malformed_target"),
        (None, None, "no_target"),
    ],
)
async def test_a_request_whose_headers_say_no_target_is_refused(
    group: RoutedGroup, name: str | None, value: str | None, reason: str
) -> None:
    async with owning(group) as owner:
        headers = {} if name is None else target(owner)
        if name is not None:
            headers.pop(name)
            headers |= {} if value is None else {name: value}
        answer = await owner.send(headers)
        assert (answer.kind, answer.reason) == ("malformed", reason)
        assert (name or OWNER) in answer.text
        assert not owner.work.begun


async def test_a_partition_that_nobody_owns_here_is_refused_after_a_wait_and_leaves_no_gate(
    group: RoutedGroup,
) -> None:
    async with owning(group, within=0.2) as owner:
        answer = await owner.send(target(owner, partition=5))
        assert (answer.kind, answer.reason) == ("look again", "not_owned")
        assert not owner.consumer._runner.state.knows(TopicPartition(ORDERS, 5))


async def test_a_request_to_a_consumer_that_has_left_is_refused(group: RoutedGroup) -> None:
    async with owning(group) as owner:
        headers = target(owner)
        await owner.consumer.close()
        answer = await owner.send(headers)
        assert (answer.kind, answer.reason) == ("look again", "closed")


# --- requests that come before the owner is ready ----------------------------------------------------------------


@pytest.fixture
def held() -> tuple[Recorder, anyio.Event]:
    """A handler whose `assigned` does not return before the event is set."""
    handler, may_return = Recorder(), anyio.Event()
    handler.during["assigned"] = may_return.wait
    return handler, may_return


async def test_a_request_waits_for_the_gate_to_open(group: RoutedGroup, held: tuple[Recorder, anyio.Event]) -> None:
    handler, may_return = held
    async with group.owner("a", handler, within=60.0) as owner:
        await eventually(lambda: len(handler.calls) == 1, within=30)
        gate = owner.consumer.gate(ORDERS, 0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(owner.send, target(owner, int(handler.calls[0].rpartition("@")[2])))
            await eventually(lambda: gate.waiting == 1)
            assert not owner.work.begun
            may_return.set()
        assert owner.work.begun == ["x"]


async def test_a_request_that_has_waited_too_long_is_asked_to_come_again(
    group: RoutedGroup, held: tuple[Recorder, anyio.Event]
) -> None:
    handler, may_return = held
    async with group.owner("a", handler, within=0.1) as owner:
        await eventually(lambda: len(handler.calls) == 1, within=30)
        answer = await owner.send(target(owner, int(handler.calls[0].rpartition("@")[2])))
        assert (answer.kind, answer.reason) == ("come again", "preparing")
        may_return.set()


async def test_the_request_beyond_those_that_may_wait_is_refused_at_once(
    group: RoutedGroup, held: tuple[Recorder, anyio.Event]
) -> None:
    handler, may_return = held
    async with group.owner("a", handler, within=60.0) as owner:
        await eventually(lambda: len(handler.calls) == 1, within=30)
        epoch, gate = int(handler.calls[0].rpartition("@")[2]), owner.consumer.gate(ORDERS, 0)
        # Those that wait come past the server: a thousand connections would only show how slow the machine is.
        admitted: list[int] = []

        async def wait() -> None:
            async with owner.consumer.entering(ORDERS, 0, epoch, within=60.0) as number:
                admitted.append(number)

        async with anyio.create_task_group() as tasks:
            for _ in range(MAX_WAITING):
                tasks.start_soon(wait)
            await eventually(lambda: gate.waiting == MAX_WAITING)
            with anyio.fail_after(30):
                answer = await owner.send(target(owner, epoch))
            assert (answer.kind, answer.reason) == ("come again", "crowded")
            may_return.set()
        assert len(admitted) == MAX_WAITING


# --- releases ------------------------------------------------------------------------------------------------------


async def test_a_release_waits_for_the_requests_in_progress_and_no_new_one_begins(group: RoutedGroup) -> None:
    async with owning(group, "a") as old:
        old.work.may_end = anyio.Event()
        headers = target(old)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(old.send, headers, "first")
            await eventually(lambda: old.work.begun == ["first"])
            tasks.start_soon(old.consumer.drain)
            async with group.owner("b") as new:
                await eventually(lambda: "release orders/0@" in " ".join(old.handler.calls), within=30)
                answer = await old.send(headers, "second")
                assert (answer.kind, answer.reason) == ("look again", "releasing")
                assert TP not in new.consumer.partitions
                old.work.may_end.set()
                await owns(new, 0)
                assert old.work.begun == old.work.ended == ["first"]
                assert (await new.send(target(new), "second")).text == "second done"
                refused = await old.send(headers, "third")
                assert refused.kind == "look again"
        assert new.work.targets[0].epoch > int(headers[EPOCH])


@asynccontextmanager
async def slow_sender(group: RoutedGroup, owner: Owner, finish: anyio.Event) -> AsyncIterator[list[int]]:
    """Sends the beginning of a request, and the rest when it may finish; when the block has ended, the list has the
    status that was answered."""
    statuses: list[int] = []
    began, headers = anyio.Event(), target(owner)

    async def body() -> AsyncIterator[bytes]:
        yield b"fir"
        began.set()
        await finish.wait()
        yield b"st"

    async def send_http() -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://{owner.address}/say", data=body(), headers=headers) as response,
        ):
            statuses.append(response.status)

    async def send_grpc() -> None:
        host, _, port = owner.address.partition(":")
        call = UnaryUnaryMethod(Channel(host, int(port)), METHOD, StringValue, StringValue)
        async with call.channel, call.open(metadata=headers) as stream:
            await stream.send_request()
            began.set()
            await finish.wait()
            await stream.send_message(StringValue(value="first"), end=True)
            try:
                await stream.recv_message()
            except GRPCError as error:
                statuses.append(error.status.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send_http if group.protocol == "http" else send_grpc)
        await began.wait()
        yield statuses


async def test_a_release_does_not_wait_for_a_sender_whose_message_has_not_come(group: RoutedGroup) -> None:
    finish = anyio.Event()
    async with owning(group, "a") as old:
        async with slow_sender(group, old, finish) as statuses, group.owner("b") as new:
            await old.consumer.drain(timeout=20)
            await owns(new, 0)
            finish.set()
        assert statuses == [421 if group.protocol == "http" else Status.FAILED_PRECONDITION.value]
        assert not old.work.begun
