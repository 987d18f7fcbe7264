"""Turns the errors of failed Spark jobs into one sentence instead of a stack trace.

Bad data becomes `InvalidInput` with the remedy. For every other error the innermost cause is shown, because Spark wraps
errors several times.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from assigner.errors import InvalidInput

LONGEST = 600
"""Most characters of a cause that are shown."""
_FILE = re.compile(r"\[FAILED_READ_FILE(?:\.(\w+))?\] [^\n]*? file (\S+?)\.(?=\s|$)")
_OURS = (
    re.compile(r"assigner\.errors\.InvalidInput: ([^\n]*)"),
    re.compile(r"\[USER_RAISED_EXCEPTION\] ([^\n]*)"),
)
_NOISE = re.compile(r"^\[[A-Z_.]+\] |\s*SQLSTATE: \w+;?")


def silence_query_loggers() -> None:
    """Silence PySpark's loggers, which log each error with its stack before raising it: the command line shows it
    once."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def input_error(error: Exception) -> InvalidInput | None:
    """Find the error about the input that made a job fail; None: the input was not the reason."""
    text = str(error)
    for pattern in _OURS:
        if message := pattern.search(text):
            return InvalidInput(_plain(message[1]))
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
    """Find the first line of an error's innermost cause."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    message = _innermost(java) if java is not None else str(error)
    return _plain(message) or type(error).__name__


def _innermost(java: Any) -> str:
    while (below := java.getCause()) is not None:
        java = below
    message: str | None = java.getMessage()
    kind = str(java.getClass().getSimpleName())
    if not message:
        return kind
    # A message that is only a name, such as a class or a host, needs the kind of the error.
    return message if " " in message.strip() else f"{kind}: {message}"


def _plain(text: str) -> str:
    first = next((line for line in text.strip().splitlines() if line.strip()), "")
    return _NOISE.sub("", first).strip().rstrip(".;")[:LONGEST]
