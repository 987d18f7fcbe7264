"""Write the table of packages in docs/architecture.md from the packages' own docstrings: make docs-modules."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- modules: begin -->", "<!-- modules: end -->"
PLUGINS = ("backends", "strategies")
GENERATED = "proto"


def first_sentence(path: Path) -> str:
    """Return the first paragraph's first sentence of a module's docstring, on one line."""
    told = ast.get_docstring(ast.parse(path.read_text())) or ""
    paragraph = " ".join(told.split("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".").replace("|", r"\|")


def rows() -> Iterator[tuple[str, str, int]]:
    """Every module of the root and every package: its name, its first sentence, and how many modules it has."""
    package = ROOT / "assigner"
    for path in sorted(package.glob("*.py")):
        if path.stem != "__init__":
            yield path.stem, first_sentence(path), 1
    for top in (package, *(ROOT / name for name in PLUGINS)):
        for init in sorted(top.rglob("__init__.py")):
            name = init.parent.relative_to(package if top == package else ROOT).as_posix()
            if name != "." and not name.startswith(GENERATED):
                modules = [path for path in init.parent.glob("*.py") if path.stem != "__init__"]
                yield f"{name}/", first_sentence(init), len(modules)


def table() -> str:
    lines = ["| module or package | files | what it does |", "|---|---|---|"]
    for name, told, modules in rows():
        if not told:
            raise SystemExit(f"{name} has no docstring: say there what it is for")
        lines.append(f"| `{name}` | {modules} | {told} |")
    return "\n".join(lines)


def replaced(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> int:
    text = PAGE.read_text()
    PAGE.write_text(replaced(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
