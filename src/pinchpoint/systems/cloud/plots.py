"""Plots: mIoU and accuracy against the share of points that are kept, and rooms with their labels."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.files import write_bytes
from pinchpoint.reporting import palette
from pinchpoint.reporting.figures import style
from pinchpoint.systems.cloud.data.scene import Scene

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


# One colour per class of the generated rooms; further classes repeat them.
LABEL_COLOURS = ("#e3d9c6", "#17202b", "#c3ccd6", "#ee9b24", "#1563ba", "#089870", "#e7c500", "#b3261e")


@dataclass(frozen=True, eq=False)
class Labelled:
    """A scene with its true labels, and the labels to draw, (N,)."""

    name: str
    scene: Scene
    labels: np.ndarray

    @property
    def correct(self) -> float:
        return float(np.mean(self.labels == self.scene.labels))


def plot_labels(path: Path, panels: Sequence[Labelled], classes: Sequence[str]) -> Path:
    """Write a PNG of rooms seen from above a corner, each point in the colour of its label."""
    from matplotlib.lines import Line2D

    with style.figure_style():
        figure, axes = style.canvas(columns=len(panels), width=3.7 * len(panels), height=4.2)
        for panel, one in zip(axes[0], panels, strict=True):
            _draw_room(panel, one, classes)
        marks = [
            Line2D([], [], marker="o", linestyle="", color=LABEL_COLOURS[number % len(LABEL_COLOURS)])
            for number in range(len(classes))
        ]
        figure.legend(
            marks, classes, loc="outside lower center", ncols=len(classes), frameon=False, fontsize=9
        )
        data = io.BytesIO()
        figure.savefig(data, format="png")
    return write_bytes(path, data.getvalue())


def _draw_room(axes: Any, one: Labelled, classes: Sequence[str]) -> None:
    """Draw the farthest points first, without the ceiling and the walls between the room and the viewer."""
    scene = one.scene
    names = np.array(classes)[scene.labels]
    depth = scene.xyz[:, 0] + scene.xyz[:, 1]
    near = depth < (depth.min() + depth.max()) / 2
    below = scene.xyz[:, 2] < scene.xyz[:, 2].max() - 0.1
    keep = below & (names != "ceiling") & ~((names == "wall") & near)
    x, y, z = scene.xyz[keep].T
    order = np.argsort(-(x + y) + 0.6 * z)
    paint = np.array(LABEL_COLOURS)[one.labels[keep][order] % len(LABEL_COLOURS)]
    size = min(30.0, 70_000 / scene.points)
    axes.scatter((x - y)[order], (0.5 * (x + y) + 0.9 * z)[order], c=paint, s=size, linewidths=0)
    axes.set_aspect("equal")
    axes.set_axis_off()
    share = "" if one.labels is scene.labels else f", {one.correct:.0%} correct"
    axes.set_title(f"{one.name}, {scene.points:,} points{share}", loc="center", fontsize=10)
