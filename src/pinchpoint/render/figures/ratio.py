"""Training against inference: how many times the peak of one is that of the other, by size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinchpoint.core.records import Study
from pinchpoint.render.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def draw(study: Study) -> Figure | None:
    found = ratios(study)
    if not found:
        return None
    figure, grid = style.canvas(height=4.0)
    axes = grid[0][0]
    for variant, both in found.items():
        sizes, values = zip(*both, strict=True)
        axes.plot(sizes, values, label=style.drawable(variant), **style.look(study, variant, "train"))
        axes.annotate(
            f"{values[-1]:.2f}", (sizes[-1], values[-1]), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8.5
        )
    axes.set_ylim(0, 1.15 * max(value for both in found.values() for _, value in both))
    axes.axhline(1, color=style.MUTED, linewidth=0.9, linestyle=(0, (1, 2)))
    style.size_axis(axes, study)
    axes.set_ylabel("peak of train / peak of infer")
    style.title(axes, study, "Training against inference")
    if len(found) > 1:
        style.legend(axes, loc="best")
    return figure
