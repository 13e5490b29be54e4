"""Breakdown of the peak: the shares of weights, gradients, activations and other parts, by size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinchpoint.core.records import BREAKDOWN, Point, Study
from pinchpoint.core.units import show_size
from pinchpoint.reporting import palette
from pinchpoint.reporting.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BARS = 12


def draw(study: Study) -> Figure | None:
    lines = {
        key: [p for p in points if p.breakdown and p.status == "ok"]
        for key, points in style.lines_of(study).items()
    }
    lines = {key: points for key, points in lines.items() if points}
    if not lines:
        return None
    columns = min(2, len(lines))
    rows = -(-len(lines) // columns)
    figure, grid = style.canvas(
        rows=rows, columns=columns, width=5.2 * columns + 1.2, height=2.7 * rows + 1.0, sharey=True
    )
    parts_drawn: set[str] = set()
    for index, ((variant, mode), points) in enumerate(lines.items()):
        axes = grid[index // columns][index % columns]
        parts_drawn |= _panel(axes, _thin(points))
        axes.set_title(f"{style.drawable(variant)}, {mode}", fontsize=10)
        if index % columns == 0:
            axes.set_ylabel("share of the peak")
    for spare in list(grid.flat)[len(lines) :]:
        spare.set_visible(False)
    colours = {part: palette.LIGHT[palette.of_source(part)] for part in BREAKDOWN if part in parts_drawn}
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=part) for part, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=7 if columns > 1 else 4)
    figure.suptitle(
        f"Breakdown of the peak: {style.drawable(study.target)}",
        x=0.01,
        ha="left",
        fontsize=11.5,
        fontweight="bold",
    )
    return figure


def _panel(axes: Axes, points: list[Point]) -> set[str]:
    parts_drawn = set()
    for place, point in enumerate(points):
        assert point.breakdown is not None
        total, base = sum(point.breakdown.values()) or 1, 0.0
        for part in BREAKDOWN:
            share = 100 * point.breakdown.get(part, 0) / total
            if share:
                parts_drawn.add(part)
                axes.bar(
                    place,
                    share,
                    bottom=base,
                    width=0.82,
                    color=palette.LIGHT[palette.of_source(part)],
                    edgecolor="white",
                    linewidth=0.4,
                )
                base += share
        axes.annotate(
            style.short_bytes(total),
            (place, 101),
            ha="center",
            va="bottom",
            fontsize=6.5,
            color=style.MUTED,
            rotation=40,
        )
    axes.set_xticks(
        range(len(points)),
        [show_size(_round(p.size)) for p in points],
        rotation=40,
        ha="right",
        rotation_mode="anchor",
    )
    axes.set_yticks([0, 25, 50, 75, 100], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_ylim(0, 118)
    axes.grid(visible=False, axis="x")
    return parts_drawn


def _thin(points: list[Point]) -> list[Point]:
    """Return at most `BARS` points, including the first and the last."""
    if len(points) <= BARS:
        return points
    return [points[round(i * (len(points) - 1) / (BARS - 1))] for i in range(BARS)]


def _round(value: int) -> int:
    """Round to three digits, which are enough below a bar."""
    digits = max(0, len(str(value)) - 3)
    return round(value, -digits)
