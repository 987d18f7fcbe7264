"""Peers that ask for long answers and read none of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from assigner.client import AssignerConsumer, Handler
from tests.attacks import attackers
from tests.attacks.attackers import Load, flood
from tests.attacks.scene import Scene, attacked, scene
from tests.attacks.test_floods import SECONDS, TTL, unharmed

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.parametrize("connections", [10, pytest.param(60, marks=pytest.mark.attack)])
async def test_answers_that_nobody_reads_do_not_pile_up(connections: int, tmp_path: Path) -> None:
    async def attack(service: Scene) -> Load:
        return await flood(service.port, attackers.zero_window("large", 900), connections, SECONDS)

    async with (
        scene(tmp_path, ttl=TTL, topics={"large/topic": 5_000}) as service,
        AssignerConsumer([service.grpc], "large", "owner", [], Handler()) as owner,
    ):
        # A description of 5,000 owned partitions has some 300 KB.
        await asyncio.wait_for(owner.wait_for(lambda one: len(one.partitions) == 5_000), 60)
        outcome = await attacked(service, attack)
    unharmed(outcome, growth=60.0)
