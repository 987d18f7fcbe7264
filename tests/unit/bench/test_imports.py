"""The benchmark of imports has a row for each program, and compares them with grpclib."""

from __future__ import annotations

import sys

import pytest

from bench import imports


def test_the_command_prints_a_row_for_each_import(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", ["bench.imports", "--processes", "1"])
    imports.main()
    printed = capsys.readouterr().out
    assert all(f" {name} " in printed for name in imports.PROGRAMS)
    assert "best beyond grpclib.client" in printed


def test_a_program_that_fails_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "PROGRAMS", {"broken": "raise SystemExit(3)"})
    with pytest.raises(RuntimeError, match="SystemExit"):
        imports.measure(processes=1)


def test_figures_are_compared_with_those_of_grpclib() -> None:
    costs = {name: imports.Cost(best, best + 1) for name, best in (("grpclib", 10), ("grpclib.client", 60), ("x", 100))}
    columns = [list(column.cells) for column in imports.table(costs, processes=1).columns]
    assert [column[-1] for column in columns] == ["x", "100", "101", "+90", "+40"]
