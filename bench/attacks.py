"""`python -m bench.attacks [--quick] [ATTACK ...]`: what hostile peers cost the consumers that do their work.

For each attack a service of its own (`assigner serve`, store in memory, TTL 30 s), twenty consumers on 200 partitions
in another process, and a consumer that renews every 0.25 s; `/livez` is asked as often. Attackers that are cut off
come back at once. A gate counts as shut if it was at any of ten looks a second. RSS: before, at its highest, and some
seconds after the attackers left.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from tests.attacks import attackers
from tests.attacks.attackers import Flood, Load, flood
from tests.attacks.scene import MIB, Attack, Outcome, Scene, attacked, scene


class Case(msgspec.Struct, frozen=True):
    connections: int
    attack: Attack
    tls: bool = False


async def _flooded(service: Scene, pieces: Flood, connections: int, seconds: float) -> Load:
    return await flood(service.port, pieces, connections, seconds)


async def _silent(service: Scene, connections: int, seconds: float) -> Load:
    load = Load()
    for _ in range(3):
        load = await attackers.silent(service.port, connections, seconds / 3)
    return load


async def _nothing(_service: Scene, seconds: float) -> Load:
    await asyncio.sleep(seconds)
    return Load()


def cases(seconds: float) -> dict[str, Case]:
    def floods(connections: int, pieces: Flood) -> Case:
        return Case(connections, partial(_flooded, pieces=pieces, connections=connections, seconds=seconds))

    def silent(*, tls: bool) -> Case:
        return Case(3_000, partial(_silent, connections=3_000, seconds=seconds), tls=tls)

    def knocking(*, tls: bool) -> Case:
        return Case(50, lambda service: attackers.knocking(service.port, 30_000), tls=tls)

    return {
        "none": Case(0, partial(_nothing, seconds=seconds)),
        "header bomb": floods(4, attackers.header_bomb(14)),
        "header bomb within the limit": floods(4, attackers.header_bomb(3)),
        "Renew, 1,000 at a time": floods(20, attackers.renewals()),
        "unknown frames, 20": floods(20, attackers.unknown_frames),
        "unknown frames, 200": floods(200, attackers.unknown_frames),
        "SETTINGS ACK": floods(20, attackers.settings_acks),
        "empty DATA": floods(20, attackers.empty_data),
        "WINDOW_UPDATE": floods(20, attackers.window_updates),
        "PING": floods(20, attackers.pings),
        "rapid reset": floods(4, attackers.rapid_reset),
        "zero window": floods(1, attackers.zero_window("victims", 900)),
        "unknown groups": floods(12, attackers.unknown_groups("nowhere-")),
        "a stream of health each": floods(10_050, attackers.watching),
        "silent": silent(tls=False),
        "silent, TLS": silent(tls=True),
        "connect and close, TLS": knocking(tls=True),
        "handshakes begun": Case(
            2_000, lambda service: attackers.handshakes_begun(service.port, 2_000, seconds), tls=True
        ),
    }


async def _measure(case: Case, ttl: float) -> Outcome:
    with tempfile.TemporaryDirectory() as directory:
        async with scene(Path(directory), ttl=ttl, tls=case.tls) as service:
            return await attacked(service, case.attack, settle=8.0)


def _row(name: str, case: Case, outcome: Outcome) -> tuple[str, ...]:
    seen = outcome.seen
    refused = ", ".join(f"{reason} {count:,}" for reason, count in sorted(outcome.refused.items()) if count)
    return (
        name,
        f"{case.connections:,}",
        f"{outcome.load.sent / MIB:.1f} MiB",
        f"{1000 * seen.renew_median:.0f} ms / {seen.renew_slowest:.2f} s",
        f"{seen.livez_slowest:.2f} s",
        f"{seen.shut} of {seen.consumers}",
        f"{outcome.rss_before:.0f} / {outcome.rss_highest:.0f} / {outcome.rss_after:.0f}",
        f"{os.getloadavg()[0]:.0f}",
        refused,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Attack a service, and ask its consumers what it was like.")
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help="begin of an attack's name; default: all")
    parser.add_argument("--quick", action="store_true", help="8 s each and a TTL of 9 s, instead of 35 s and 30 s")
    chosen = parser.parse_args()
    seconds, ttl = (8.0, 9.0) if chosen.quick else (35.0, 30.0)
    known = cases(seconds)
    names = [name for name in known if not chosen.attacks or name.startswith(tuple(chosen.attacks))]
    if not names:
        parser.error(f"no attack of that name; there are: {', '.join(known)}")
    table = Table(title=f"{seconds:.0f} s each, TTL {ttl:.0f} s")
    for column in (
        "attack",
        "connections",
        "sent",
        "Renew p50 / max",
        "/livez slowest",
        "gates shut",
        "RSS MiB before / highest / after",
        "load",
        "refused",
    ):
        table.add_column(column)
    shut = 0
    console = Console(width=200)
    for name in names:
        outcome = asyncio.run(_measure(known[name], ttl))
        row = _row(name, known[name], outcome)
        shut += outcome.seen.shut
        console.print(" | ".join(row))
        table.add_row(*row)
    console.print(table)
    return 1 if shut else 0


if __name__ == "__main__":
    raise SystemExit(main())
