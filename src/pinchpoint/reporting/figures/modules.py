"""Bytes per module: which parts of the network use the peak memory, at the largest size of the baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinchpoint.core.records import Point, Study
from pinchpoint.core.units import show_size
from pinchpoint.reporting.figures import style
from pinchpoint.reporting.modules import merged_modules

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_MODULES = 14


def largest_point(study: Study) -> Point | None:
    """Return the largest point of the first variant with modules, preferring training over inference."""
    points = [p for p in study.points if p.modules and p.status == "ok"]
    points = [p for p in points if p.variant == points[0].variant]
    return max(points, key=lambda p: (p.mode == "train", p.size), default=None)


def draw(study: Study) -> Figure | None:
    point = largest_point(study)
    if point is None:
        return None
    rows = [(module.label, module.bytes) for module in merged_modules(point.modules) if module.bytes]
    rows = rows[:MAX_MODULES]
    figure, grid = style.canvas(height=1.3 + 0.27 * len(rows))
    axes = grid[0][0]
    colour = style.look(study, point.variant, point.mode)["color"]
    places = range(len(rows))
    unit, unit_name = style.byte_unit(rows[0][1])
    axes.barh(places, [size / unit for _, size in rows], color=colour, height=0.72)
    peak = point.theory_bytes or point.peak_allocated_bytes or 1
    for place, (_, size) in zip(places, rows, strict=True):
        axes.annotate(
            f"{style.short_bytes(size)}  ({100 * size / peak:.0f} %)",
            (size / unit, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(places, [style.elide(style.drawable(name), 40) for name, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.28 * rows[0][1] / unit)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"{unit_name} alive at the peak, and their share of it")
    where = f"{style.drawable(point.variant)} {point.mode}, {show_size(point.size)}"
    style.title(axes, study, f"Bytes per module ({where})")
    return figure
