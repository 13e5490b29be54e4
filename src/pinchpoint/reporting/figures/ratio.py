"""Training vs inference: the ratio of their peaks, by size."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from pinchpoint.core.records import Study
from pinchpoint.reporting.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LABEL_HEIGHT = 0.05  # the height of a line of text as a share of the axis


def ratios(study: Study) -> dict[str, list[tuple[int, float]]]:
    """Return variant -> (size, peak of train / peak of infer), for sizes at which both ran."""
    lines = style.lines_of(study)
    by_variant = {}
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
            by_variant[variant] = both
    return by_variant


def separate_labels(heights: list[float], *, gap: float) -> list[float]:
    """Return the heights moved up where two are closer than `gap`, so that their labels do not overlap."""
    separate = list(heights)
    order = sorted(range(len(heights)), key=lambda at: heights[at])
    for below, above in pairwise(order):
        separate[above] = max(separate[above], separate[below] + gap)
    return separate


def draw(study: Study) -> Figure | None:
    by_variant = ratios(study)
    if not by_variant:
        return None
    figure, grid = style.canvas(height=4.0)
    axes = grid[0][0]
    top = 1.15 * max(value for both in by_variant.values() for _, value in both)
    for variant, both in by_variant.items():
        sizes, values = zip(*both, strict=True)
        axes.plot(sizes, values, label=style.drawable(variant), **style.look(study, variant, "train"))
    ends = [both[-1] for both in by_variant.values()]
    for (size, value), height in zip(
        ends, separate_labels([value for _, value in ends], gap=_LABEL_HEIGHT * top), strict=True
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
    style.size_axis(axes, study.axis)
    axes.set_ylabel("peak of train / peak of infer")
    style.title(axes, study, "Training vs inference")
    if len(by_variant) > 1:
        style.legend(axes, loc="best")
    return figure
