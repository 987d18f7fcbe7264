"""Prints the results of commands on stdout: tables for people, or JSON with stable fields for programs.

JSON fields are those of the protocol's messages, in snake case, plus those that docs/reference/cli.md lists. Fields
may be added; none is renamed or removed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from assigner.logs.printable import as_json, one_line, shown
from assigner.proto.kafka_assigner.v1 import DescribeGroupResponse

_PIPE_WIDTH = 250


class PlainConsole(Console):
    """A console that escapes control characters, because names and messages from other programs may contain them."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(shown(segment.text), segment.style)


def console(*, stderr: bool = False) -> Console:
    made = PlainConsole(stderr=stderr, highlight=False)
    # A pipe has no width. With a terminal's width, cells would be cut and lost to the program that reads them.
    return made if made.is_terminal else PlainConsole(stderr=stderr, highlight=False, width=_PIPE_WIDTH)


def print_json(value: Any) -> None:
    click.echo(as_json(value, indent=2))


def fields_of(message: Any) -> dict[str, Any]:
    """A message as plain data. An optional field that is not set is left out."""
    plain = {field.name: _plain(getattr(message, field.name)) for field in dataclasses.fields(message)}
    return {name: value for name, value in plain.items() if value is not None and not name.startswith("_")}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return fields_of(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def description_fields(response: DescribeGroupResponse) -> dict[str, Any]:
    """A group's description as plain data, with one entry per partition instead of the wire's parallel lists."""
    plain = fields_of(response)
    owners = plain.pop("owners")
    plain["ownership"] = [
        {"topic": topic.topic, "partition": partition, "owner": owners[owner], "epoch": epoch}
        for topic in response.ownership
        for partition, owner, epoch in zip(topic.partitions, topic.owners, topic.epochs, strict=True)
    ]
    plain["standbys"] = [
        {"topic": topic.topic, "partition": partition, "holder": owners[holder]}
        for topic in response.standbys
        for partition, holder in zip(topic.partitions, topic.holders, strict=True)
    ]
    return plain


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table with numbers aligned right and text left. Cells are printed as text, never as markup."""
    rows = [tuple(row) for row in rows]
    made = Table(title=title or None, title_justify="left", header_style="bold", box=None, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(_is_number(row[index]) for row in rows)
        made.add_column(column, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def _cell(value: Any) -> Text:
    if not isinstance(value, Text):
        return Text(one_line(_shown(value)))
    return value if value.plain.isprintable() else Text(one_line(value.plain), value.style)


def _is_number(cell: Any) -> bool:
    return isinstance(cell, (int, float)) or (isinstance(cell, Text) and cell.plain.isdecimal())


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges, such as `0-3,7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
