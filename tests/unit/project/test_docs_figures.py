"""Figures and modules that the documentation quotes are those of the code.

A figure is written as `module.NAME` (figure), the module named from `assigner` down; the table of modules in the
architecture lists every module of the root and the core, and every package.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.unit.project.test_docs import ROOT, per_page, prose

_FIGURE = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*)\.([A-Z][A-Z_]+)` \(([\d,.]+)")
_SPAN = re.compile(r"`([^`]+)`")


def figures(page: Path) -> Iterator[tuple[str, str, float]]:
    for module, name, figure in _FIGURE.findall(prose(page)):
        yield module, name, float(figure.rstrip(".,").replace(",", ""))


@per_page
def test_figures_are_those_of_the_code(page: Path) -> None:
    for module, name, figure in figures(page):
        found = getattr(import_module(f"assigner.{module}"), name)
        assert found == figure, f"{module}.{name} is {found}, not {figure:g}"


@pytest.mark.parametrize("page", ["architecture.md", "limits.md", "decisions/2026-11-16-plans-in-slices.md"])
def test_pages_that_quoted_wrong_figures_name_where_they_come_from(page: str) -> None:
    assert list(figures(ROOT / "docs" / page))


def test_the_table_of_modules_has_every_module_and_no_other() -> None:
    section = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Modules\n")[2].partition("\n## ")[0]
    columns = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    listed = sorted(name for column in columns for name in _SPAN.findall(column))
    assert listed == sorted(set(listed)), "a module is listed twice"
    missing, gone = set(existing()) - set(listed), set(listed) - set(existing())
    assert not missing, f"say in docs/architecture.md what these are for: {sorted(missing)}"
    assert not gone, f"these are no more: {sorted(gone)}"


def existing() -> Iterator[str]:
    package = ROOT / "assigner"
    for path in package.glob("*.py"):
        if path.stem != "__init__":
            yield path.stem
    for path in (package / "core").glob("*.py"):
        if path.stem != "__init__":
            yield f"core/{path.stem}"
    for path in package.glob("*/__init__.py"):
        if path.parent.name not in ("core", "proto"):
            yield f"{path.parent.name}/"
    yield from ("backends/memory", "backends/etcd", "backends/lease_elector", "backends/instance_lease", "strategies/")
