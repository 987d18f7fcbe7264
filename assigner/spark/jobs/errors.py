"""What Spark says when a job fails, as one sentence instead of a stack trace.

A fault of the data becomes `InvalidInput` with the remedy; of anything else the deepest cause is told, because Spark
wraps it several times and only the innermost says what happened.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from assigner.errors import InvalidInput

LONGEST = 600
"""Characters of a cause that are told."""
_FILE = re.compile(r"\[FAILED_READ_FILE(?:\.(\w+))?\] [^\n]*? file (\S+?)\.(?=\s|$)")
_OURS = (
    re.compile(r"assigner\.errors\.InvalidInput: ([^\n]*)"),
    re.compile(r"\[USER_RAISED_EXCEPTION\] ([^\n]*)"),
)
_NOISE = re.compile(r"^\[[A-Z_.]+\] |\s*SQLSTATE: \w+;?")


def hush() -> None:
    """Spark's Python side logs each error with its stack before it raises it; what it says is told once."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def about_input(error: Exception) -> InvalidInput | None:
    """What a failed job says about its data, if it is about its data."""
    text = str(error)
    for pattern in _OURS:
        if said := pattern.search(text):
            return InvalidInput(_plain(said[1]))
    if found := _FILE.search(text):
        return InvalidInput(f"{found[2]} {_damage(found[1] or '', text)}")
    return None


def _damage(kind: str, text: str) -> str:
    if "MALFORMED_RECORD" in text:
        return "has a line that can't be read; repair it, or leave such lines out with --skip-malformed"
    if kind == "FILE_NOT_EXIST":
        return "was removed while it was read; run it again, with a copy of the files if that goes on"
    if kind == "CANNOT_READ_FILE_FOOTER":
        return "is no Parquet file, or damaged; repair or remove it, or pass --format json if it has JSON lines"
    return "is damaged; repair or remove it"


def cause(error: Exception) -> str:
    """The first line of the deepest cause."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    told = _deepest(java) if java is not None else str(error)
    return _plain(told) or type(error).__name__


def _deepest(java: Any) -> str:
    while (below := java.getCause()) is not None:
        java = below
    said: str | None = java.getMessage()
    kind = str(java.getClass().getSimpleName())
    if not said:
        return kind
    # A name alone, such as that of a class or a host, does not say what is wrong with it.
    return said if " " in said.strip() else f"{kind}: {said}"


def _plain(text: str) -> str:
    first = next((line for line in text.strip().splitlines() if line.strip()), "")
    return _NOISE.sub("", first).strip().rstrip(".;")[:LONGEST]
