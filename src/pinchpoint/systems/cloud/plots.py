"""The plot of an evaluation: mIoU and accuracy against the share of points that are kept."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from pinchpoint.core.files import write_bytes
from pinchpoint.reporting import palette
from pinchpoint.reporting.figures import style

STYLES = {"uniform": ("-", "o"), "distance": ((0, (4, 2)), "s"), "one-per-cell": ("", "D")}
NAMES = {
    "uniform": "uniform",
    "distance": "fewer points far from a corner",
    "one-per-cell": "one point per cell",
}


def plot(path: Path, rows: list[dict[str, Any]], *, title: str, majority: str) -> Path:
    """Write a PNG.

    rows: the rows of an Evaluation; majority: the most frequent class, which a trivial model predicts
    everywhere.
    """
    with style.figure_style():
        figure, axes = style.canvas(columns=2, width=9.6, height=4.4)
        for panel, (key, name) in zip(axes[0], (("miou", "mIoU"), ("accuracy", "accuracy")), strict=True):
            _draw(panel, rows, key, majority)
            panel.set_title(name)
        axes[0][0].legend(loc="best")
        figure.suptitle(style.drawable(title), fontsize=11.5, fontweight="bold", x=0.01, ha="left")
        data = io.BytesIO()
        figure.savefig(data, format="png")
    return write_bytes(path, data.getvalue())


def _draw(axes: Any, rows: list[dict[str, Any]], key: str, majority: str) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    kinds = list(dict.fromkeys(row["thinning"] for row in rows))
    for kind in kinds:
        curve = sorted((row["kept"], row[key]) for row in rows if row["thinning"] == kind)
        stroke, marker = STYLES[kind]
        colour = palette.LIGHT[palette.of_series(kind, kinds)]
        axes.plot(
            [100 * share for share, _ in curve],
            [100 * value for _, value in curve],
            linestyle=stroke,
            marker=marker,
            color=colour,
            label=NAMES[kind],
        )
    trivial = sorted((row["kept"], row[f"majority_{key}"]) for row in rows if row["thinning"] == "uniform")
    axes.plot(
        [100 * share for share, _ in trivial],
        [100 * value for _, value in trivial],
        color=style.MUTED,
        linestyle=":",
        label=style.drawable(f"{majority} everywhere"),
    )
    axes.set_xscale("log")
    ticks = sorted({round(100 * row["kept"], 1) for row in rows if row["thinning"] == "uniform"})
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("points kept, %")
    axes.set_ylabel("%")
    axes.set_ylim(bottom=0)
