"""The figure of `explain_memory`: peak, time and interval of every trick, coloured by verdict."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from pinchpoint.core.files import write_bytes
from pinchpoint.reporting import palette
from pinchpoint.reporting.figures import style

if TYPE_CHECKING:
    from pinchpoint.systems.radiance.explain.records import MemoryReport

COLOURS = {
    "helps": "good",
    "no effect": "idle-2",
    "changes training": "s6",
    "wrong": "bad",
    "crashes": "warn",
}


def draw(path: Path, report: MemoryReport) -> Path:
    """Write a PNG with one bar per trick, the baseline on top; a trick that crashes or is not timed has words
    instead.
    """
    from matplotlib.patches import Patch

    at = report.peaks_at
    gib = 2**30
    with style.figure_style():
        figure, axes = style.canvas(columns=2, width=10.4, height=6.4, sharey=True)
        peak_axes, time_axes = axes[0]
        for place, row in enumerate(report.rows):
            colour = palette.LIGHT["accent" if row.of == "-" else COLOURS[row.verdict]]
            if row.peak_allocated_bytes is None:
                for one in (peak_axes, time_axes):
                    one.text(0, place, " crashes", va="center", color=colour)
                continue
            peak_axes.barh(place, row.peak_allocated_bytes / gib, color=colour, height=0.7)
            peak_axes.text(
                row.peak_allocated_bytes / gib, place, f" {row.peak_ratio:.0%}", va="center", fontsize=8
            )
            if row.time_ratio is None:
                time_axes.text(0, place, " not timed", va="center", color=colour)
                continue
            time_axes.barh(place, row.time_ratio, color=colour, height=0.7)
            if row.time_low is not None:
                time_axes.plot(
                    [row.time_low, row.time_high], [place, place], color=style.MUTED, linewidth=1.2
                )
        peak_axes.set_yticks(range(len(report.rows)), [row.trick for row in report.rows])
        peak_axes.invert_yaxis()
        peak_axes.set_xlabel(
            f"{report.peaks} peak, GiB: {at['batch']} images, {at['patch']}² rays, "
            f"{at['samples']} points per ray"
        )
        time_axes.set_xlabel(f"iteration time relative to the baseline, on {report.device}")
        time_axes.axvline(1.0, color=style.MUTED, linewidth=0.8, linestyle=":")
        handles = [Patch(color=palette.LIGHT[role], label=verdict) for verdict, role in COLOURS.items()]
        time_axes.legend(handles=handles, loc="lower right")
        figure.suptitle(
            "What memory tricks do to a radiance-field GAN",
            fontsize=11.5,
            fontweight="bold",
            x=0.01,
            ha="left",
        )
        data = io.BytesIO()
        figure.savefig(data, format="png")
    return write_bytes(path, data.getvalue())
