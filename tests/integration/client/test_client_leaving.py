"""How a consumer leaves: what it still does, and what the service hears of it."""

from __future__ import annotations

import anyio
import pytest

from assigner.client import Ending, GateClosed, Handler, Shut
from assigner.proto.kafka_assigner import v1
from tests.support.clients.recording_handler import QUICK, Recorder, consuming, owns
from tests.support.fakes.scripted_assigner import TOPIC, ScriptedAssigner


async def test_leaving_shuts_the_gates_and_notifies_the_handler_and_the_service() -> None:
    handler = Recorder()
    async with ScriptedAssigner(owned={"p0": 5}) as service:
        async with consuming(service, handler) as consumer:
            await owns(consumer, p0=5)
        assert handler.calls == ["assigned orders/0@5", "revoked orders/0@5"]
        assert [(one.session, one.gates_closed) for one in service.deregistrations] == [(consumer.session, True)]
        assert consumer.partitions == {}
        with pytest.raises(GateClosed) as refused:
            consumer.gate(TOPIC, 0).admit()
        assert refused.value.reason is Shut.CLOSED
        assert await consumer.closed() is Ending.LEFT


async def test_leaving_waits_for_the_work_in_progress() -> None:
    async with ScriptedAssigner(owned={"p0": 5}) as service, anyio.create_task_group() as tasks:
        async with consuming(service, Handler()) as consumer:
            await owns(consumer, p0=5)
            begun, may_end = anyio.Event(), anyio.Event()

            async def work() -> None:
                with consumer.gate(TOPIC, 0).enter():
                    begun.set()
                    await may_end.wait()

            async def end_it() -> None:
                await consumer.wait_for(lambda one: not one.gate(TOPIC, 0).is_open)
                assert not service.deregistrations
                may_end.set()

            tasks.start_soon(work)
            tasks.start_soon(end_it)
            await begun.wait()
        assert service.deregistrations[0].gates_closed


async def test_work_that_never_ends_keeps_the_session_from_being_reported_as_closed() -> None:
    timing = type(QUICK)(close_timeout=0.05)
    async with ScriptedAssigner(owned={"p0": 5}) as service:
        async with consuming(service, Handler(), timing=timing) as consumer:
            await owns(consumer, p0=5)
            work = consumer.gate(TOPIC, 0).enter()
            work.__enter__()
        assert not service.deregistrations
        work.__exit__(None, None, None)


async def test_leaving_works_without_a_service() -> None:
    async with ScriptedAssigner(owned={"p0": 5}) as service:
        handler = Recorder()
        async with consuming(service, handler) as consumer:
            await owns(consumer, p0=5)
            await service.stop()
        assert handler.calls == ["assigned orders/0@5", "revoked orders/0@5"]


async def test_leaving_under_cancellation_still_deregisters() -> None:
    async with ScriptedAssigner(owned={"p0": 5}) as service:
        with anyio.move_on_after(5) as scope:
            async with consuming(service, Handler()) as consumer:
                await owns(consumer, p0=5)
                scope.cancel()
                await anyio.sleep_forever()
        assert service.deregistrations[0].gates_closed


async def test_draining_goes_on_until_the_service_closes_the_stream() -> None:
    handler = Recorder()
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, handler) as consumer:
        await owns(consumer, p0=5)

        async def hand_over() -> None:
            await service.receives(lambda: bool(service.deregistrations))
            assert not service.deregistrations[0].gates_closed
            assert consumer.gate(TOPIC, 0).is_open
            service.stream.release(0, 5)
            await service.receives(lambda: bool(service.releases))
            service.stream.end()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hand_over)
            await consumer.drain(timeout=10)
        assert handler.calls == ["assigned orders/0@5", "release orders/0@5"]
        assert await consumer.closed() is Ending.DRAINED
        assert service.deregistrations[-1].gates_closed


async def test_a_drain_is_asked_for_again_after_a_reconnect() -> None:
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, Handler()) as consumer:
        await owns(consumer, p0=5)

        async def lose_contact() -> None:
            await service.receives(lambda: bool(service.deregistrations))
            service.cut()
            await service.receives(lambda: len(service.deregistrations) == 2)
            service.stream.end()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lose_contact)
            await consumer.drain(timeout=10)


async def test_shutdown_now_releases_everything_without_waiting() -> None:
    handler = Recorder()
    async with ScriptedAssigner(owned={"p0": 5, "p1": 6}) as service, consuming(service, handler) as consumer:
        service.action = v1.DeregisterAction.SHUTDOWN_NOW
        await owns(consumer, p0=5, p1=6)
        await consumer.drain(timeout=10)
        assert sorted(handler.calls[2:]) == ["release orders/0@5", "release orders/1@6"]
        assert [one.gates_closed for one in service.deregistrations] == [False, True]
        assert not service.releases


async def test_a_drain_that_takes_too_long_raises_and_the_consumer_works_on() -> None:
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, Handler()) as consumer:
        await owns(consumer, p0=5)
        with pytest.raises(TimeoutError):
            await consumer.drain(timeout=0.05)
        assert consumer.gate(TOPIC, 0).is_open


async def test_a_consumer_that_an_operator_drained_is_closed() -> None:
    async with ScriptedAssigner() as service, consuming(service, Handler()) as consumer:
        service.stream.end()
        assert await consumer.closed() is Ending.DRAINED


async def test_a_consumer_is_entered_once() -> None:
    async with ScriptedAssigner() as service, consuming(service, Handler()) as consumer:
        with pytest.raises(RuntimeError, match="entered once"):
            await consumer.__aenter__()
