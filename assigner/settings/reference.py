"""Renew the reference page: `python -m assigner.settings.reference docs/reference/settings.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from assigner.settings.showing import reference_tables

_BEGIN, _END = "<!-- generated: begin -->\n", "<!-- generated: end -->\n"


def renewed(page: str) -> str:
    """The page with the generated part between its marks replaced."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{reference_tables()}{_END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text()))
