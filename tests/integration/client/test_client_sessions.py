"""Sessions, leases and reconnects of the client: which gates stay open, which shut, and which calls are made."""

from __future__ import annotations

import ssl
from contextlib import aclosing

import anyio
import pytest
import trustme

from assigner.client import AssignerConsumer, Evicted, GateClosed, Handler, Shut, Superseded, TopicPartition
from assigner.client import runner as client_work
from assigner.client.channel import Dialer, parse_address
from assigner.client.rpc import ConsumerRpc, Identity
from assigner.clock import LoopClock
from assigner.errors import FailedPrecondition
from assigner.proto.kafka_assigner import v1
from assigner.testing.waiting import eventually
from tests.support.clients.recording_handler import QUICK, Recorder, consuming, owns
from tests.support.fakes.scripted_assigner import TOPIC, ScriptedAssigner, ScriptedStream
from tests.support.fakes.scripted_service import EVICTED, NOT_REGISTERED, SUPERSEDED, UNAVAILABLE

pytestmark = pytest.mark.virtual_time(sockets="local")
WHO = Identity(group="g", name="n", session="s", topics=(), capacity=1.0, rack="", address="", generation="")


class JumpingClock(LoopClock):
    """The loop's clock, and a test may let the machine sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = 0.0

    def now(self) -> float:
        return super().now() + self.slept


@pytest.fixture(autouse=True)
def _short_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_work, "_LONGEST_SLEEP", 0.02)


# --- reconnecting --------------------------------------------------------------------------------------------------


async def test_a_reconnect_is_invisible_to_the_handler() -> None:
    handler = Recorder()
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, handler) as consumer:
        await owns(consumer, p0=5)
        service.cut()
        await consumer.wait_for(lambda one: not one.is_connected)
        assert consumer.gate(TOPIC, 0).admit() == 5
        await consumer.wait_for(lambda one: one.statistics().links == 2)
        await eventually(lambda: service.streams[1].request.session == consumer.session)
        assert handler.calls == ["assigned orders/0@5"]


async def test_a_reconnect_reconciles_what_changed_meanwhile() -> None:
    handler = Recorder()
    async with ScriptedAssigner(owned={"p0": 5, "p1": 5, "p2": 5}) as service, consuming(service, handler) as consumer:
        await owns(consumer, p0=5, p1=5, p2=5)
        service.owned = {"p0": 5, "p1": 6, "p3": 1}
        service.cut()
        await owns(consumer, p0=5, p1=6, p3=1)
        assert handler.calls.count("assigned orders/0@5") == 1
        assert "revoked orders/2@5" in handler.calls
        assert handler.calls.index("revoked orders/1@5") < handler.calls.index("assigned orders/1@6")


async def test_a_restarted_service_is_found_again() -> None:
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, Handler()) as consumer:
        await owns(consumer, p0=5)
        await service.stop()
        await consumer.wait_for(lambda one: not one.is_connected)
        await service.start()
        await consumer.wait_for(lambda one: one.statistics().links == 2)
        await owns(consumer, p0=5)


async def test_another_address_is_used_when_one_is_gone() -> None:
    async with ScriptedAssigner(owned={"p0": 5}) as one, ScriptedAssigner(owned={"p0": 5}) as other:
        handler = Recorder()
        async with consuming(one, handler, addresses=[one.address, other.address]) as consumer:
            await owns(consumer, p0=5)
            first, second = (one, other) if one.streams else (other, one)
            await first.stop()
            await eventually(lambda: bool(second.streams))
            await consumer.wait_for(lambda it: it.is_connected)
            assert second.stream.request.session == first.stream.request.session
            assert handler.calls == ["assigned orders/0@5"]


async def test_an_instance_that_is_shutting_down_is_left() -> None:
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, Handler()) as consumer:
        await owns(consumer, p0=5)
        service.stream.fail(UNAVAILABLE)
        await consumer.wait_for(lambda one: one.statistics().links == 2)
        await owns(consumer, p0=5)


async def test_a_frozen_instance_is_noticed_and_left() -> None:
    async with (
        ScriptedAssigner(owned={"p0": 5}) as one,
        ScriptedAssigner(owned={"p0": 5}) as other,
        consuming(one, Handler(), addresses=[one.address, other.address]) as consumer,
    ):
        await owns(consumer, p0=5)
        first, second = (one, other) if one.streams else (other, one)
        first.freeze()
        await eventually(lambda: bool(second.streams))
        await owns(consumer, p0=5)


async def test_an_instance_that_never_sends_a_first_message_is_left() -> None:
    async with ScriptedAssigner() as one, ScriptedAssigner() as other:
        one.hang.add("register")
        other.hang.add("register")
        quick = type(QUICK)(call_timeout=0.1, first_pause=0.01)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_heal, one)
            async with consuming(one, Handler(), addresses=[one.address, other.address], timing=quick) as consumer:
                assert consumer.statistics().address == one.address


async def _heal(service: ScriptedAssigner) -> None:
    await anyio.sleep(0.15)
    service.hang.clear()


async def test_a_pending_warm_that_is_replayed_is_not_warmed_twice() -> None:
    handler, may_end = Recorder(), anyio.Event()
    handler.during["warm"] = may_end.wait
    async with ScriptedAssigner() as service:

        def greet(stream: ScriptedStream) -> None:
            service.greet(stream)
            stream.warm(3, "h1")

        service.opening = greet
        async with consuming(service, handler):
            await eventually(lambda: handler.calls == ["warm orders/3"])
            service.cut()
            await eventually(lambda: len(service.streams) == 2)
            may_end.set()
            await service.receives(lambda: service.ready_acks() == [(3, "h1", "")])
            assert handler.calls == ["warm orders/3"]


async def test_an_ack_survives_a_reconnect() -> None:
    async with ScriptedAssigner() as service, consuming(service, Handler()) as consumer:
        service.hang.add("ready")
        service.stream.warm(3)
        await consumer.wait_for(lambda one: one.statistics().pending_acks == 1)
        service.hang.clear()
        service.cut()
        await service.receives(lambda: service.ready_acks() == [(3, "h1", "")])


# --- the lease -----------------------------------------------------------------------------------------------------


async def test_the_session_is_renewed_about_three_times_per_ttl() -> None:
    async with ScriptedAssigner(ttl=0.3) as service, consuming(service, Handler()) as consumer:
        await service.receives(lambda: len(service.renewals) >= 4)
        assert service.renewals[0].session == consumer.session
        assert len(service.streams) == 1


async def test_no_gate_opens_before_the_first_renewal() -> None:
    handler = Recorder()
    async with ScriptedAssigner(owned={"p0": 5}) as service:
        service.hang.add("renew")
        async with consuming(service, handler) as consumer:
            assert not consumer.partitions
            assert not handler.calls
            service.hang.clear()
            await owns(consumer, p0=5)


async def test_a_lease_is_counted_from_the_moment_the_renewal_was_sent() -> None:
    clock = JumpingClock()
    async with ScriptedAssigner(ttl=30, owned={"p0": 5}) as service:
        answer = service.hold["renew"] = anyio.Event()
        async with consuming(service, Handler(), clock=clock) as consumer:
            await service.receives(lambda: "renew" in service.asked)
            clock.slept += 15.0
            service.hold["renew"] = anyio.Event()
            answer.set()
            await owns(consumer, p0=5)
            assert 0 < consumer.statistics().lease_left <= 5.0


async def test_gates_shut_by_the_clock_before_anyone_notices() -> None:
    clock = JumpingClock()
    async with (
        ScriptedAssigner(ttl=30, owned={"p0": 5}) as service,
        consuming(service, Handler(), clock=clock) as consumer,
    ):
        await owns(consumer, p0=5)
        gate = consumer.gate(TOPIC, 0)
        clock.slept += 19.0
        assert gate.is_open
        clock.slept += 2.0
        with pytest.raises(GateClosed) as refused:
            gate.admit()
        assert refused.value.reason is Shut.LEASE_OVER
        assert consumer.partitions == {}


async def test_a_lost_lease_revokes_and_the_same_epoch_is_assigned_when_contact_is_back() -> None:
    clock, handler = JumpingClock(), Recorder()
    async with (
        ScriptedAssigner(ttl=30, owned={"p0": 5}) as service,
        consuming(service, handler, clock=clock) as consumer,
    ):
        await owns(consumer, p0=5)
        service.hang.add("renew")
        clock.slept += 25.0
        await eventually(lambda: handler.calls == ["assigned orders/0@5", "revoked orders/0@5"])
        service.hang.clear()
        service.cut()
        await owns(consumer, p0=5)
        assert handler.calls[2:] == ["assigned orders/0@5"]
        assert consumer.statistics().leases_lost == 1


async def test_an_outage_within_the_lease_shuts_nothing_and_one_beyond_it_everything() -> None:
    handler = Recorder()
    async with ScriptedAssigner(ttl=0.9, owned={"p0": 5}) as service, consuming(service, handler) as consumer:
        await owns(consumer, p0=5)
        await service.stop()
        await consumer.wait_for(lambda one: not one.is_connected)
        assert consumer.gate(TOPIC, 0).is_open
        await eventually(lambda: handler.calls == ["assigned orders/0@5", "revoked orders/0@5"])
        assert not consumer.gate(TOPIC, 0).is_open
        await service.start()
        await owns(consumer, p0=5)


async def test_renewals_that_fail_lead_to_another_instance_before_the_lease_ends() -> None:
    handler = Recorder()
    async with (
        ScriptedAssigner(ttl=3.0, owned={"p0": 5}) as one,
        ScriptedAssigner(ttl=3.0, owned={"p0": 5}) as other,
        consuming(one, handler, addresses=[one.address, other.address]) as consumer,
    ):
        await owns(consumer, p0=5)
        first, second = (one, other) if one.streams else (other, one)
        first.fail["renew"] = UNAVAILABLE
        await second.receives(lambda: bool(second.renewals))
        assert handler.calls == ["assigned orders/0@5"]
        assert consumer.gate(TOPIC, 0).is_open


# --- the end of a session --------------------------------------------------------------------------------------------


async def test_a_refused_renewal_shuts_every_gate_and_registers_again() -> None:
    handler = Recorder()
    async with ScriptedAssigner(ttl=0.3, owned={"p0": 5}) as service, consuming(service, handler) as consumer:
        await owns(consumer, p0=5)
        session = consumer.session
        service.owned = {"p0": 6}
        service.fail_once["renew"] = NOT_REGISTERED
        await owns(consumer, p0=6)
        assert handler.calls[:3] == ["assigned orders/0@5", "revoked orders/0@5", "assigned orders/0@6"]
        assert service.stream.request.session == session


async def test_gates_are_shut_before_the_revoked_handler_runs() -> None:
    handler = Recorder()
    seen: list[bool] = []
    async with (
        ScriptedAssigner(ttl=0.3, owned={"p0": 5, "p1": 5}) as service,
        consuming(service, handler) as consumer,
    ):
        await owns(consumer, p0=5, p1=5)

        async def look() -> None:
            seen.extend(consumer.gate(TOPIC, partition).is_open for partition in (0, 1))

        handler.during["revoked"] = look
        service.owned = {}
        service.fail_once["renew"] = NOT_REGISTERED
        await eventually(lambda: len(seen) == 4)
        assert not any(seen)


@pytest.mark.parametrize("how", ["stream", "renewal", "registration"])
async def test_a_superseded_consumer_stops_for_good_and_says_that_its_gates_are_shut(how: str) -> None:
    handler = Recorder()
    async with ScriptedAssigner(ttl=0.3, owned={"p0": 5}) as service, consuming(service, handler) as consumer:
        await owns(consumer, p0=5)
        match how:
            case "stream":
                service.stream.fail(SUPERSEDED)
            case "renewal":
                service.fail["renew"] = SUPERSEDED
            case _:
                service.fail["register"] = SUPERSEDED
                service.cut()
        with pytest.raises(Superseded, match="another session took over"):
            await consumer.closed()
        assert not consumer.gate(TOPIC, 0).is_open
        assert handler.calls == ["assigned orders/0@5", "revoked orders/0@5"]
        assert [(one.session, one.gates_closed) for one in service.deregistrations] == [(consumer.session, True)]
        assert len(service.streams) == 1


async def test_an_evicted_consumer_rejoins_with_a_new_session() -> None:
    handler = Recorder()
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, handler) as consumer:
        await owns(consumer, p0=5)
        old = consumer.session
        service.owned = {"p0": 6}
        service.stream.fail(EVICTED)
        await owns(consumer, p0=6)
        assert handler.calls == ["assigned orders/0@5", "revoked orders/0@5", "assigned orders/0@6"]
        assert [(one.session, one.gates_closed) for one in service.deregistrations] == [(old, True)]
        assert consumer.session != old
        assert service.stream.request.session == consumer.session


async def test_an_evicted_consumer_may_stay_away() -> None:
    async with ScriptedAssigner() as service, consuming(service, Handler(), rejoin_after_eviction=False) as consumer:
        service.stream.fail(EVICTED)
        with pytest.raises(Evicted, match="the release took too long"):
            await consumer.closed()


async def test_an_evicted_session_is_not_replaced_while_work_is_in_progress() -> None:
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, Handler()) as consumer:
        await owns(consumer, p0=5)
        gate = consumer.gate(TOPIC, 0)
        with gate.enter() as epoch:
            service.stream.fail(EVICTED)
            await consumer.wait_for(lambda one: one.statistics().revoked == 1)
            with pytest.raises(GateClosed):
                gate.check(epoch)
            service.owned = {}
            async with consuming(service, Handler()) as other:
                pass
            # The other one came and went meanwhile; of the evicted session nothing was heard.
            assert [one.session for one in service.deregistrations] == [other.session]
        await service.receives(lambda: len(service.deregistrations) == 2)
        assert service.deregistrations[1].gates_closed


# --- other ---------------------------------------------------------------------------------------------------------


async def test_a_stream_that_nobody_reads_does_not_block_other_calls() -> None:
    async with ScriptedAssigner() as service:
        channel = Dialer(None, 5.0, 5.0).dial(parse_address(service.address))
        contact = ConsumerRpc(channel, WHO, 5.0)
        async with aclosing(contact.register()) as stream:
            await anext(stream)
            filler = v1.AssignmentCommand(assignment=v1.AssignmentUpdate(session="x" * 500_000))
            for _ in range(20):
                service.stream.send(filler)
            await eventually(lambda: service.stream.waiting < 20)
            assert await contact.renew(5.0) == 30.0
            assert service.stream.waiting > 10
        channel.close()


async def test_tls_with_a_client_certificate() -> None:
    authority = trustme.CA()
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    authority.configure_trust(server_side)
    server_side.verify_mode = ssl.CERT_REQUIRED
    server_side.set_alpn_protocols(["h2"])
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)
    authority.issue_cert("worker@example.org").configure_cert(client_side)
    service = ScriptedAssigner(owned={"p0": 5})
    await service.start(tls=server_side)
    async with consuming(service, Handler(), tls=client_side) as consumer:
        await owns(consumer, p0=5)
    with pytest.raises(FailedPrecondition, match="certificate was not accepted"):
        async with consuming(service, Handler(), tls=True):
            pytest.fail("entered")
    await service.stop()


async def test_statistics_show_the_state_of_the_consumer() -> None:
    async with ScriptedAssigner(ttl=30, owned={"p0": 5}) as service, consuming(service, Handler()) as consumer:
        await owns(consumer, p0=5)
        with consumer.gate(TOPIC, 0).enter():
            numbers = consumer.statistics()
        assert numbers.connected
        assert numbers.address == service.address
        assert numbers.owned == numbers.work_in_progress == numbers.links == 1
        assert 15 < numbers.lease_left <= 20


async def test_a_gate_describes_itself() -> None:
    consumer = AssignerConsumer("h:1", "g", "n", [], Handler())
    gate = consumer.gate(TOPIC, 0)
    assert gate is consumer.gate(TOPIC, 0)
    assert gate.partition == TopicPartition(TOPIC, 0)
    assert gate.epoch is None
    assert "not_owned" in repr(gate)
