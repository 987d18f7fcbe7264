"""Figures and modules that the documentation quotes are those of the code.

A figure is written as `module.NAME` (figure), the module named from `assigner` down; the table of modules in the
architecture is made from the docstrings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.unit.project.test_docs import ROOT, per_page, prose
from tools import module_table

_FIGURE = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*)\.([A-Z][A-Z_]+)` \(([\d,.]+)")


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


def test_the_table_of_modules_is_made_from_the_docstrings() -> None:
    page = module_table.PAGE.read_text()
    assert page == module_table.replaced(page), "run `make docs-modules` and commit the result"


def test_a_package_without_a_docstring_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "assigner" / "nameless").mkdir(parents=True)
    (tmp_path / "assigner" / "nameless" / "__init__.py").write_text("")
    monkeypatch.setattr(module_table, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="nameless/ has no docstring"):
        module_table.table()
