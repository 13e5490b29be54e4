"""Training against inference: how many times the peak of one is that of the other, by size."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from pinchpoint.core.records import Study
from pinchpoint.reporting.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_APART = 0.05  # of the axis' height: what a line of text takes


def ratios(study: Study) -> dict[str, list[tuple[int, float]]]:
    """variant -> (size, peak of train / peak of infer), for sizes where both ran."""
    lines = style.lines_of(study)
    found = {}
    for variant in style.variants_of(study):
        train, infer = (
            {
                p.size: p.peak_allocated_bytes
                for p in lines.get((variant, mode), [])
                if p.status == "ok" and p.peak_allocated_bytes
            }
            for mode in ("train", "infer")
        )
        both = [(size, train[size] / infer[size]) for size in train if size in infer]
        if both:
            found[variant] = both
    return found


def apart(heights: list[float], *, least: float) -> list[float]:
    """The same heights, those that lie closer than `least` moved up until none is: labels that can be read."""
    placed = list(heights)
    order = sorted(range(len(heights)), key=lambda at: heights[at])
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + least)
    return placed


def draw(study: Study) -> Figure | None:
    found = ratios(study)
    if not found:
        return None
    figure, grid = style.canvas(height=4.0)
    axes = grid[0][0]
    top = 1.15 * max(value for both in found.values() for _, value in both)
    for variant, both in found.items():
        sizes, values = zip(*both, strict=True)
        axes.plot(sizes, values, label=style.drawable(variant), **style.look(study, variant, "train"))
    ends = [both[-1] for both in found.values()]
    for (size, value), height in zip(
        ends, apart([value for _, value in ends], least=_APART * top), strict=True
    ):
        axes.annotate(
            f"{value:.2f}",
            (size, height),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    axes.set_ylim(0, top)
    axes.axhline(1, color=style.MUTED, linewidth=0.9, linestyle=(0, (1, 2)))
    style.size_axis(axes, study)
    axes.set_ylabel("peak of train / peak of infer")
    style.title(axes, study, "Training against inference")
    if len(found) > 1:
        style.legend(axes, loc="best")
    return figure
