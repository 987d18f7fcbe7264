"""Renders the routers of the demo and their requests: a table, sums, and the last seconds as bars."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from assigner.demo.traffic import RouterLine, Traffic

_HEADINGS = ("", "req/s", "in flight", "stashed", "retrying")
_BARS = " ▁▂▃▄▅▆▇█"
_LABEL = 10
_LEAST_WAITING = 8
"""Requests that a full bar stands for at least, so that few do not look like many."""


def traffic_lines(traffic: Traffic, height: int, width: int) -> RenderableType:
    """Render the requests of all routers into so many lines."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for name in _HEADINGS:
        table.add_column(justify="right" if name else "left")
    table.add_row(*(Text(name, "dim") for name in _HEADINGS))
    for router in traffic.routers:
        table.add_row(*_router(router))
    everything = [
        f"{traffic.per_second:.0f}",
        *(str(traffic.total(name)) for name in ("in_flight", "stashed", "retrying")),
    ]
    table.add_row(Text("all", "bold"), *(Text(number, "bold") for number in everything))
    lost = traffic.total("lost") + traffic.total("refused")
    sums = [
        _sums(("answered", f"{traffic.total('answered'):,}", ""), ("lost", f"{lost:,}", "red" if lost else "green")),
        _sums(("were stashed", f"{traffic.total('held'):,}", ""), ("retries", f"{traffic.total('retries'):,}", "")),
    ]
    room = width - _LABEL
    bars = [
        _bars("req/s", traffic.history[-room:], 1.0, "cyan"),
        _bars("waiting", traffic.waiting[-room:], _LEAST_WAITING, "yellow"),
    ]
    blank = height - len(traffic.routers) - 2 - len(sums) - len(bars)
    return Group(table, *[Text("")] * blank, *sums, *bars)


def _router(router: RouterLine) -> list[Text]:
    counts = router.counts
    waiting = [Text(str(number), "yellow" if number else "") for number in (counts.stashed, counts.retrying)]
    name = Text(router.name, "cyan" if router.present else "dim strike")
    return [name, Text(f"{router.per_second:.0f}"), Text(str(counts.in_flight)), *waiting]


def _sums(*named: tuple[str, str, str]) -> Text:
    return Text("   ").join(Text.assemble((f"{name} ", "dim"), (text, f"bold {style}")) for name, text, style in named)


def _bars(label: str, numbers: Sequence[float], least: float, style: str) -> Text:
    highest = max([least, *numbers])
    bars = "".join(_BARS[ceil(number / highest * (len(_BARS) - 1))] for number in numbers)
    return Text.assemble((f"{label:<{_LABEL}}", "dim"), (bars, style))
