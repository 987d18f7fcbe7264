"""The Python of a how-to page, run as it stands there: only addresses and paths are those of the test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.unit.project.test_docs import ROOT, blocks

HOW_TO = ROOT / "docs" / "how-to"


def names_of(page: str, *, having: str, instead: Mapping[str, str]) -> dict[str, Any]:
    """What the block of a page defines that has a text in it, with other texts instead of those that it has."""
    (text,) = (block for block in blocks(HOW_TO / page, "python") if having in block)
    for old, new in instead.items():
        text = text.replace(old, new)
    names: dict[str, Any] = {}
    exec(compile(text, page, "exec"), names)
    return names
