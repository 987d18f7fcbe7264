"""Draws the result of a simulation: the moves, the imbalance and the pauses of each strategy.

Left: moves against imbalance, lower is better for both; a dot is a strategy, its cross spans the groups from the 5th to
the 95th percentile. Right: partition-minutes per day without a working owner. The colours are Okabe and Ito's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7A6A00", "#666666", "#9467BD")
STYLE: Any = {"svg.hashsalt": "strategies", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the chart. `rows`: those of `simulate.compare`, the best strategy first. The suffix of `path` selects the
    format."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12, 5.5), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[3, 2])
        _choice(left, rows)
        _pauses(right, rows)
        figure.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=9)
        figure.suptitle(answer(rows), x=0.01, ha="left", fontweight="bold")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def answer(rows: Sequence[dict[str, Any]]) -> str:
    """Write the sentence that recommends a strategy."""
    best = rows[0]
    moves = f"{best['moves_per_change']:.1f}"
    # Values that are equal after rounding count as equal.
    equals = [row["strategy"] for row in rows[1:] if row["even"] and f"{row['moves_per_change']:.1f}" == moves]
    names = " and ".join((best["strategy"], *equals))
    text = f"{names} {'move' if equals else 'moves'} least of those that stay even: {moves} a change"
    calmer = min(rows, key=lambda row: row["moves_per_change"])
    if calmer["moves_per_change"] < best["moves_per_change"]:
        text += (
            f"; {calmer['strategy']} moves {calmer['moves_per_change']:.1f} "
            f"with members {calmer['imbalance']:.1f} partitions apart"
        )
    return text


def _choice(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    for number, row in enumerate(rows):
        x, y = row["moves_per_change"], row["imbalance"]
        axes.errorbar(
            x,
            y,
            xerr=_span(x, row["moves_p05"], row["moves_p95"]),
            yerr=_span(y, row["imbalance_p05"], row["imbalance_p95"]),
            fmt="o",
            markersize=9 if number == 0 else 6,
            color=COLOURS[number % len(COLOURS)],
            elinewidth=1,
            alpha=0.9,
            label=f"{row['strategy']}: {x:.1f} moves, {y:.1f} apart",
        )
    axes.set_xscale("symlog", linthresh=1)
    axes.set_yscale("symlog", linthresh=1)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.set_xlabel("partitions taken from members that stay, per change of membership")
    axes.set_ylabel("partitions of the fullest member minus the emptiest")
    axes.set_title("Moves and evenness: further down and left is better", loc="left", fontsize=10)
    axes.grid(color="#eeeeee")


def _span(value: float, low: float, high: float) -> list[list[float]]:
    return [[max(0.0, value - low)], [max(0.0, high - value)]]


def _pauses(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    names = [row["strategy"] for row in rows]
    minutes = [row["pause_min_per_day"] or 0.0 for row in rows]
    colours = [COLOURS[number % len(COLOURS)] for number in range(len(rows))]
    bars = axes.barh(names, minutes, color=colours)
    axes.bar_label(bars, fmt="{:.1f}", padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("partition-minutes a day and group")
    axes.set_title("Nobody at work", loc="left", fontsize=10)
