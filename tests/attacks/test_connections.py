"""Connections in their thousands that say nothing, little, or leave at once: they cost next to nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.attacks import attackers
from tests.attacks.attackers import Load, flood
from tests.attacks.scene import Scene, attacked, scene
from tests.attacks.test_floods import TTL, unharmed

pytestmark = [pytest.mark.processes, pytest.mark.slow]


async def _silent(service: Scene, connections: int, rounds: int = 1) -> Load:
    load = Load()
    for _ in range(rounds):
        load = await attackers.silent(service.port, connections, seconds=3.0)
    return load


@pytest.mark.parametrize(("connections", "rounds"), [(600, 1), pytest.param(1_500, 3, marks=pytest.mark.attack)])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_connections_that_say_nothing_cost_next_to_nothing(
    tls: bool, connections: int, rounds: int, tmp_path: Path
) -> None:
    async with scene(tmp_path, ttl=TTL, tls=tls) as service:
        outcome = await attacked(service, partial(_silent, connections=connections, rounds=rounds))
    assert outcome.load.connected == connections
    unharmed(outcome, growth=20.0)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_connections_beyond_the_bound_are_not_kept_even_if_they_say_nothing(tls: bool, tmp_path: Path) -> None:
    async def attack(service: Scene) -> Load:
        load = await attackers.silent(service.port, 300, seconds=0.5)
        assert service.files() < 150
        return load

    async with scene(tmp_path, ttl=TTL, tls=tls, settings=["grpc.max_connections=50"]) as service:
        outcome = await attacked(service, attack)
    unharmed(outcome, growth=20.0)


@pytest.mark.parametrize("connections", [2_000, pytest.param(30_000, marks=pytest.mark.attack)])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_connecting_and_closing_leaves_nothing_behind(tls: bool, connections: int, tmp_path: Path) -> None:
    async with scene(tmp_path, ttl=TTL, tls=tls) as service:
        outcome = await attacked(service, lambda service: attackers.knocking(service.port, connections))
    unharmed(outcome, growth=20.0)


@pytest.mark.parametrize("connections", [400, pytest.param(2_000, marks=pytest.mark.attack)])
async def test_handshakes_that_stop_in_the_middle_are_bounded(connections: int, tmp_path: Path) -> None:
    async with scene(tmp_path, ttl=TTL, tls=True) as service:
        outcome = await attacked(
            service, lambda service: attackers.handshakes_begun(service.port, connections, seconds=8.0)
        )
    # 256 at a time, each with its buffers, and those that were given up until they are collected.
    unharmed(outcome, growth=60.0 if connections < 1_000 else 220.0)


@pytest.mark.attack
async def test_more_connections_than_there_may_be_with_a_stream_each(tmp_path: Path) -> None:
    async with scene(tmp_path, ttl=TTL) as service:
        outcome = await attacked(service, lambda service: flood(service.port, attackers.watching, 10_050, seconds=30.0))
    unharmed(outcome, growth=700.0)


async def test_running_out_of_files_fails_no_probe_and_floods_no_log(tmp_path: Path) -> None:
    async def attack(service: Scene) -> Load:
        return await attackers.silent(service.port, 700, seconds=5.0)

    async with scene(tmp_path, ttl=TTL, files=512) as service:
        lowered = [line for line in service.lines if "grpc_max_connections_lowered" in line]
        outcome = await attacked(service, attack)
    assert len(lowered) == 1
    assert "512" in lowered[0]
    unharmed(outcome, growth=20.0)
    assert len([line for line in outcome.lines if '"level": "error"' in line]) <= 1
