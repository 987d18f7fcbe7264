"""The documentation is true where a machine can tell: links lead somewhere, tests and files it names are there, its
code compiles and imports what exists, its commands and flags are those of the program, the README's example runs."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Self

import click
import pytest

from assigner.cli.app import main
from assigner.embedded import EmbeddedAssigner
from tests.chaos.ablation.ablations import ABLATIONS

ROOT = Path(__file__).parents[3]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PATIENCE = 60.0
RULES = range(1, 17)

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_BLOCK = re.compile(r"^( *)```([a-z]*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_TEST = re.compile(r"((?:tests|assigner)/[\w/]+\.py)::(test_\w+)")
_FILE = re.compile(r"(?:tests|assigner|backends|strategies|bench|docs|tools)/[\w./*-]+\.(?:py|md|toml|svg)")

per_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> Iterator[str]:
    for indent, kind, text in _BLOCK.findall(page.read_text()):
        if kind == language:
            yield "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))


def prose(page: Path) -> str:
    return _BLOCK.sub("", page.read_text())


@cache
def anchors(page: Path) -> frozenset[str]:
    """Where links into a page may point, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@cache
def functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


# --- what pages point to -------------------------------------------------------------------------------------------


@per_page
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{link}: the page has no such heading"


@per_page
def test_tests_that_are_named_exist(page: Path) -> None:
    for path, name in _TEST.findall(page.read_text()):
        assert (ROOT / path).is_file(), f"{path} does not exist"
        assert name in functions(ROOT / path), f"{path} has no test {name}"


@per_page
def test_files_that_are_named_exist(page: Path) -> None:
    for code in _CODE.findall(prose(page)):
        for named in _FILE.findall(code):
            assert any(ROOT.glob(named)), f"{named} does not exist"


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    listed = {(index.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(prose(index))}
    pages = [page for page in PAGES if page.is_relative_to(ROOT / "docs") and page != index]
    missing = [str(page.relative_to(ROOT)) for page in pages if page not in listed]
    assert not missing, f"not linked from docs/index.md: {missing}"


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_names_a_test_and_the_change_that_makes_it_fail(rule: int) -> None:
    rows = re.findall(r"^\| (\d+) \|(.*)$", (ROOT / "docs" / "guarantees.md").read_text(), re.MULTILINE)
    (row,) = (row for number, row in rows if int(number) == rule)
    proofs = [f"{ablation.noticed_by.__name__}: {ablation.what}" for ablation in ABLATIONS if ablation.rule == rule]
    shown = [proof for proof in proofs if all(part in row for part in proof.split(": ", 1))]
    assert shown, f"none of these is in the row of rule {rule}: {proofs}"


# --- what pages show -----------------------------------------------------------------------------------------------


@per_page
def test_python_compiles_and_imports_what_exists(page: Path) -> None:
    for text in blocks(page, "python"):
        compile(text, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module and _is_ours(node.module):
                module = import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("assigner", "backends", "strategies")


@per_page
def test_toml_is_toml(page: Path) -> None:
    for text in blocks(page, "toml"):
        tomllib.loads(text)


@per_page
def test_commands_and_their_flags_exist(page: Path) -> None:
    for text in blocks(page, "console"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line.lstrip().removeprefix("$ "), comments=True)
            if line.lstrip().startswith("$ assigner ") and words:
                check_command(words[1:])


@per_page
def test_targets_of_make_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = "".join(text for language in ("console", "sh") for text in blocks(page, language))
    lines = [*text.splitlines(), *_CODE.findall(prose(page))]
    for line in lines:
        if found := re.match(r"(?:\$ )?make ([a-z-]+)", line.strip()):
            assert found[1] in targets, f"make has no target {found[1]}"


def check_command(words: list[str]) -> None:
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"there is no command {words[0]!r}"
        command, words = found, words[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word in ("|", ">", "&"):
            return
        flag = word.partition("=")[0]
        if flag.startswith("-"):
            assert flag in known | {"-h", "--help"}, f"assigner {command.name} has no {flag}"


# --- what runs -----------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_the_example_in_the_readme_runs(tmp_path: Path) -> None:
    example, routing, *_ = blocks(ROOT / "README.md", "python")
    with EmbeddedAssigner(topics={"billing": {"orders": 12}}) as assigner, ExitStack() as stack:
        text = example.replace("127.0.0.1:50051", assigner.address)
        first = stack.enter_context(Example(tmp_path / "first", text))
        first.says("mine now", 12)
        second = stack.enter_context(Example(tmp_path / "second", text.replace("worker-1", "worker-2")))
        second.says("mine now", 6)
        second.says("getting ready for", 6)
        first.says("to worker-2", 6)
        router = stack.enter_context(Example(tmp_path / "router", routing.replace("127.0.0.1:50051", assigner.address)))
        assert router.process.wait(PATIENCE) == 0, router.output
        assert re.fullmatch(r"send it to worker-[12], at no address, with epoch [12]\n", router.output)
        first.process.terminate()
        assert first.process.wait(PATIENCE) == 0
        second.says("mine now", 12)
    assert "mine now: orders/3@1" in first.output
    assert first.output.count("handing over") == 12
    assert "Traceback" not in first.output


class Example:
    """A program of the docs as a process."""

    def __init__(self, directory: Path, program: str | list[str]) -> None:
        """`program`: the text of one in Python, or a command."""
        directory.mkdir()
        self._output = directory / "output"
        if isinstance(program, str):
            (directory / "example.py").write_text(program)
            program = [sys.executable, "-u", str(directory / "example.py")]
        self._command = program

    def __enter__(self) -> Self:
        with self._output.open("w") as sink:
            self.process = subprocess.Popen(self._command, stdout=sink, stderr=sink, cwd=ROOT)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)

    @property
    def output(self) -> str:
        return self._output.read_text()

    def says(self, words: str, times: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.output.count(words) < times:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)
