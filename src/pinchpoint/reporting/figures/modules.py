"""Saved bytes by module: which parts of the network hold the peak, at the largest size of the baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinchpoint.core.records import Point, Study
from pinchpoint.core.units import show_size
from pinchpoint.reporting.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 14


def chosen(study: Study) -> Point | None:
    """The largest point of the first variant that knows its modules; training before inference."""
    known = [p for p in study.points if p.modules and p.status == "ok"]
    known = [p for p in known if p.variant == known[0].variant]
    return max(known, key=lambda p: (p.mode == "train", p.size), default=None)


def draw(study: Study) -> Figure | None:
    point = chosen(study)
    if point is None:
        return None
    ranked = [(str(m["name"]) or "(outside modules)", int(m["bytes"])) for m in point.modules if m["bytes"]]
    ranked = sorted(ranked, key=lambda pair: -pair[1])[:MOST]
    figure, grid = style.canvas(height=1.3 + 0.27 * len(ranked))
    axes = grid[0][0]
    colour = style.look(study, point.variant, point.mode)["color"]
    places = range(len(ranked))
    unit, unit_name = style.byte_unit(ranked[0][1])
    axes.barh(places, [size / unit for _, size in ranked], color=colour, height=0.72)
    peak = point.theory_bytes or point.peak_allocated_bytes or 1
    for place, (_, size) in zip(places, ranked, strict=True):
        axes.annotate(
            f"{style.short_bytes(size)}  ({100 * size / peak:.0f} %)",
            (size / unit, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(places, [style.elide(style.drawable(name), 40) for name, _ in ranked])
    axes.set_ylim(len(ranked) - 0.4, -0.6)
    axes.set_xlim(0, 1.28 * ranked[0][1] / unit)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"{unit_name} alive at the peak, and the share of it")
    where = f"{style.drawable(point.variant)} {point.mode}, {show_size(point.size)}"
    style.title(axes, study, f"Bytes by module ({where})")
    return figure
