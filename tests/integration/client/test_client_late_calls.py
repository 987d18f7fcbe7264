"""The client and the real service on the real wire, when a call arrives long after its caller gave it up."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from assigner.client import Superseded
from assigner.client.channel import Dialer, Unavailable, close_channel, parse_address
from assigner.client.rpc import ConsumerRpc
from tests.integration.client.test_client_service import COUNT, holds, member, serving
from tests.support.clients.recording_handler import Recorder


async def test_a_late_registration_of_its_own_session_costs_a_consumer_a_reconnect_and_nothing_else() -> None:
    """As if an earlier try to connect had been held up on its way: the service can't tell it from a newer one."""
    handler = Recorder()
    async with serving() as assigner, member(assigner, "a", handler) as a:
        await holds(a, COUNT)
        before = dict(a.partitions)
        channel = Dialer(None, 5.0, 5.0).dial(parse_address(assigner.address))
        try:
            async with aclosing(ConsumerRpc(channel, a._session.identity, 10.0).register()) as late:
                await anext(late)
                await a.wait_for(lambda one: one.statistics().links == 2 and one.is_connected)
                with pytest.raises(Unavailable, match="took this one's place"):
                    _ = [message async for message in late]
        finally:
            await close_channel(channel)
        await holds(a, COUNT)
        assert a.partitions == before, "with the same epochs"
        assert all(a.gate(tp.topic, tp.partition).admit() == epoch for tp, epoch in before.items())
        assert not [call for call in handler.calls if not call.startswith("assigned")]
        assert len(handler.calls) == COUNT
        assert a.statistics().leases_lost == 0


async def test_a_newer_process_of_the_name_ends_the_older_one_for_good() -> None:
    older, newer = Recorder(), Recorder()
    async with serving() as assigner:
        first = member(assigner, "a", older)
        async with first:
            await holds(first, COUNT)
            async with member(assigner, "a", newer) as second:
                await holds(second, COUNT)
                with pytest.raises(Superseded):
                    await first.closed()
                assert sum(call.startswith("revoked") for call in older.calls) == COUNT
                assert second.is_connected
