"""Floods over a few connections: the consumers keep their leases, and the service its memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.attacks import attackers
from tests.attacks.attackers import Flood, flood
from tests.attacks.scene import Outcome, Scene, attacked, scene

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SECONDS, TTL = 8.0, 9.0
"""A gate shuts after two thirds of the TTL without a renewal, so an attack of this length takes it if it can."""

FLOODS: dict[str, tuple[Flood, int]] = {
    "header_bomb": (attackers.header_bomb(14), 4),
    "header_bomb_within_the_limit": (attackers.header_bomb(3), 4),
    "renewals": (attackers.renewals(), 20),
    "unknown_frames": (attackers.unknown_frames, 40),
    "settings_acks": (attackers.settings_acks, 20),
    "settings": (attackers.settings_frames, 20),
    "window_updates": (attackers.window_updates, 20),
    "pings": (attackers.pings, 20),
    "empty_data": (attackers.empty_data, 20),
    "rapid_reset": (attackers.rapid_reset, 4),
}
LIGHT = ("header_bomb", "renewals", "unknown_frames", "rapid_reset")


@pytest.mark.parametrize(
    "name", [name if name in LIGHT else pytest.param(name, marks=pytest.mark.attack) for name in FLOODS]
)
async def test_the_consumers_keep_their_leases_under_a_flood(name: str, tmp_path: Path) -> None:
    pieces, connections = FLOODS[name]
    async with scene(tmp_path, ttl=TTL) as service:
        outcome = await attacked(service, partial(_flood, pieces=pieces, connections=connections))
    unharmed(outcome)


async def _flood(service: Scene, pieces: Flood, connections: int) -> attackers.Load:
    return await flood(service.port, pieces, connections, SECONDS)


def unharmed(outcome: Outcome, *, growth: float = 100.0) -> None:
    """Nobody lost anything, and what the attack took is bounded (MiB)."""
    assert outcome.seen.looks > 20
    assert outcome.seen.shut == 0, outcome.seen
    assert outcome.seen.renewals_failed == 0, outcome.seen
    assert outcome.seen.livez_failed == 0, outcome.seen
    assert outcome.rss_growth() < growth, (outcome.rss_before, outcome.rss_highest)
    assert not [line for line in outcome.lines if "Traceback" in line]
