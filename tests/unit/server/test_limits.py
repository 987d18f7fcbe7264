"""Bounds that have no better place: each is met, and what is past it is cut or refused. `docs/limits.md` lists all."""

from __future__ import annotations

import anyio
import pytest

from assigner.api import Registration
from assigner.backends.memory import MemoryState, MemoryStore
from assigner.clock import LoopClock
from assigner.core.sessions import MOST_DISPLACED, RegistrationTerms, takeover
from assigner.core.writes import Moved
from assigner.errors import InvalidInput
from assigner.leader.history import LENGTH, HistoryWriter, read_history
from assigner.model.keys import Keys, TopicPartition
from assigner.model.records import Cause, Consumer, Displaced, Stored
from assigner.proto.kafka_assigner import v1
from assigner.server.services.requests import MAX_PARTITION, Requests
from assigner.store import CreateRevisionIs, Found
from assigner.testing.waiting import eventually

REQUESTS = Requests("default", Keys().check_group)


@pytest.mark.virtual_time
async def test_a_groups_history_keeps_the_last_moves_and_no_more() -> None:
    clock = LoopClock()
    store = MemoryStore(MemoryState(clock))
    await store.put("/leader", b"")
    leader = await store.get("/leader")
    assert isinstance(leader, Found)
    history = HistoryWriter(store, "/h", CreateRevisionIs("/leader", leader.entry.create_revision), clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(history.run)
        await anyio.sleep(0.1)
        for number in range(3 * LENGTH):
            history.add(Moved(TopicPartition("t", number), "a", "b", Cause.JOINED, 1), 1)

        async def is_written() -> bool:
            moves = await read_history(store, "/h")
            return bool(moves) and moves[-1].partition == 3 * LENGTH - 1

        await eventually(is_written)
        tasks.cancel_scope.cancel()
    assert [move.partition for move in await read_history(store, "/h")] == list(range(2 * LENGTH, 3 * LENGTH))
    await store.close()


def test_a_record_remembers_the_last_displaced_sessions_and_no_more() -> None:
    many = tuple(Displaced(f"s{number}", number + 1) for number in range(MOST_DISPLACED))
    record = Consumer(consumer_name="c", session="now", displaced=many)
    registration = Registration(group="g", name="c", session="next")
    terms = RegistrationTerms(registration=registration, session="next", instance="i", ttl=30.0, now=1)
    taken = takeover(Stored(record, "/c", 1, 1, 99), terms)
    assert taken.displaced == (*many[1:], Displaced("now", 99))


def test_a_partition_number_past_nine_digits_is_refused() -> None:
    def ready(partition: int) -> v1.PartitionReadyRequest:
        return v1.PartitionReadyRequest(consumer_name="c", partition=v1.TopicPartition("t", partition))

    assert REQUESTS.acks(ready(MAX_PARTITION), "").acks[0].tp.partition == MAX_PARTITION
    with pytest.raises(InvalidInput, match="out of range"):
        REQUESTS.acks(ready(MAX_PARTITION + 1), "")


def test_a_capacity_past_a_billion_is_refused() -> None:
    assert REQUESTS.registration(v1.RegisterRequest(consumer_name="c", capacity=1e9)).capacity == 1e9
    with pytest.raises(InvalidInput, match="capacity"):
        REQUESTS.registration(v1.RegisterRequest(consumer_name="c", capacity=1.1e9))
