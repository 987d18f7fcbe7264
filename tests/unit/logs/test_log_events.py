"""The reference page of the log lists exactly the events of the source, each with its levels and fields."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/reference/logs.md"
SOURCES = ("assigner", "backends", "strategies")
METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
LEVEL_OF = {"exception": "error"}
NAME = re.compile(r"[a-z]+(_[a-z]+)+")
ADDED_ELSEWHERE = {"group", "term"}
"""Fields that a logger is bound to, or that the caller of a shared loop passes on."""
WRITTEN_AS_TEXT = {"log_lines_dropped": ("warning", {"dropped"})}
"""The writer's own line, which goes past the loggers because their queue is full."""


class Line(NamedTuple):
    where: str
    event: str
    level: str
    fields: frozenset[str]
    has_more: bool


class Row(NamedTuple):
    levels: frozenset[str]
    fields: frozenset[str]


@cache
def lines() -> tuple[Line, ...]:
    paths = [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(line for path in paths for line in lines_of(path))


def lines_of(path: Path) -> Iterator[Line]:
    tree = ast.parse(path.read_text())
    for scope in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))]:
        for call in calls_in(scope):
            where = f"{path.relative_to(ROOT)}:{call.lineno}"
            if is_note(call):
                for event in texts(call.args[0], scope):
                    yield Line(where, event, "warning", frozenset({"partition", "consumer", "reason"}), has_more=False)
            elif is_log(call) and ast.unparse(call.args[0]) != "note.event":
                found = list(texts(call.args[0], scope))
                assert found, f"{where}: {ast.unparse(call.args[0])} is no literal event name"
                assert isinstance(call.func, ast.Attribute)
                named = {keyword.arg for keyword in call.keywords if keyword.arg}
                for event in found:
                    yield Line(
                        where,
                        event,
                        LEVEL_OF.get(call.func.attr, call.func.attr),
                        frozenset(named - {"exc_info"}),
                        has_more=len(named) < len(call.keywords),
                    )


def calls_in(scope: ast.AST) -> Iterator[ast.Call]:
    """Those of the scope itself, not of the functions inside it."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.Call):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from calls_in(node)


def is_note(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "Note" and bool(call.args)


def is_log(call: ast.Call) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in METHODS or not call.args:
        return False
    logger = ast.unparse(function.value)
    return logger.rpartition(".")[2] in {"log", "_log"} or "get_logger(" in logger


def texts(value: ast.expr, scope: ast.AST) -> Iterator[str]:
    match value:
        case ast.Constant(value=str() as text):
            yield text
        case ast.IfExp(body=one, orelse=other):
            yield from texts(one, scope)
            yield from texts(other, scope)
        case ast.Name(id=name):
            for node in ast.walk(scope):
                if isinstance(node, ast.Assign) and any(ast.unparse(each) == name for each in node.targets):
                    yield from texts(node.value, scope)


def rows() -> dict[str, Row]:
    found = {}
    for row in re.findall(r"^\| `(\w+)` \| ([\w, ]+) \| ([^|]*) \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE):
        event, levels, fields = row
        assert event not in found, f"{event} has two rows"
        found[event] = Row(frozenset(levels.split(", ")), frozenset(re.findall(r"`(\w+)`", fields)))
    return found


def test_every_event_of_the_source_has_a_row_and_every_row_an_event() -> None:
    assert {line.event for line in lines()} | WRITTEN_AS_TEXT.keys() == rows().keys()


def test_the_levels_are_those_of_the_source() -> None:
    wanted: dict[str, set[str]] = {event: {level} for event, (level, _) in WRITTEN_AS_TEXT.items()}
    for line in lines():
        wanted.setdefault(line.event, set()).add(line.level)
    assert {event: set(row.levels) for event, row in rows().items()} == wanted


def test_the_fields_are_those_of_the_source() -> None:
    listed = rows()
    seen: dict[str, set[str]] = {event: set(fields) for event, (_, fields) in WRITTEN_AS_TEXT.items()}
    open_ended = set()
    for line in lines():
        assert line.fields <= listed[line.event].fields, line
        seen.setdefault(line.event, set()).update(line.fields)
        if line.has_more:
            open_ended.add(line.event)
    for event, row in listed.items():
        assert event in open_ended or row.fields - seen[event] <= ADDED_ELSEWHERE, event


def test_names_are_a_noun_and_what_happened_in_snake_case() -> None:
    assert [line for line in lines() if not NAME.fullmatch(line.event)] == []
