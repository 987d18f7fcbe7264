"""Which brokers there are and which of them answer: known soon after it changes, and never more than that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from assigner.errors import InvalidInput, SourceUnavailable
from assigner.gateway.server import parse_servers
from assigner.gateway.upstream.brokers import Brokers
from assigner.gateway.upstream.security import BrokerSecurityFile
from assigner.gateway.upstream.topics import list_topics
from assigner.testing.waiting import eventually
from tests.support.gateway.small_broker import SmallBroker
from tests.support.servers.ports import free_port

SECONDS = 30.0


@asynccontextmanager
async def looking(*ports: int, **more: Any) -> AsyncIterator[Brokers]:
    timings = {"connect_timeout": 5.0, "answer_timeout": 5.0, "interval": 0.05, **more}
    brokers = Brokers([("127.0.0.1", port) for port in ports], BrokerSecurityFile({}, None), **timings)
    async with brokers.running():
        yield brokers


def up(brokers: Brokers) -> set[int]:
    return {broker.node_id for broker in brokers.up}


async def test_all_brokers_of_the_cluster_are_found_by_any_of_them() -> None:
    async with SmallBroker(1).running() as one, SmallBroker(2).running() as two:
        one.listed = two.listed = {1: ("127.0.0.1", one.port), 2: ("127.0.0.1", two.port)}
        async with looking(free_port(), two.port) as brokers:
            await eventually(lambda: up(brokers) == {1, 2}, within=SECONDS)
            # The one that nobody answers at was tried too.
            assert brokers.failures >= 1


async def test_a_broker_that_ends_is_away_and_comes_up_again() -> None:
    async with SmallBroker(1).running() as one, looking(one.port) as brokers:
        await eventually(lambda: up(brokers) == {1}, within=SECONDS)
        await one.stop()
        await eventually(lambda: up(brokers) == set(), within=SECONDS)
        with pytest.raises(SourceUnavailable, match="no Kafka broker"):
            await list_topics(brokers)
        await one.start()
        await eventually(lambda: up(brokers) == {1}, within=SECONDS)


async def test_a_broker_that_only_hangs_up_stays_up() -> None:
    async with SmallBroker(1).running() as one, looking(one.port) as brokers:
        await eventually(lambda: up(brokers) == {1}, within=SECONDS)
        seen: list[bool] = []
        before = len(one.asked)
        # Long enough after it was connected for the connection to count as steady.
        await eventually(lambda: len(one.asked) > before + 15, within=SECONDS)
        connection = next(iter(brokers)).connection
        one.hang_up()

        def is_replaced() -> bool:
            seen.append(up(brokers) == {1})
            found = next(iter(brokers)).connection
            return found is not None and found is not connection

        await eventually(is_replaced, within=SECONDS)
        assert all(seen)


async def test_a_broker_that_is_silent_is_away() -> None:
    async with SmallBroker(1).running() as one, looking(one.port, connect_timeout=0.2) as brokers:
        await eventually(lambda: up(brokers) == {1}, within=SECONDS)
        one.is_silent = True
        await eventually(lambda: up(brokers) == set(), within=SECONDS)
        one.is_silent = False
        await eventually(lambda: up(brokers) == {1}, within=SECONDS)


async def test_a_broker_that_moved_is_followed_and_one_that_left_is_forgotten() -> None:
    async with SmallBroker(1).running() as one, SmallBroker(2).running() as two, SmallBroker(2).running() as moved:
        one.listed = two.listed = {1: ("127.0.0.1", one.port), 2: ("127.0.0.1", two.port)}
        async with looking(one.port) as brokers:
            await eventually(lambda: up(brokers) == {1, 2}, within=SECONDS)
            one.listed = two.listed = moved.listed = {1: ("127.0.0.1", one.port), 2: ("127.0.0.1", moved.port)}
            await eventually(lambda: len(moved.asked) > 2, within=SECONDS)
            one.listed = moved.listed = {1: ("127.0.0.1", one.port)}
            await moved.stop()
            await eventually(lambda: brokers.get(2) is None, within=SECONDS)
            assert up(brokers) == {1}


async def test_a_broker_that_knows_only_old_versions_is_asked_in_those() -> None:
    async with SmallBroker(1).running() as one:
        one.newest_api_versions = 2
        one.ranges = {3: (0, 5)}
        one.topics = {"a": 3, "b": 1}
        async with looking(one.port) as brokers:
            await eventually(lambda: up(brokers) == {1}, within=SECONDS)
            found = await list_topics(brokers)
            assert [(topic.name, topic.partitions, topic.topic_id) for topic in found] == [
                ("a", 3, None),
                ("b", 1, None),
            ]
            assert {version for api, version in one.asked if api == 3} == {5}


async def test_a_broker_without_a_version_that_is_known_here_is_not_up() -> None:
    async with SmallBroker(1).running() as one:
        one.ranges = {3: (90, 99)}
        async with looking(one.port) as brokers:
            await eventually(lambda: brokers.failures > 2, within=SECONDS)
            assert not up(brokers)


async def test_what_all_brokers_have_in_common_follows_who_is_up() -> None:
    async with SmallBroker(1).running() as one, SmallBroker(2).running() as two:
        one.listed = two.listed = {1: ("127.0.0.1", one.port), 2: ("127.0.0.1", two.port)}
        one.ranges, two.ranges = {3: (0, 12), 0: (3, 9), 1: (0, 4)}, {3: (1, 13), 0: (10, 12)}
        async with looking(one.port) as brokers:
            assert brokers.common_apis() is None
            await eventually(lambda: up(brokers) == {1, 2}, within=SECONDS)
            common = brokers.common_apis()
            assert common is not None
            assert common.ranges == {3: (1, 12)}
            assert brokers.common_apis() is common
            await two.stop()
            await eventually(lambda: up(brokers) == {1}, within=SECONDS)
            found = brokers.common_apis()
            assert found is not None
            assert found.ranges == one.ranges


async def test_a_group_keeps_its_coordinator_for_as_long_as_that_is_up() -> None:
    async with SmallBroker(1).running() as one, SmallBroker(2).running() as two:
        one.listed = two.listed = {1: ("127.0.0.1", one.port), 2: ("127.0.0.1", two.port)}
        async with looking(one.port) as brokers:
            assert brokers.coordinator_of("g") is None
            await eventually(lambda: up(brokers) == {1, 2}, within=SECONDS)
            groups = [f"group-{n}" for n in range(100)]
            before = {group: brokers.coordinator_of(group) for group in groups}
            assert {broker.node_id for broker in before.values() if broker} == {1, 2}
            await two.stop()
            await eventually(lambda: up(brokers) == {1}, within=SECONDS)
            assert {broker.node_id for group in groups if (broker := brokers.coordinator_of(group))} == {1}
            await two.start()
            await eventually(lambda: up(brokers) == {1, 2}, within=SECONDS)
            after = {group: brokers.coordinator_of(group) for group in groups}
            assert {group: broker.node_id for group, broker in after.items() if broker} == {
                group: broker.node_id for group, broker in before.items() if broker
            }


@pytest.mark.parametrize(
    ("servers", "found"),
    [
        ("a:1", [("a", 1)]),
        (" a:1 , b:2,", [("a", 1), ("b", 2)]),
        ("a", [("a", 9092)]),
        ("SASL_SSL://a:1", [("a", 1)]),
        ("[::1]:9", [("::1", 9)]),
    ],
)
def test_bootstrap_servers_are_written_as_kafka_s_clients_take_them(servers: str, found: list[tuple[str, int]]) -> None:
    assert parse_servers(servers) == found


@pytest.mark.parametrize("servers", ["a:b", ":1", "a:0", "a:70000", "a:-1"])
def test_a_bootstrap_server_that_is_none_says_so(servers: str) -> None:
    with pytest.raises(InvalidInput, match="host:port"):
        parse_servers(servers)
