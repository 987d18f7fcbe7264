"""The picture of a day: members, moves and imbalance over 24 hours, a line for each strategy.

Colours are Okabe and Ito's, which people with any colour vision tell apart; models are dashed besides, and each line is
named at its end. The same day gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.day.simulation import DEPLOYS, Day, Event, Life
from bench.strategies.contestants import DEFAULT

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7A6A00", "#666666", "#9467BD")
LOOK: Any = {"svg.hashsalt": "a day", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}


def draw(day: Day, path: Path) -> None:
    # What was true after the last event stays true until midnight.
    hours = [0.0, *(event.hour for event in day.events), 24.0]
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(11.5, 9), layout="constrained")
        top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[1, 3, 3])
        _members(top, hours, [*day.members, day.members[-1]])
        _deploys(day.events, (top, middle, bottom))
        _lines(middle, hours, day.lives, [life.moves for life in day.lives], "{:,} moves")
        _lines(bottom, hours, day.lives, [life.imbalance for life in day.lives], "at most {} apart")
        middle.set_title("Partitions taken from members that stay, since midnight", loc="left")
        bottom.set_title("Partitions of the fullest member minus those of the emptiest", loc="left")
        bottom.set_xlabel("hour of the day")
        bottom.set_xlim(0, 24)
        bottom.set_xticks(range(0, 25, 3))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None, "Title": "Moves and imbalance of each strategy over a day"})


def _members(axes: Axes, hours: Sequence[float], counts: Sequence[int]) -> None:
    axes.step(hours, counts, where="post", color="black", linewidth=1)
    axes.set_title("Members", loc="left")
    axes.set_ylim(0, max(counts) + 3)


def _deploys(events: Sequence[Event], panels: Sequence[Axes]) -> None:
    """Grey bands where a rolling deploy is going on."""
    for start in DEPLOYS:
        end = max(event.hour for event in events if event.what == "replaced" and start <= event.hour < start + 3)
        for axes in panels:
            axes.axvspan(start, end, color="#dddddd", zorder=0)
        panels[0].annotate("deploy", (start, 1), fontsize=9)


def _colours(lives: Sequence[Life]) -> dict[str, str]:
    """Strategies from the front of the list, models from its end."""
    models = [life.name for life in lives if _is_model(life)]
    others = [life.name for life in lives if not _is_model(life)]
    chosen = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(others)}
    return chosen | {name: COLOURS[-1 - number % len(COLOURS)] for number, name in enumerate(models)}


def _is_model(life: Life) -> bool:
    return "(model)" in life.name


def _lines(
    axes: Axes, hours: Sequence[float], lives: Sequence[Life], values: Sequence[Sequence[int]], words: str
) -> None:
    colours = _colours(lives)
    for life, value in zip(lives, values, strict=True):
        ours = life.name == DEFAULT
        axes.step(
            hours,
            [*value, value[-1]],
            where="post",
            color=colours[life.name],
            linestyle="--" if _is_model(life) else "-",
            linewidth=2.6 if ours else 1.3,
            zorder=5 if ours else 2,
        )
    axes.set_yscale("symlog", linthresh=10, linscale=0.5)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", color="#eeeeee")
    _names(axes, lives, values, words)


def _names(axes: Axes, lives: Sequence[Life], values: Sequence[Sequence[int]], words: str) -> None:
    """Beside the end of each line, pushed apart so that no two lie on each other."""
    colours = _colours(lives)
    ends = [_height(axes, value[-1]) for value in values]
    order = sorted(range(len(lives)), key=lambda number: (ends[number], lives[number].name))
    for number, height in zip(order, _apart([ends[number] for number in order]), strict=True):
        life = lives[number]
        axes.annotate(
            f"{life.name}: {words.format(max(values[number]))}",
            (1.01, height),
            xycoords="axes fraction",
            color=colours[life.name],
            va="center",
            fontsize=9,
            fontweight="bold" if life.name == DEFAULT else "normal",
            annotation_clip=False,
        )


def _height(axes: Axes, value: float) -> float:
    """Where a value lies between the axes' bottom, 0, and top, 1."""
    bottom, here, top = (
        float(axes.transScale.transform((0, at))[1]) for at in (axes.get_ylim()[0], value, axes.get_ylim()[1])
    )
    return (here - bottom) / (top - bottom)


def _apart(heights: Sequence[float], least: float = 0.062) -> list[float]:
    """Rising heights with some room between them, not above the top if that can be."""
    raised: list[float] = []
    for height in heights:
        raised.append(max(height, raised[-1] + least) if raised else max(height, 0.0))
    limit = 1.0
    for number in reversed(range(len(raised))):
        raised[number] = min(raised[number], limit)
        limit = raised[number] - least
    return raised
