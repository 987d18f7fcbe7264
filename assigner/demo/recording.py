"""Saves recordings of the demo, as an SVG that plays its frames in a loop, or as plain text."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from assigner.demo.rendering import WIDE, layout_for, render
from assigner.demo.snapshot import Snapshot

SECONDS_PER_FRAME = 1.6
_SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')


def save(snapshots: Sequence[Snapshot], path: Path) -> None:
    """Save a recording, as an animation if the path ends with `.svg`, otherwise as text."""
    made = animated(snapshots) if path.suffix == ".svg" else text(snapshots)
    path.write_text(made, encoding="utf-8")


def text(snapshots: Sequence[Snapshot]) -> str:
    return "\n".join(frame_text(snapshot) for snapshot in snapshots)


def frame_text(snapshot: Snapshot) -> str:
    """Render a frame as text without colours."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=WIDE.width, color_system=None, legacy_windows=False)
    console.print(render(snapshot, layout_for(console)))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def animated(snapshots: Sequence[Snapshot]) -> str:
    """Make an SVG with all frames on top of each other, each visible in turn. It plays wherever CSS animations do, also
    in an `img`."""
    frames = [_frame(snapshot, index) for index, snapshot in enumerate(snapshots)]
    size = _SIZE.search(frames[0])
    assert size is not None, "rich's SVG has a viewBox"
    width, height = size.groups()
    length = SECONDS_PER_FRAME * len(frames)
    share = 100 / len(frames)
    style = (
        f".frame{{visibility:hidden;animation:play {length:.1f}s step-end infinite}}"
        # A viewer without animations shows the first frame.
        ".frame:first-of-type{visibility:visible}"
        f"@keyframes play{{0%{{visibility:visible}}{share:.3f}%{{visibility:hidden}}}}"
    )
    turns = "".join(
        f'<g class="frame" style="animation-delay:{index * SECONDS_PER_FRAME:.1f}s">{frame}</g>'
        for index, frame in enumerate(frames)
    )
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
    return f"{opening}<style>{style}</style>{turns}</svg>\n"


def _frame(snapshot: Snapshot, index: int) -> str:
    console = Console(file=io.StringIO(), record=True, width=WIDE.width, force_terminal=True, color_system="truecolor")
    console.print(render(snapshot))
    title = "assigner demo" if snapshot.traffic is None else "assigner demo --routers"
    made = console.export_svg(title=title, unique_id=f"f{index}")
    # The font would be fetched from elsewhere; an image in a README must be self-contained.
    return re.sub(r"@font-face\s*\{.*?\}\s*(?=\n)|<!--.*?-->", "", made, flags=re.DOTALL)
