"""Bytes per point vs size: where the fixed cost stops mattering, and what one more point costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinchpoint.core.records import Study
from pinchpoint.reporting.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(study: Study) -> Figure | None:
    lines = style.peak_lines_of(study)
    if not any(lines.values()):
        return None
    figure, grid = style.canvas()
    axes = grid[0][0]
    laws = style.laws_of(study)
    for (variant, mode), points in lines.items():
        look = style.look(study, variant, mode)
        axes.plot(
            [p.size for p in points],
            [(p.peak_allocated_bytes or 0) / p.size for p in points],
            label=style.name_of(study, variant, mode),
            **look,
        )
        law = laws.get((variant, mode))
        if law is not None and points and law.slope_low > 0:
            axes.axhline(law.slope_bytes_per_point, color=look["color"], linewidth=1, linestyle=(0, (1, 2)))
            axes.annotate(
                f"{law.slope_bytes_per_point:,.0f} B",
                (1.0, law.slope_bytes_per_point),
                xytext=(3, 0),
                va="center",
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                fontsize=8,
                color=look["color"],
            )
    style.size_axis(axes, study.axis)
    style.byte_axis(axes, f"peak allocated per {style.drawable(study.unit)}")
    style.title(axes, study, f"Bytes per {style.drawable(study.unit)}")
    axes.annotate(
        "dotted: slope of the fitted law",
        (1.0, 1.0),
        xycoords="axes fraction",
        ha="right",
        va="top",
        fontsize=8,
        color=style.MUTED,
    )
    style.legend(axes, loc="best")
    return figure
