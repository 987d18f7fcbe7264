"""Floods of calls whose tokens are false, from the very address of the consumers: they keep their leases."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.attacks import attackers
from tests.attacks.attackers import flood
from tests.attacks.scene import Scene, attacked, scene
from tests.attacks.test_floods import SECONDS, TTL, unharmed
from tests.support.signed_tokens import Signer

pytestmark = [pytest.mark.processes, pytest.mark.slow]

FALSE: dict[str, Callable[[Signer, float], str]] = {
    # The dearest first: its signature is looked at, as far as the address is allowed to have that done.
    "forged": lambda live, now: Signer().token(now, header={"kid": live.kid}),
    "forged_and_long": lambda live, now: Signer().token(now, header={"kid": live.kid}, more="x" * 5_500),
    "expired": lambda live, now: live.token(now - 86_400),
    "of_an_unknown_key": lambda live, now: Signer().token(now),
    "nested": lambda live, now: live.sign(b'{"alg":' + b"[" * 2_500, b"[" * 2_500),
    "of_many_patterns": lambda live, now: Signer().token(now, groups=[f"g{number}" for number in range(600)]),
    "endless": lambda live, now: "A" * 12_000,
}
LIGHT = ("forged",)


@pytest.mark.parametrize(
    "name", [name if name in LIGHT else pytest.param(name, marks=pytest.mark.attack) for name in FALSE]
)
async def test_the_consumers_keep_their_leases_under_a_flood_of_false_tokens(name: str, tmp_path: Path) -> None:
    signer, now = Signer(), time.time()
    settings = (f"auth.keys={signer.publish(tmp_path / 'key.pem')}", "auth.required=true")
    allowed: dict[str, Any] = {"groups": ["*"], "names": ["*"]}
    async with scene(tmp_path, ttl=TTL, settings=settings) as service:
        attack = partial(_flood, token=FALSE[name](signer, now))
        outcome = await attacked(service, attack, token=signer.token(now, **allowed))
    unharmed(outcome)
    assert outcome.refused["unauthenticated"] > 1_000


async def _flood(service: Scene, token: str) -> attackers.Load:
    return await flood(service.port, attackers.renewals_with(token), 10, SECONDS)
