"""The tables of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from bench.sheets import Sheet
from bench.strategies.cells import Row
from bench.strategies.contestants import GLOBAL, STICKY, UNIFORM
from bench.strategies.grid import Operation
from bench.strategies.memory import MOST_MB, Peak

Cells = dict[str, dict[str, dict[str, Row]]]
"""By group, operation and contestant."""


# --- the grid --------------------------------------------------------------------------------------------------------


def grid_sheets(rows: Sequence[Row]) -> list[Sheet]:
    cells = _by_cell(rows)
    operations = [operation.value for operation in Operation if any(operation.value in ops for ops in cells.values())]
    changes = [name for name in operations if name != Operation.FULL.value]
    sheets = [
        _sheet("Time, even both ways", _TIME, cells, operations, lambda found: _time(found, STICKY)),
        _sheet("Time, even over all only", _TIME, cells, operations, lambda found: _time(found, GLOBAL)),
    ]
    if changes:
        sheets.append(_sheet("Moves", _MOVES, cells, changes, _moves))
    return [*sheets, _balance(cells), _contest(cells)]


_TIME = "Milliseconds; in brackets how many times as long as Kafka's uniform assignor on the same input."
_MOVES = (
    "Even both ways / even over all only / Kafka's uniform assignor. Behind a plus: how many more than the bound for "
    "that kind of balance, with a ~ where the bound may be too low (large groups with overlapping subscriptions or "
    "racks); nothing where there are more than 1,000,000 members x topics. Behind a minus: fewer, because the result "
    "was less even than that or farther from its replicas."
)


def _by_cell(rows: Iterable[Row]) -> Cells:
    cells: Cells = {}
    for row in rows:
        cells.setdefault(row.group, {}).setdefault(row.operation, {})[row.contestant] = row
    return cells


def _sheet(
    title: str, note: str, cells: Cells, operations: Sequence[str], show: Callable[[dict[str, Row]], str]
) -> Sheet:
    rows = [[name, *(show(ops[one]) if one in ops else "" for one in operations)] for name, ops in cells.items()]
    return Sheet(title, note, ["group", *operations], rows)


def _time(found: dict[str, Row], contestant: str) -> str:
    mine, kafka = found.get(contestant), found.get(UNIFORM)
    if mine is None or mine.ms is None:
        return "-"
    beside = f" ({_short(mine.ms / kafka.ms)}x)" if kafka is not None and kafka.ms else ""
    return f"{_short(mine.ms)}{beside}"


def _moves(found: dict[str, Row]) -> str:
    return " / ".join(_moved(found.get(name)) for name in (STICKY, GLOBAL, UNIFORM))


def _moved(row: Row | None) -> str:
    if row is None or row.moves is None:
        return "-"
    if row.gap is None:
        return f"{row.moves:,}"
    return f"{row.moves:,}{row.gap:+,}{'~' if row.bound_is_loose and row.gap > 0 else ''}"


def _balance(cells: Cells) -> Sheet:
    """The worst over the operations, for whoever starts from the same ownership."""
    note = (
        "The worst over all operations: most minus fewest partitions among members that could even it out / the same "
        "within one topic. With racks also: partitions read from another rack than the owner's, of which some must be."
    )
    names = [name for name in _names(cells) if name in (STICKY, GLOBAL) or name.startswith("Kafka")]
    rows = []
    for name, ops in cells.items():
        must = max((row.fewest_mismatches or 0 for found in ops.values() for row in found.values()), default=0)
        racks = any(row.racks for found in ops.values() for row in found.values())
        shown = [_worst([found[one] for found in ops.values() if one in found]) for one in names]
        rows.append([name, *shown, f"{must:,}" if racks else ""])
    return Sheet("Balance", note, ["group", *names, "must mismatch"], rows)


def _worst(rows: Sequence[Row]) -> str:
    ran = [row for row in rows if row.ms is not None]
    if not ran:
        return "-"
    text = f"{max(row.imbalance or 0 for row in ran):,} / {max(row.worst_topic or 0 for row in ran):,}"
    mismatches = [row.mismatches for row in ran if row.mismatches is not None]
    return f"{text}, {max(mismatches):,} far" if mismatches else text


def _contest(cells: Cells) -> Sheet:
    """Everybody, over the cells that everybody ran."""
    names = _names(cells)
    common = [
        found
        for ops in cells.values()
        for found in ops.values()
        if all(name in found and found[name].ms is not None for name in names)
    ]
    note = (
        f"Over the {len(common)} cells that all of them ran. Stateless strategies, range and the models start from "
        "what they made of the group before, the others from the same balanced ownership."
    )
    rows = [[name, *_sum([found[name] for found in common])] for name in names] if common else []
    return Sheet("All contestants", note, ["contestant", "median ms", "moves", "imbalance", "worst topic", "far"], rows)


def _sum(rows: Sequence[Row]) -> list[str]:
    return [
        _short(median(row.ms or 0.0 for row in rows)),
        f"{sum(row.moves or 0 for row in rows):,}",
        f"{max(row.imbalance or 0 for row in rows):,}",
        f"{max(row.worst_topic or 0 for row in rows):,}",
        f"{sum(row.mismatches or 0 for row in rows):,}",
    ]


def _names(cells: Cells) -> list[str]:
    return list(dict.fromkeys(name for ops in cells.values() for found in ops.values() for name in found))


def cells_sheet(rows: Sequence[Row]) -> Sheet:
    """Everything, a line for each contestant in each cell."""
    header = ["group", "operation", "contestant", "ms", "moves", "bound", "imbalance", "worst topic", "far"]
    lines = []
    for row in rows:
        figures = (row.moves, row.bound, row.imbalance, row.worst_topic, row.mismatches)
        shown = [_short(row.ms), *("" if one is None else f"{one:,}" for one in figures)]
        if row.ms is None:
            shown = [f"not run: {row.not_run}", *[""] * len(figures)]
        lines.append([row.group, row.operation, row.contestant, *shown])
    return Sheet("All cells", "", header, lines)


def _short(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def memory_sheet(found: Sequence[Peak]) -> Sheet:
    header = ["group", "operation", "balance", "imports MB", "peak MB", f"within {MOST_MB} MB", "seconds"]
    rows = [
        [
            one.group,
            one.operation,
            one.balance,
            *(f"{one.imports_mb:.0f}", one.failure or f"{one.peak_mb:.0f}", "yes" if one.fits else "NO"),
            f"{one.seconds:.2f}",
        ]
        for one in found
    ]
    note = "Resident at most in a fresh process that plans once, imports and the problem itself included."
    return Sheet("Memory", note, header, rows)
