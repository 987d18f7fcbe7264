"""Renders a snapshot of the demo for rich, as a pure function."""

from __future__ import annotations

from collections.abc import Sequence

from rich.align import Align
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from assigner.demo.snapshot import Cell, EventLine, Moving, Snapshot, State, Worker
from assigner.demo.traffic import Traffic

WIDTH = 100
COLUMNS = 16
LOG_LINES = 9
MOVING_LINES = 8
_COLOURS = ("dodger_blue2", "dark_orange", "green3", "medium_purple1", "deep_pink2", "gold3")
_NO_OWNER = "grey30"
_BARS = " ▁▂▃▄▅▆▇█"
_STATE_STYLE = {
    State.WAITING: "dim",
    State.READY: "green",
    State.DRAINING: "yellow",
    State.KILLED: "bold red",
    State.GONE: "dim strike",
}
_STEP_STYLE = {"warming": "yellow", "complete": "green", "failed": "red"}


def render(snapshot: Snapshot) -> RenderableType:
    colours = {worker.name: _COLOURS[index % len(_COLOURS)] for index, worker in enumerate(snapshot.workers)}
    traffic = snapshot.traffic
    upper = _side_by_side(
        _panel("partitions by owner", _grid(snapshot.cells, colours)),
        _panel("workers" if traffic is None else "pods", _workers(snapshot.workers, colours)),
    )
    if traffic is None:
        left = _panel(f"handoffs in flight: {len(snapshot.moving)}", _moving(snapshot.moving, colours))
    else:
        left = _panel(f"routers; handoffs in flight: {len(snapshot.moving)}", _routers(traffic))
    lower = _side_by_side(left, _panel("what happened", _log(snapshot.lines)))
    return Group(_headline(snapshot), upper, lower, _legend())


def _headline(snapshot: Snapshot) -> RenderableType:
    facts = Text.assemble(
        (f"{snapshot.at:4.0f} s", "dim"),
        ("   generation ", "dim"),
        (str(snapshot.generation), "bold"),
        ("   moves ", "dim"),
        (str(snapshot.moves), "bold"),
        ("   without owner ", "dim"),
        (str(snapshot.unowned), "bold red" if snapshot.unowned else "bold"),
    )
    title = Text(snapshot.title, "bold white")
    return Panel(Group(title, facts), title="Kafka Assigner", border_style="blue", width=WIDTH)


def _routers(traffic: Traffic) -> RenderableType:
    """The routers, then all requests together, in as many lines as handoffs have."""
    table = Table.grid(padding=(0, 1))
    headings = ("", "req/s", "in flight", "stashed", "frozen")
    for name in headings:
        table.add_column(justify="right" if name else "left")
    table.add_row(*(Text(name, "dim") for name in headings))
    for router in traffic.routers:
        counts = router.counts
        busy = (counts.in_flight, counts.stashed, counts.frozen)
        table.add_row(
            Text(router.name, "cyan" if router.present else "dim strike"),
            Text(f"{router.per_second:.0f}"),
            *(Text(str(number), "yellow" if number and place else "") for place, number in enumerate(busy)),
        )
    rows = 1 + len(traffic.routers)
    lost = traffic.total("lost") + traffic.total("refused")
    totals = Text.assemble(
        ("answered ", "dim"),
        (f"{traffic.total('answered'):,}", "bold"),
        ("   sent again ", "dim"),
        (str(traffic.total("again")), "bold"),
        ("   lost ", "dim"),
        (str(lost), "bold red" if lost else "bold green"),
    )
    height = MOVING_LINES - 3
    return Group(table, *(Text("") for _ in range(height - rows)), totals, Text(""), _sparkline(traffic), Text(""))


def _sparkline(traffic: Traffic) -> Text:
    highest = max(traffic.history, default=0.0) or 1.0
    bars = "".join(_BARS[round(value / highest * (len(_BARS) - 1))] for value in traffic.history)
    return Text.assemble((bars, "cyan"), (f" {traffic.per_second:.0f}/s", "bold"))


def _panel(title: str, body: RenderableType) -> Panel:
    return Panel(body, title=title, title_align="left", border_style="grey50")


def _side_by_side(left: Panel, right: Panel) -> Table:
    table = Table.grid(expand=False)
    table.add_column(width=54)
    table.add_column(width=WIDTH - 54)
    table.add_row(left, right)
    return table


def _grid(cells: Sequence[Cell], colours: dict[str, str]) -> RenderableType:
    drawn = [_cell(number, cell, colours) for number, cell in enumerate(cells)]
    rows = [Text.assemble(*drawn[start : start + COLUMNS]) for start in range(0, len(drawn), COLUMNS)]
    return Align.center(Group(*rows))


def _cell(number: int, cell: Cell, colours: dict[str, str]) -> Text:
    """Render a partition as two digits on the owner's colour and, during a handoff, a mark in the next owner's
    colour."""
    background = colours.get(cell.owner, _NO_OWNER)
    mark = {"warming": "▸", "complete": "✓"}.get(cell.step, "▸" if cell.step else " ")
    ahead = colours.get(cell.next, background)
    return Text.assemble((f"{number:02d}", f"bold white on {background}"), (mark, f"bold {ahead}"))


def _workers(workers: Sequence[Worker], colours: dict[str, str]) -> Table:
    table = Table.grid(padding=(0, 1))
    for worker in workers:
        bar = Text("█" * min(worker.owned, 22), colours[worker.name])
        if worker.warming:
            bar.append("▸" * min(worker.warming, 5), "yellow")
        table.add_row(
            Text(worker.name, colours[worker.name]),
            Text(worker.state.value, _STATE_STYLE[worker.state]),
            Text(f"{worker.owned:2d}"),
            bar,
        )
    return table


def _moving(moving: Sequence[Moving], colours: dict[str, str]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    for one in moving[:MOVING_LINES]:
        table.add_row(
            Text(f"{one.partition:02d}", "bold"),
            Text(one.old or "nobody", colours.get(one.old, "dim")),
            Text("→", "dim"),
            Text(one.new, colours.get(one.new, "")),
            Text(one.step, _STEP_STYLE.get(one.step, "cyan")),
            Text(one.cause, "dim"),
        )
    # The height stays the same, so that the output does not jump.
    return _padded(table, min(len(moving), MOVING_LINES), MOVING_LINES, more=len(moving) - MOVING_LINES)


def _padded(table: Table, rows: int, height: int, more: int = 0) -> Group:
    last = Text(f"and {more} more" if more > 0 else "", "dim")
    body = [table] if rows else []
    return Group(*body, *(Text("") for _ in range(height - rows)), last)


def _log(lines: Sequence[EventLine]) -> RenderableType:
    latest = lines[-LOG_LINES:]
    shown = [
        Text.assemble((f"{line.at:4.0f} ", "dim"), line.text, (f"  {line.cause}" if line.cause else "", "yellow"))
        for line in latest
    ]
    for text in shown:
        text.no_wrap = True
        text.overflow = "ellipsis"
    return Group(*shown, *(Text("") for _ in range(LOG_LINES - len(shown))))


def _legend() -> Text:
    return Text.assemble(
        ("  ▸", "yellow"),
        (" warmed by its next owner   ", "dim"),
        ("✓", "green"),
        (" handed over, old owner releases   ", "dim"),
        ("00", f"white on {_NO_OWNER}"),
        (" nobody's", "dim"),
    )
