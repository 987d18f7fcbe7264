"""An outbox is a set: what is in it twice is taken once, and whoever waits hears of everything new."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from assigner.errors import NotRegistered, Superseded
from assigner.model.keys import TopicPartition
from assigner.streams.outbox import Outbox

pytestmark = pytest.mark.virtual_time


def tps(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in numbers]


def test_a_partition_that_comes_often_is_taken_once_and_in_order() -> None:
    outbox = Outbox(10)
    for number in (3, 1, 3, 2, 1):
        outbox.add(TopicPartition("t", number))
    assert len(outbox) == 3
    assert outbox.take() == tps(1, 2, 3)
    assert outbox.take() == []


def test_no_more_are_taken_at_once_than_allowed_and_none_is_lost() -> None:
    outbox = Outbox(4)
    for tp in tps(*range(10)):
        outbox.add(tp)
    parts = [outbox.take(), outbox.take(), outbox.take()]
    assert [len(part) for part in parts] == [4, 4, 2]
    assert all(part == sorted(part) for part in parts)
    assert sorted(tp for part in parts for tp in part) == tps(*range(10))


async def test_what_comes_between_a_look_and_the_wait_ends_the_wait() -> None:
    outbox = Outbox(10)
    ways: list[Callable[[], None]] = [
        lambda: outbox.add(TopicPartition("t", 1)),
        outbox.notify,
    ]
    for news in ways:
        mark = outbox.look()
        news()
        with anyio.fail_after(1):
            await outbox.news(mark)


async def test_nothing_new_keeps_the_wait_going() -> None:
    outbox = Outbox(10)
    outbox.add(tps(1)[0])
    mark = outbox.look()
    with anyio.move_on_after(60) as waited:
        await outbox.news(mark)
    assert waited.cancelled_caught


async def test_the_first_error_ends_the_stream_and_the_wait() -> None:
    outbox = Outbox(10)
    mark = outbox.look()
    outbox.end(Superseded("first"))
    outbox.end(NotRegistered("second"))
    with anyio.fail_after(1):
        await outbox.news(mark)
    with pytest.raises(Superseded, match="first"):
        outbox.look()
