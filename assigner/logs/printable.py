"""Escapes control characters in text from clients before an operator's terminal or log shows it.

Names, failures and metadata come from callers of the service. A control sequence in them could retitle, clear or forge
what an operator sees, and a bidirectional override could reverse it. Nothing is dropped: each such character is
written as its escape.
"""

from __future__ import annotations

import json
import re
from typing import Any

_OBEYED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What a terminal acts upon: controls but for tab and line ends, and marks of direction."""


def one_line(text: str) -> str:
    """Escape every unprintable character in the text, line ends included."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def shown(text: str) -> str:
    """Escape the control characters in the text, and keep its line ends."""
    return "\n".join(map(one_line, text.split("\n")))


def as_json(value: Any, *, indent: int | None = None) -> str:
    """Encode the value as JSON with every unprintable character escaped."""
    written = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    return json_escaped(written)


def json_escaped(written: str) -> str:
    """Escape the unprintable characters in JSON; except for line ends, they can only be inside its strings."""
    if written.isprintable():
        return written
    return "".join(one if one == "\n" or one.isprintable() else json.dumps(one)[1:-1] for one in written)


def obeyed_by_terminals(text: str) -> str:
    """Find the first character that a terminal would act upon, and return its escape; empty: there is none."""
    found = _OBEYED.search(text)
    return _escaped(found.group()) if found else ""


def _escaped(one: str) -> str:
    return one if one.isprintable() else one.encode("unicode_escape").decode("ascii")
