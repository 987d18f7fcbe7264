"""Recordings of the demo: an SVG that plays its frames in a loop, or plain text."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from assigner.demo.picture import WIDTH, draw
from assigner.demo.scene import Scene

SECONDS_PER_FRAME = 1.6
_SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')


def save(scenes: Sequence[Scene], path: Path) -> None:
    """By the name's ending: `.svg` moves, everything else is text."""
    made = animated(scenes) if path.suffix == ".svg" else text(scenes)
    path.write_text(made, encoding="utf-8")


def text(scenes: Sequence[Scene]) -> str:
    return "\n".join(frame_text(scene) for scene in scenes)


def frame_text(scene: Scene) -> str:
    """A frame without colours."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=WIDTH, color_system=None, legacy_windows=False)
    console.print(draw(scene))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def animated(scenes: Sequence[Scene]) -> str:
    """All frames on top of each other, each visible in its turn. Plays wherever CSS animations do, also in an `img`."""
    frames = [_frame(scene, index) for index, scene in enumerate(scenes)]
    size = _SIZE.search(frames[0])
    assert size is not None, "rich's SVG has a viewBox"
    width, height = size.groups()
    length = SECONDS_PER_FRAME * len(frames)
    share = 100 / len(frames)
    style = (
        f".frame{{visibility:hidden;animation:play {length:.1f}s step-end infinite}}"
        # What can't animate shows the first frame.
        ".frame:first-of-type{visibility:visible}"
        f"@keyframes play{{0%{{visibility:visible}}{share:.3f}%{{visibility:hidden}}}}"
    )
    turns = "".join(
        f'<g class="frame" style="animation-delay:{index * SECONDS_PER_FRAME:.1f}s">{frame}</g>'
        for index, frame in enumerate(frames)
    )
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
    return f"{opening}<style>{style}</style>{turns}</svg>\n"


def _frame(scene: Scene, index: int) -> str:
    console = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, color_system="truecolor")
    console.print(draw(scene))
    made = console.export_svg(title="make demo", unique_id=f"f{index}")
    # The font is fetched from elsewhere; a picture in a README must stand alone.
    return re.sub(r"@font-face\s*\{.*?\}\s*(?=\n)|<!--.*?-->", "", made, flags=re.DOTALL)
