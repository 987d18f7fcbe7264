"""Tenants who take what they can get by calls that anybody may make: names without end, groups, partitions, commits."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from assigner.client import AssignerConsumer, Handler, OffsetAndMetadata
from assigner.proto.kafka_assigner import v1
from tests.attacks import attackers
from tests.attacks.attackers import Load, flood
from tests.attacks.scene import Scene, attacked, scene
from tests.attacks.test_floods import SECONDS, TTL, unharmed

pytestmark = [pytest.mark.processes, pytest.mark.slow]


async def is_set(service: Scene, group: str, topic: str = "t", partitions: int = 1) -> bool:
    """Whether a topic of that group could be set."""
    host, _, port = service.grpc.rpartition(":")
    async with Channel(host, int(port)) as channel:
        request = v1.SetTopicRequest(group=group, topic=topic, partitions=partitions)
        try:
            await v1.AdminStub(channel).set_topic(request, timeout=30)
        except GRPCError as error:
            if error.status is not Status.RESOURCE_EXHAUSTED:
                raise
            return False
    return True


async def test_names_without_end_leave_room_for_those_who_mean_it(tmp_path: Path) -> None:
    async def attack(service: Scene) -> Load:
        load = await flood(service.port, attackers.unknown_groups("random-"), 12, SECONDS)
        assert await is_set(service, "honest")
        return load

    async with scene(tmp_path, ttl=TTL) as service:
        outcome = await attacked(service, attack)
    unharmed(outcome)
    assert outcome.refused.get("unknown_group", 0) > 100


async def test_groups_without_end_are_refused_at_the_quota(tmp_path: Path) -> None:
    async def attack(service: Scene) -> Load:
        load = Load()
        limit = asyncio.Semaphore(20)

        async def make(number: int) -> None:
            async with limit:
                load.sent += await is_set(service, f"greedy-{number}")

        with suppress(TimeoutError):
            async with asyncio.timeout(3 * SECONDS):
                await asyncio.gather(*(make(number) for number in range(1_500)))
        return load

    async with scene(tmp_path, ttl=TTL, settings=["quotas.groups=300"]) as service:
        outcome = await attacked(service, attack)
    unharmed(outcome)
    assert outcome.load.sent <= 300
    assert outcome.refused.get("groups", 0) > 0


async def test_partitions_without_end_are_refused_at_the_quota(tmp_path: Path) -> None:
    async def attack(service: Scene) -> Load:
        load = Load()
        for number in range(20):
            load.sent += await is_set(service, f"wide-{number % 2}", f"t{number}", 1_000_000)
            load.sent += await is_set(service, f"wide-{number % 2}", f"t{number}", 20_000)
        return load

    async with scene(tmp_path, ttl=TTL, settings=["quotas.partitions=40000"]) as service:
        outcome = await attacked(service, attack)
    unharmed(outcome)
    assert outcome.load.sent == 4
    assert outcome.refused.get("partitions", 0) == 36


async def test_commits_without_pause_are_slowed_down_and_nobody_else_is(tmp_path: Path) -> None:
    async def attack(service: Scene) -> Load:
        load = Load()

        async def commit(owner: AssignerConsumer) -> None:
            while True:
                far = OffsetAndMetadata(load.sent, metadata="m" * 256)
                with suppress(Exception):
                    # Refused or not: again, at once.
                    await owner.commit(dict.fromkeys(owner.partitions, far))
                load.sent += 1
                await asyncio.sleep(0)

        async with AssignerConsumer([service.grpc], "greedy", "owner", [], Handler()) as owner:
            await asyncio.wait_for(owner.wait_for(lambda one: len(one.partitions) == 100), 60)
            tasks = [asyncio.create_task(commit(owner)) for _ in range(10)]
            await asyncio.sleep(SECONDS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return load

    async with scene(tmp_path, ttl=TTL, topics={"greedy/t": 100}, settings=["quotas.commit_rate=100000"]) as service:
        outcome = await attacked(service, attack)
    unharmed(outcome)
    assert outcome.refused.get("commit_rate", 0) > 0
