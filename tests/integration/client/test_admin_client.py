"""The public client of the Admin service, against a real service and against addresses where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from assigner.client import AdminClient, InvalidInput, TopicPartition, Unavailable
from assigner.embedded import EmbeddedAssigner
from assigner.errors import FailedPrecondition, UnknownGroup
from assigner.proto.kafka_assigner import v1
from tests.support.servers.ports import free_port

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "client.md"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with EmbeddedAssigner(topics={"billing": {"orders": 12}}) as assigner:
        yield assigner.address


async def test_groups_topics_and_options_are_described_and_changed(address: str) -> None:
    async with AdminClient(address) as admin:
        topic = (await admin.set_topic("shop", "carts", 3, create=True)).topic
        assert topic is not None
        assert (topic.name, topic.partitions) == ("carts", 3)
        assert [one.name for one in (await admin.list_topics("shop")).topics] == ["carts"]
        options = (await admin.set_group_options("shop", v1.GroupOptions(max_concurrent_handoffs=2))).options
        assert options is not None
        assert options.max_concurrent_handoffs == 2
        await admin.pause("shop")
        await admin.rebalance("shop")
        described = await admin.describe_group("shop")
        assert described.summary is not None
        assert (described.summary.partitions, described.summary.paused) == (3, True)
        await admin.resume("shop")
        assert await admin.delete_topic("shop", "carts") > 0
        assert await admin.delete_group("shop") > 0
        assert "shop" not in {one.group for one in (await admin.list_groups()).groups}


async def test_offsets_are_set_and_read(address: str) -> None:
    async with AdminClient(address) as admin:
        wanted = v1.NewOffsets(topic="orders", partitions=[3], offsets=[41])
        assert (await admin.set_offsets("billing", [wanted])).partitions == 1
        found = await admin.committed("billing", [TopicPartition("orders", 3), TopicPartition("orders", 4)])
        assert {tp: one.offset for tp, one in found.items()} == {TopicPartition("orders", 3): 41}


async def test_what_the_service_refuses_is_raised_by_its_name(address: str) -> None:
    async with AdminClient(address) as admin:
        with pytest.raises(UnknownGroup, match="nowhere"):
            await admin.set_topic("nowhere", "orders", 3)
        with pytest.raises(FailedPrecondition):
            await admin.set_topic("billing", "orders", 1)


async def test_an_address_where_nobody_is_is_passed_over(address: str) -> None:
    async with AdminClient([f"127.0.0.1:{free_port()}", address]) as admin:
        assert "billing" in {one.group for one in (await admin.list_groups()).groups}
        assert "billing" in {one.group for one in (await admin.list_groups()).groups}


async def test_unavailable_is_raised_when_no_instance_answers() -> None:
    nobody = f"127.0.0.1:{free_port()}"
    async with AdminClient(f"{nobody},{nobody}") as admin:
        with pytest.raises(Unavailable, match=f"no instance answers, the last one at {nobody}"):
            await admin.list_groups()


async def test_a_call_has_a_deadline() -> None:
    closed = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        closed.set()

    silent = await asyncio.start_server(never, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    try:
        async with AdminClient(f"127.0.0.1:{port}", timeout=0.05) as admin:
            with pytest.raises(Unavailable, match=r"ListGroups was not answered within 0\.1 s") as raised:
                await admin.list_groups()
            assert isinstance(raised.value.__cause__, TimeoutError)
        await closed.wait()
    finally:
        silent.close()


def test_an_empty_list_of_addresses_is_refused() -> None:
    with pytest.raises(InvalidInput, match="addresses is empty"):
        AdminClient([])


async def test_the_example_of_the_page_runs(address: str) -> None:
    (example,) = [
        text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "AdminClient" in text
    ]
    names: dict[str, object] = {"__name__": "example"}
    printed = io.StringIO()
    exec(compile(example.replace("127.0.0.1:50051", address), str(PAGE), "exec"), names)
    main = names["main"]
    assert callable(main)
    with contextlib.redirect_stdout(printed):
        await main()
    assert "billing: 12 partitions, 12 without an owner" in printed.getvalue()
