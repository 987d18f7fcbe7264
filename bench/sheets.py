"""What was measured, as tables: the same for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table


@dataclass(frozen=True)
class Sheet:
    title: str
    note: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def terminal(sheet: Sheet) -> Table:
    table = Table(title=sheet.title, caption=sheet.note, title_justify="left", caption_justify="left")
    for number, column in enumerate(sheet.header):
        table.add_column(column, justify="right" if number else "left")
    for row in sheet.rows:
        table.add_row(*row)
    return table


def page(sheet: Sheet) -> str:
    rule = ["---"] + ["---:"] * (len(sheet.header) - 1)
    lines = [sheet.header, rule, *sheet.rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"### {sheet.title}\n\n{sheet.note}\n\n{table}\n"


def write_between(path: Path, benchmark: str, text: str) -> None:
    """Replace what stands between the two marks of a benchmark on a page."""
    begin, end = marks(benchmark)
    before, found_begin, rest = path.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{path} has no {begin} ... {end}; add both lines where the tables belong")
    path.write_text(f"{before}{begin}\n\n{text}\n{end}{after}")


def marks(benchmark: str) -> tuple[str, str]:
    return f"<!-- {benchmark}: begin -->", f"<!-- {benchmark}: end -->"
