"""Theory vs measurement: the fake run's peak beside the measured one, and its error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinchpoint.core.records import Point, Study
from pinchpoint.reporting.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def theory_errors(study: Study) -> dict[tuple[str, str], list[tuple[Point, float]]]:
    """Return (variant, mode) -> points with the error of theory, (theory - measured) / measured."""
    if study.on == "fake":
        return {}
    errors = {
        key: [
            (p, p.theory_bytes / p.peak_allocated_bytes - 1)
            for p in points
            if p.status == "ok" and p.theory_bytes and p.peak_allocated_bytes
        ]
        for key, points in style.lines_of(study).items()
    }
    return {key: pairs for key, pairs in errors.items() if pairs}


def draw(study: Study) -> Figure | None:
    errors = theory_errors(study)
    if not errors:
        return None
    figure, grid = style.canvas(rows=2, height=5.8, sharex=True, height_ratios=(2.2, 1))
    upper, lower = grid[0][0], grid[1][0]
    for (variant, mode), pairs in errors.items():
        look = style.look(study, variant, mode)
        sizes = [p.size for p, _ in pairs]
        name = style.name_of(study, variant, mode)
        upper.plot(
            sizes,
            [p.theory_bytes for p, _ in pairs],
            color=look["color"],
            linestyle=look["linestyle"],
            linewidth=1.2,
        )
        upper.plot(
            sizes, [p.peak_allocated_bytes for p, _ in pairs], label=name, **{**look, "linestyle": "none"}
        )
        lower.plot(sizes, [100 * error for _, error in pairs], **look)
    style.byte_axis(upper, "peak allocated")
    style.title(upper, study, "Theory (lines) vs measurement (markers)")
    style.legend(upper, loc="upper left")
    most = max(0.5, *(abs(100 * error) for pairs in errors.values() for _, error in pairs))
    lower.set_ylim(-1.2 * most, 1.2 * most)
    lower.axhline(0, color=style.MUTED, linewidth=0.9)
    lower.set_ylabel("theory - measured\n(% of measured)")
    style.size_axis(lower, study.axis)
    return figure
