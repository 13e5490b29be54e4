"""Peak vs size on log axes, with points, fitted laws and their bands, sizes out of memory, and cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pinchpoint.core.growth_law import value
from pinchpoint.core.records import Law, Point, Study
from pinchpoint.reporting.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDE = 3.0  # a band wider than this many times its low end is not drawn


def draw(study: Study) -> Figure | None:
    lines = style.peak_lines_of(study)
    if not any(lines.values()):
        return None
    figure, grid = style.canvas()
    axes = grid[0][0]
    laws = style.laws_of(study)
    for (variant, mode), points in lines.items():
        look = style.look(study, variant, mode)
        law = laws.get((variant, mode))
        if law is not None:
            _law(axes, law, look)
        axes.plot([], [], label=style.name_of(study, variant, mode), **look)
        marks = {**look, "linestyle": "none"} if law is not None else look
        axes.plot([p.size for p in points], [p.peak_allocated_bytes for p in points], **marks)
    _out_of_memory(axes, study, laws)
    axes.set_ylim(
        *style.spread([v for line in axes.get_lines() for v in np.ravel(line.get_ydata()) if v > 0])
    )
    style.size_axis(axes, study.axis)
    _cards(axes, study)
    style.byte_axis(axes, "peak allocated")
    style.title(axes, study, "Peak vs size")
    style.legend(axes, loc="upper left")
    return figure


def _law(axes: Axes, law: Law, look: dict[str, Any]) -> None:
    if not law.segments:
        return
    sizes = np.geomspace(law.segments[0]["from"], law.segments[-1]["to"], 200)
    stroke = {name: look[name] for name in ("color", "linestyle", "linewidth")}
    axes.plot(sizes, [value(law, size) for size in sizes], **stroke)
    if law.band:
        at, low, high = zip(*law.band, strict=True)
        low, high = np.maximum(low, 1), np.asarray(high)
        # A band that spans decades only shows that the law is unknown there, and would hide the other lines.
        axes.fill_between(
            at, low, high, where=high <= _WIDE * low, color=look["color"], alpha=0.18, linewidth=0
        )


def _out_of_memory(axes: Axes, study: Study, laws: dict[tuple[str, str], Law]) -> None:
    crosses = [(p.size, _where(p, laws)) for p in study.points if p.status == "oom"]
    crosses = [(size, peak) for size, peak in crosses if peak]
    if crosses:
        sizes, peaks = zip(*crosses, strict=True)
        axes.plot(
            sizes,
            peaks,
            linestyle="none",
            marker="x",
            color=style.BAD,
            markersize=8,
            markeredgewidth=2,
            label="out of memory",
        )


def _where(point: Point, laws: dict[tuple[str, str], Law]) -> float | None:
    """Return the height of a size that ran out of memory: the peak by theory, or else by the law."""
    law = laws.get((point.variant, point.mode))
    return point.theory_bytes or (max(value(law, point.size), 1.0) if law else None)


def _cards(axes: Axes, study: Study) -> None:
    """Draw the memory of each card that the axis reaches, and of the next larger one."""
    low, high = axes.get_ylim()
    cards = sorted({(row["memory_bytes"], row["card"]) for row in study.cards})
    above = [card for card in cards if card[0] > high][:1]
    visible = [card for card in cards if low < card[0] <= high]
    if above and above[0][0] < 3 * high:
        visible += above
        axes.set_ylim(low, above[0][0] * 1.15)
    last = 0.0
    for memory, name in sorted(visible):
        axes.axhline(memory, color=style.MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
        if memory < last * (high / low) ** 0.035:
            continue  # its name would overlap the one below
        last = memory
        axes.annotate(
            f"{style.drawable(name)} {style.short_bytes(memory)}",
            (1.0, memory),
            xytext=(4, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            color=style.MUTED,
        )
