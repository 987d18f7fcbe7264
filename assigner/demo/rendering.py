"""Renders a snapshot of the demo for rich, as a pure function of it and of the layout.

Every layout has `HEIGHT` lines, whatever happens, so that the picture does not jump. The narrow one fits into a
terminal of 80 columns and 24 lines. Without colours a partition shows the last character of its owner's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from rich.align import Align
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from assigner.demo.snapshot import Cell, EventLine, Moving, Snapshot, State, Worker
from assigner.demo.traffic_rendering import traffic_lines

HEIGHT = 23
COLUMNS = 16
ROWS = 9
"""Lines of the lower panels."""
_COLOURS = ("dodger_blue2", "dark_orange", "green3", "medium_purple1", "deep_pink2", "gold3")
_NO_OWNER = "grey30"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_STATE_STYLE = {
    State.NOT_YET: "dim",
    State.STARTING: "dim",
    State.READY: "green",
    State.DRAINING: "yellow",
    State.KILLED: "bold red",
    State.GONE: "dim strike",
}
_STEP_STYLE = {"warming": "yellow", "complete": "green", "failed": "red"}
_WARMING, _FROZEN, _FLIPPED = "»", "‖", "✓"


class Layout(msgspec.Struct, frozen=True):
    """Where the parts of the picture go, in columns."""

    width: int
    grid: int
    """Of the panel of partitions; that of workers has the rest."""
    left: int
    """Of the lower panel on the left; the log has the rest."""
    padding: int
    bar: int
    """Of the longest bar of a worker."""
    coloured: bool = True


WIDE = Layout(width=100, grid=54, left=50, padding=1, bar=20)
NARROW = Layout(width=80, grid=51, left=45, padding=0, bar=5)


def layout_for(console: Console) -> Layout:
    """Choose the layout that fits the console. One that is smaller than the narrow layout gets that one."""
    coloured = console.color_system is not None and not console.no_color
    return msgspec.structs.replace(WIDE if console.width >= WIDE.width else NARROW, coloured=coloured)


def render(snapshot: Snapshot, layout: Layout = WIDE) -> RenderableType:
    colours = {worker.name: _COLOURS[index % len(_COLOURS)] for index, worker in enumerate(snapshot.workers)}
    traffic = snapshot.traffic
    people = "workers" if traffic is None else "pods"
    upper = _side_by_side(
        layout,
        layout.grid,
        _panel(
            f"partitions, by {'owner' if traffic is None else 'pod'}", _grid(snapshot.cells, colours, layout), layout
        ),
        _panel(people, _workers(snapshot.workers, colours, layout), layout),
    )
    moving = len(snapshot.moving)
    if traffic is None:
        left = _panel(f"handoffs in flight: {moving}", _moving(snapshot.moving, colours), layout)
    else:
        lines = traffic_lines(traffic, ROWS, layout.left - 2 - 2 * layout.padding)
        left = _panel(f"routers; handoffs: {moving}, frozen: {snapshot.frozen}", lines, layout)
    lower = _side_by_side(layout, layout.left, left, _panel("what happened", _log(snapshot.lines), layout))
    legend = _legend(snapshot, layout)
    return Group(_headline(snapshot, layout), upper, lower, *legend)


def _headline(snapshot: Snapshot, layout: Layout) -> RenderableType:
    facts = Text.assemble(
        (f"{snapshot.at:4.0f} s", "dim"),
        ("   generation ", "dim"),
        (str(snapshot.generation), "bold"),
        ("   moves ", "dim"),
        (str(snapshot.moves), "bold"),
        ("   without owner ", "dim"),
        (str(snapshot.unowned), "bold red" if snapshot.unowned else "bold"),
    )
    title = _one_line(Text(snapshot.title, "bold white"))
    return Panel(Group(title, facts), title="Kafka Assigner", border_style="blue", width=layout.width)


def _panel(title: str, body: RenderableType, layout: Layout) -> Panel:
    return Panel(body, title=title, title_align="left", border_style="grey50", padding=(0, layout.padding))


def _side_by_side(layout: Layout, width: int, left: Panel, right: Panel) -> Table:
    table = Table.grid(expand=False)
    table.add_column(width=width)
    table.add_column(width=layout.width - width)
    table.add_row(left, right)
    return table


def _one_line(text: Text) -> Text:
    text.no_wrap = True
    text.overflow = "ellipsis"
    return text


# --- partitions and their owners -----------------------------------------------------------------------------------


def _grid(cells: Sequence[Cell], colours: Mapping[str, str], layout: Layout) -> RenderableType:
    if layout.coloured:
        drawn = [_cell(f"{number:02d}", cell, colours) for number, cell in enumerate(cells)]
    else:
        drawn = [_cell(f"{cell.owner[-1:] or '-':>2}", cell, colours) for cell in cells]
    rows = [Text.assemble(*drawn[start : start + COLUMNS]) for start in range(0, len(drawn), COLUMNS)]
    return Align.center(Group(*rows))


def _cell(text: str, cell: Cell, colours: Mapping[str, str]) -> Text:
    """Render a partition on its owner's colour, and during a handoff a mark in the next owner's colour."""
    background = colours.get(cell.owner, _NO_OWNER)
    style = f"bold {background} on white" if cell.frozen else f"bold white on {background}"
    return Text.assemble((text, style), (_mark(cell), f"bold {colours.get(cell.next, background)}"))


def _mark(cell: Cell) -> str:
    if cell.frozen:
        return _FROZEN
    if cell.step == "complete":
        return _FLIPPED
    return _WARMING if cell.step else " "


def _workers(workers: Sequence[Worker], colours: Mapping[str, str], layout: Layout) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column()
    table.add_column(min_width=8)
    # The longest bar is at least half of all partitions, so that bars do not jump when a worker leaves.
    longest = max([1, sum(worker.owned for worker in workers) // 2, *(worker.owned for worker in workers)])
    for worker in workers:
        bar = Text(_bar(worker.owned / longest * layout.bar), colours[worker.name])
        bar.append(_WARMING * min(worker.warming, layout.bar - len(bar)), "yellow")
        table.add_row(
            Text(worker.name, colours[worker.name]),
            Text(worker.state.value, _STATE_STYLE[worker.state]),
            Text(f"{worker.owned:2d}"),
            bar,
        )
    return table


def _bar(length: float) -> str:
    whole, rest = divmod(round(length * 8), 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def _moving(moving: Sequence[Moving], colours: Mapping[str, str]) -> RenderableType:
    table = Table.grid(padding=(0, 1, 0, 0))
    shown = moving[: ROWS - 1]
    for one in shown:
        table.add_row(
            Text(f"{one.partition:02d}", "bold"),
            Text(one.old or "nobody", colours.get(one.old, "dim")),
            Text("→", "dim"),
            Text(one.new, colours.get(one.new, "")),
            Text(one.step, _STEP_STYLE.get(one.step, "cyan")),
            _one_line(Text(one.cause, "dim")),
        )
    more = len(moving) - len(shown)
    blank = [Text("")] * (ROWS - 1 - len(shown))
    return Group(*([table] if shown else []), *blank, Text(f"and {more} more" if more else "", "dim"))


# --- the log, and what the signs mean --------------------------------------------------------------------------------


def _log(lines: Sequence[EventLine]) -> RenderableType:
    latest = lines[-ROWS:]
    shown = [
        _one_line(
            Text.assemble(
                (f"{line.at:3.0f} ", "dim"),
                line.text,
                (f" {line.cause}" if line.cause else "", "yellow"),
                (f" {line.partitions}" if line.partitions else "", "dim"),
            )
        )
        for line in latest
    ]
    return Group(*shown, *[Text("")] * (ROWS - len(shown)))


def _legend(snapshot: Snapshot, layout: Layout) -> tuple[Text, Text]:
    """Explain the signs, in two lines."""
    owner = "owner" if snapshot.traffic is None else "pod"
    partition, nobody = ("00", "00") if layout.coloured else ("1", "-")
    by = f"coloured like its {owner}" if layout.coloured else f"its {owner}'s number"
    first: list[tuple[str, str]] = [
        *((" ", ""), (partition, f"bold white on {_COLOURS[0]}"), (f" partition: {by}   ", "dim")),
        *((nobody, f"bold white on {_NO_OWNER}"), (" nobody's", "dim")),
    ]
    first += [(f"   {_WARMING}", "yellow"), (f" next {owner} gets ready", "dim")]
    if snapshot.traffic is None:
        second = [(f" {_FLIPPED}", "green"), (f" moved, and the old {owner} finishes its work", "dim")]
    else:
        second = [(f" {_FROZEN}", "bold"), (" frozen: routers stash its requests until it has moved", "dim")]
    return _legend_line(first), _legend_line(second)


def _legend_line(parts: Sequence[tuple[str, str]]) -> Text:
    return _one_line(Text.assemble(*parts))
