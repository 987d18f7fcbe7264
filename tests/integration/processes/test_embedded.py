"""The whole service on a thread of a synchronous program."""

from __future__ import annotations

import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from assigner.client import AssignerConsumer, Handler
from assigner.embedded import EmbeddedAssigner
from assigner.errors import AssignerError, InvalidInput
from assigner.server import ServerSettings
from assigner.settings import HttpSettings, Settings


async def consume(address: str, name: str, group: str = "g") -> dict[int, int]:
    """Join, wait until something is owned, and tell which partitions with which epochs."""
    async with AssignerConsumer([address], group, name, [], Handler()) as consumer:
        with anyio.fail_after(30):
            await consumer.wait_for(lambda joined: bool(joined.partitions))
        return {tp.partition: epoch for tp, epoch in consumer.partitions.items()}


def _consume_as(address: str) -> dict[int, int]:
    return anyio.run(consume, address, "same-name")


def test_a_synchronous_program_embeds_it_and_a_consumer_gets_its_partitions() -> None:
    with EmbeddedAssigner(topics={"g": {"events": 4}}) as assigner:
        assert anyio.run(consume, assigner.address, "a") == {0: 1, 1: 1, 2: 1, 3: 1}
        with urllib.request.urlopen(f"http://{assigner.http_address}/readyz", timeout=5) as answer:
            assert answer.status == 200


def test_topics_can_be_set_while_it_runs() -> None:
    with EmbeddedAssigner() as assigner:
        assigner.set_topic("g", "late", 2)
        assert set(anyio.run(consume, assigner.address, "a")) == {0, 1}


def test_two_in_one_process_know_nothing_of_each_other() -> None:
    with EmbeddedAssigner(topics={"g": {"t": 2}}) as one, EmbeddedAssigner(topics={"g": {"t": 3}}) as other:
        assert one.address != other.address
        with ThreadPoolExecutor(2) as threads:
            asked = [threads.submit(_consume_as, address) for address in (one.address, other.address)]
            assert [len(answer.result(30)) for answer in asked] == [2, 3]


def test_what_keeps_it_from_coming_up_is_raised_to_the_caller() -> None:
    with EmbeddedAssigner() as first:
        taken = int(first.http_address.rpartition(":")[2])
        settings = Settings(grpc=ServerSettings(port=0), http=HttpSettings(port=taken))
        with pytest.raises(InvalidInput, match="can't serve HTTP"), EmbeddedAssigner(settings):
            pytest.fail("it came up on a taken port")


def test_leaving_the_block_leaves_no_thread_behind_and_an_error_in_it_is_the_callers_own() -> None:
    class Mine(Exception):
        pass

    before = {thread.name for thread in threading.enumerate()}
    with pytest.raises(Mine), EmbeddedAssigner():
        raise Mine
    assert {thread.name for thread in threading.enumerate() if thread.name == "assigner"} <= before


def test_work_on_its_loop_returns_what_it_returns_and_raises_what_it_raises() -> None:
    with EmbeddedAssigner(topics={"g": {"t": 2}}) as assigner:
        groups = assigner.call(lambda service: service.instance.operations.groups())
        assert [group.group for group in groups] == ["g"]
        with pytest.raises(AssignerError):
            assigner.call(lambda service: service.instance.operations.describe("nowhere"))
