"""A project whose own packages have the names of this repository's folders."""

from __future__ import annotations

from pathlib import Path

NAMES = ("backends", "strategies")


def write_namesakes(directory: Path) -> Path:
    """Write packages `backends` and `strategies` that know nothing of the assigner, and return *directory*."""
    for name in NAMES:
        (directory / name).mkdir(parents=True)
        (directory / name / "__init__.py").write_text('OWNER = "the project"\n')
    return directory
