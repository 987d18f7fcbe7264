"""The client against a scripted service: the calls of the handler, the state of gates, the calls to the service."""

from __future__ import annotations

import re
import threading
from typing import Any

import anyio
import pytest
from grpclib.const import Status

from assigner.client import AssignerConsumer, GateClosed, Handler, Shut, StaleEpoch, Unavailable
from assigner.errors import FailedPrecondition, InvalidInput, InvalidName, PermissionDenied, Unauthenticated
from assigner.proto.kafka_assigner import v1
from assigner.testing.waiting import eventually
from tests.support.clients.recording_handler import Recorder, consuming, owns
from tests.support.fakes.scripted_assigner import TOPIC, ScriptedAssigner, ScriptedStream, packed
from tests.support.fakes.scripted_service import UNAVAILABLE, Refusal

# --- registering ---------------------------------------------------------------------------------------------------


async def test_a_consumer_registers_with_everything_it_is() -> None:
    async with (
        ScriptedAssigner() as service,
        consuming(service, Handler(), capacity=2.5, rack="a", advertised_address="me:1", generation="g7") as consumer,
    ):
        request = service.stream.request
        assert request.consumer_name == "worker-1"
        assert request.group == "billing"
        assert request.topics == [TOPIC]
        assert (request.capacity, request.rack, request.address, request.generation) == (2.5, "a", "me:1", "g7")
        assert request.packed
        assert request.renews
        assert request.session == consumer.session
        assert len(request.session) == 32


async def test_two_consumers_have_sessions_of_their_own() -> None:
    one = AssignerConsumer("h:1", "g", "n", [], Handler())
    other = AssignerConsumer("h:1", "g", "n", [], Handler())
    assert one.session != other.session
    assert AssignerConsumer("h:1", "g", "n", [], Handler(), session="mine").session == "mine"


@pytest.mark.parametrize(
    ("status", "name", "expected"),
    [
        (Status.INVALID_ARGUMENT, "InvalidName", InvalidName),
        (Status.INVALID_ARGUMENT, "", InvalidInput),
        (Status.FAILED_PRECONDITION, "FailedPrecondition", FailedPrecondition),
        (Status.UNAUTHENTICATED, "Unauthenticated", Unauthenticated),
        (Status.UNAUTHENTICATED, "", Unauthenticated),
        (Status.PERMISSION_DENIED, "PermissionDenied", PermissionDenied),
    ],
)
async def test_a_refused_registration_raises_what_the_service_said(
    status: Status, name: str, expected: type[Exception]
) -> None:
    async with ScriptedAssigner() as service:
        service.fail["register"] = Refusal(status, "the rack is full; use another", name)
        with pytest.raises(expected, match="the rack is full; use another"):
            async with consuming(service, Handler()):
                pytest.fail("entered")


async def test_an_unavailable_service_is_tried_until_it_is_there() -> None:
    async with ScriptedAssigner() as service:
        service.fail["register"] = UNAVAILABLE
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self_heal, service)
            async with consuming(service, Handler()) as consumer:
                assert consumer.is_connected


async def self_heal(service: ScriptedAssigner) -> None:
    await anyio.sleep(0.05)
    service.fail.clear()


async def test_a_connect_timeout_says_what_was_wrong() -> None:
    async with ScriptedAssigner() as service:
        service.fail["register"] = UNAVAILABLE
        said = ""
        for timeout in (0.1, 1.0, 10.0):
            with pytest.raises(Unavailable, match=f"not registered within {timeout} s: ") as raised:
                async with consuming(service, Handler(), connect_timeout=timeout):
                    pytest.fail("entered")
            said = str(raised.value)
            # On a busy machine the time may be over before the first answer: then there is nothing to say yet.
            if "no answer" not in said:
                break
        assert re.search(r": 127.0.0.1:\d+: the store does not answer", said)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"addresses": []}, "name at least one"),
        ({"addresses": ["nonsense:port"]}, "is not host:port"),
        ({"name": ""}, "consumer is empty"),
        ({"topics": ["a b"]}, "not a Kafka topic name"),
        ({"capacity": 0.0}, "must be a number above 0"),
    ],
)
def test_wrong_input_is_refused_before_anything_happens(wrong: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"addresses": "h:1", "group": "g", "name": "n", "topics": [], "handler": Handler()}
    with pytest.raises((InvalidInput, InvalidName), match=message):
        AssignerConsumer(**(options | wrong))


# --- assignments and gates -----------------------------------------------------------------------------------------


async def test_the_gate_opens_when_assigned_has_returned() -> None:
    handler, may_return = Recorder(), anyio.Event()
    handler.during["assigned"] = may_return.wait
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, handler) as consumer:
        await eventually(lambda: handler.calls == ["assigned orders/0@5"])
        gate = consumer.gate(TOPIC, 0)
        with pytest.raises(GateClosed) as refused:
            gate.admit()
        assert refused.value.reason is Shut.PREPARING
        may_return.set()
        await owns(consumer, p0=5)
        assert gate.admit() == 5
        with pytest.raises(StaleEpoch):
            gate.admit(4)


async def test_a_first_message_in_parts_counts_as_one() -> None:
    def greet_in_parts(stream: ScriptedStream) -> None:
        for part in ({"full": True, "more": True, "epochs": {"p0": 5}}, {"epochs": {"p1": 6}}):
            update = v1.AssignmentUpdate(
                full=bool(part.get("full")),
                more=bool(part.get("more")),
                ttl_ms=30_000,
                assigned_packed=packed(part["epochs"]),  # type: ignore[arg-type]
            )
            stream.send(v1.AssignmentCommand(assignment=update))

    handler = Recorder()
    async with ScriptedAssigner() as service:
        service.opening = greet_in_parts
        async with consuming(service, handler) as consumer:
            await owns(consumer, p0=5, p1=6)
            service.cut()
            await eventually(lambda: len(service.streams) == 2)
            service.stream.update(p2=7)
            await owns(consumer, p0=5, p1=6, p2=7)
            assert handler.calls == ["assigned orders/0@5", "assigned orders/1@6", "assigned orders/2@7"]


async def test_updates_one_by_one_are_understood_too() -> None:
    async with ScriptedAssigner() as service, consuming(service, Handler()) as consumer:
        update = v1.AssignmentUpdate(assigned=[v1.TopicPartition(topic=TOPIC, partition=3, epoch=9)])
        service.stream.send(v1.AssignmentCommand(assignment=update))
        await owns(consumer, p3=9)


async def test_a_higher_epoch_is_revoked_and_then_assigned() -> None:
    handler = Recorder()
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, handler) as consumer:
        await owns(consumer, p0=5)
        service.stream.update(p0=6)
        await owns(consumer, p0=6)
    assert handler.calls[:3] == ["assigned orders/0@5", "revoked orders/0@5", "assigned orders/0@6"]


async def test_unassigned_is_revoked_and_the_rest_stays() -> None:
    handler = Recorder()
    async with ScriptedAssigner(owned={"p0": 5, "p1": 5}) as service, consuming(service, handler) as consumer:
        await owns(consumer, p0=5, p1=5)
        service.stream.unassign(p0=5)
        await owns(consumer, p1=5)
        assert "revoked orders/0@5" in handler.calls


async def test_one_slow_partition_delays_only_itself() -> None:
    handler, forever = Recorder(), anyio.Event()
    handler.during["assigned orders/0@1"] = forever.wait
    async with ScriptedAssigner(owned={"p0": 1, "p1": 1}) as service, consuming(service, handler) as consumer:
        await owns(consumer, p1=1)
        forever.set()
        await owns(consumer, p0=1, p1=1)


async def test_an_assigned_that_fails_is_tried_again() -> None:
    handler = Recorder()

    async def fail_once() -> None:
        handler.during.clear()
        raise OSError("disk full")

    handler.during["assigned"] = fail_once
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, handler) as consumer:
        await owns(consumer, p0=5)
        assert handler.calls == ["assigned orders/0@5"] * 2
        assert consumer.statistics().handler_failures == 1


# --- handoffs ------------------------------------------------------------------------------------------------------


async def test_a_warm_that_returns_is_reported_ready() -> None:
    async with ScriptedAssigner() as service, consuming(service, Handler()) as consumer:
        service.stream.warm(3, "h7")
        await service.receives(lambda: service.ready_acks() == [(3, "h7", "")])
        assert service.readies[0].session == consumer.session
        assert service.readies[0].group == "billing"


async def test_a_warm_that_raises_is_reported_with_the_reason() -> None:
    handler = Recorder()

    async def fail() -> None:
        raise RuntimeError("no checkpoint")

    handler.during["warm"] = fail
    async with ScriptedAssigner() as service, consuming(service, handler):
        service.stream.warm(3)
        await service.receives(lambda: service.ready_acks() == [(3, "h1", "RuntimeError: no checkpoint")])


async def test_a_cancelled_warm_stops_and_is_not_reported() -> None:
    handler = Recorder()
    handler.during["warm orders/3"] = anyio.sleep_forever
    async with ScriptedAssigner() as service, consuming(service, handler):
        service.stream.warm(3)
        await eventually(lambda: "warm orders/3" in handler.calls)
        service.stream.cancel(3)
        await eventually(lambda: "cancelled warm orders/3" in handler.calls)
        service.stream.warm(4, "h2")
        await service.receives(lambda: service.ready_acks() == [(4, "h2", "")])


async def test_a_finished_warm_that_is_cancelled_is_discarded() -> None:
    handler = Recorder()
    async with ScriptedAssigner() as service, consuming(service, handler):
        service.stream.warm(3)
        await service.receives(lambda: bool(service.readies))
        service.stream.cancel(3)
        await eventually(lambda: handler.calls == ["warm orders/3", "discard orders/3"])


async def test_a_release_stops_a_running_warm() -> None:
    handler = Recorder()
    handler.during["warm"] = anyio.sleep_forever
    async with ScriptedAssigner() as service, consuming(service, handler):
        service.stream.warm(3)
        await eventually(lambda: "warm orders/3" in handler.calls)
        service.stream.release(3, 9, "h2")
        await service.receives(lambda: service.released_acks() == [(3, "h2", "")])
        assert "cancelled warm orders/3" in handler.calls
        assert not service.readies


async def test_only_so_many_warms_run_at_a_time_and_releases_do_not_wait_for_them() -> None:
    handler, gate = Recorder(), anyio.Event()
    handler.during["warm"] = gate.wait
    async with (
        ScriptedAssigner(owned={"p9": 1}) as service,
        consuming(service, handler, warm_concurrency=2) as consumer,
    ):
        await owns(consumer, p9=1)
        service.stream.batch(warms=[(partition, "h") for partition in range(5)])
        service.stream.release(9, 1)
        await service.receives(lambda: bool(service.releases))
        assert sum(call.startswith("warm") for call in handler.calls) == 2
        gate.set()
        await service.receives(lambda: len(service.ready_acks()) == 5)


async def test_a_release_is_reported_when_the_handler_returned() -> None:
    handler, may_return = Recorder(), anyio.Event()
    handler.during["release"] = may_return.wait
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, handler) as consumer:
        await owns(consumer, p0=5)
        service.stream.release(0, 5)
        await eventually(lambda: "release orders/0@5" in handler.calls)
        gate = consumer.gate(TOPIC, 0)
        with pytest.raises(GateClosed):
            gate.admit()
        assert gate.check(5) == 5
        assert not service.releases
        may_return.set()
        await service.receives(lambda: service.released_acks() == [(0, "h1", "")])
        with pytest.raises(GateClosed):
            gate.check(5)


async def test_a_release_whose_handler_fails_is_reported_all_the_same() -> None:
    handler = Recorder()

    async def fail() -> None:
        raise RuntimeError("flush failed")

    handler.during["release"] = fail
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, handler) as consumer:
        await owns(consumer, p0=5)
        service.stream.release(0, 5)
        await service.receives(lambda: service.released_acks() == [(0, "h1", "")])
        assert not consumer.gate(TOPIC, 0).is_open


async def test_a_release_waits_for_the_work_in_progress() -> None:
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, Handler()) as consumer:
        await owns(consumer, p0=5)
        gate = consumer.gate(TOPIC, 0)
        with gate.enter() as epoch:
            service.stream.release(0, 5)
            await consumer.wait_for(lambda _: not gate.is_open)
            assert gate.check(epoch) == 5
            assert not service.releases
        await service.receives(lambda: service.released_acks() == [(0, "h1", "")])


async def test_a_release_waits_for_work_in_threads() -> None:
    entered, may_leave = threading.Event(), threading.Event()
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, Handler()) as consumer:
        await owns(consumer, p0=5)
        gate = consumer.gate(TOPIC, 0)

        def work() -> None:
            with gate.enter():
                entered.set()
                may_leave.wait()

        thread = threading.Thread(target=work)
        thread.start()
        await eventually(entered.is_set)
        service.stream.release(0, 5)
        await consumer.wait_for(lambda _: not gate.is_open)
        assert not service.releases
        may_leave.set()
        await service.receives(lambda: bool(service.releases))
        thread.join()


async def test_a_released_epoch_is_not_reopened_by_a_stale_grant() -> None:
    handler = Recorder()
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, handler) as consumer:
        await owns(consumer, p0=5)
        service.stream.release(0, 5)
        await service.receives(lambda: bool(service.releases))
        service.cut()
        await eventually(lambda: len(service.streams) == 2)
        await consumer.wait_for(lambda one: one.statistics().stale_grants == 1)
        assert consumer.partitions == {}
        service.stream.update(p0=6)
        await owns(consumer, p0=6)


async def test_five_hundred_acks_cost_few_calls() -> None:
    async with ScriptedAssigner() as service, consuming(service, Handler()):
        service.stream.batch(warms=[(partition, f"h{partition}") for partition in range(500)])
        await service.receives(lambda: len(service.ready_acks()) >= 500)
        assert sorted(one[0] for one in service.ready_acks()) == list(range(500))
        assert len(service.readies) <= 20


async def test_acks_are_repeated_until_they_are_accepted() -> None:
    async with ScriptedAssigner() as service, consuming(service, Handler()) as consumer:
        service.fail["ready"] = UNAVAILABLE
        service.stream.warm(3)
        await consumer.wait_for(lambda one: one.statistics().pending_acks == 1)
        service.fail.clear()
        await service.receives(lambda: service.ready_acks() == [(3, "h1", "")])
        await consumer.wait_for(lambda one: one.statistics().pending_acks == 0)


async def test_an_ack_that_is_no_longer_wanted_is_dropped() -> None:
    async with ScriptedAssigner() as service, consuming(service, Handler()) as consumer:
        service.fail["ready"] = UNAVAILABLE
        service.stream.warm(3)
        await consumer.wait_for(lambda one: one.statistics().pending_acks == 1)
        service.stream.cancel(3)
        await consumer.wait_for(lambda one: one.statistics().pending_acks == 0)


async def test_a_rejected_ack_is_not_repeated_and_rejects_no_other() -> None:
    handler = Recorder()
    async with ScriptedAssigner() as service, consuming(service, handler) as consumer:
        service.refuse = lambda answer: "not the target" if answer.partition.partition == 3 else ""  # type: ignore[union-attr]
        service.stream.batch(warms=[(3, "h1"), (4, "h2")])
        await consumer.wait_for(lambda one: one.statistics().refused_acks == 1)
        await consumer.wait_for(lambda one: one.statistics().pending_acks == 0)
        await eventually(lambda: "discard orders/3" in handler.calls)
        assert "discard orders/4" not in handler.calls


async def test_an_ack_rejected_in_a_batch_for_a_transient_reason_is_repeated() -> None:
    async with ScriptedAssigner() as service, consuming(service, Handler()) as consumer:
        service.refuse = lambda answer: "the store does not answer" if service.fail else ""
        service.fail["single ready"] = UNAVAILABLE
        service.stream.batch(warms=[(3, "h1"), (4, "h2")])
        await service.receives(lambda: "single ready" in service.failed)
        assert consumer.statistics().pending_acks == 2
        service.fail.clear()
        await consumer.wait_for(lambda one: one.statistics().pending_acks == 0)
        assert consumer.statistics().refused_acks == 0


async def test_a_call_that_fails_because_of_one_ack_is_split() -> None:
    async with ScriptedAssigner() as service, consuming(service, Handler()) as consumer:
        service.fail_once["released"] = Refusal(Status.NOT_FOUND, "never the target", "NotTheTarget")
        service.stream.batch(releases=[(3, 1, "h1"), (4, 1, "h2")])
        await service.receives(lambda: len(service.released_acks()) == 2)
        await consumer.wait_for(lambda one: one.statistics().pending_acks == 0)
