"""Pictures of two densities on three planes of the cell: predicted, reference and their difference.

Each plane holds two lattice vectors and passes through one point. It is drawn as it lies in space, skewed where the cell is, a
patch a grid point and nothing interpolated; lengths are in angstrom. Atoms near the plane are marked. Colours follow the
square root of a value, so that tails and small differences are seen beside peaks; those of the difference reach the worst
point of the planes.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.files import write_bytes
from pinchpoint.reporting.figures import style
from pinchpoint.systems.density.files.volume import Volume

VALUES, DIFFERENCE = "magma", "PuOr_r"
NAMES = ("a", "b", "c")
_NEAR_A = 0.4  # of the plane: atoms that are marked
_CLIP = 0.5  # percent of the points that do not stretch the colours
_EVEN = 1e-3  # of the charge: a first Fourier component this small tells no centre


def centre_of_charge(density: np.ndarray) -> tuple[float, float, float]:
    """(nx, ny, nz) -> fractional, along each vector the mean on the circle it closes to; 0 where charge is even."""
    made = []
    weight = np.abs(density)
    for axis in range(3):
        along = weight.sum(axis=tuple(other for other in range(3) if other != axis))
        wave = (along * np.exp(2j * np.pi * np.arange(len(along)) / len(along))).sum()
        made.append(float(np.angle(wave) / (2 * np.pi) % 1.0) if abs(wave) > _EVEN * along.sum() else 0.0)
    return made[0], made[1], made[2]


def plane_of(density: np.ndarray, axis: int, at: float) -> np.ndarray:
    """(nx, ny, nz) -> the values on the grid plane nearest to a fraction along an axis; the other two axes in order."""
    return np.take(density, nearest(at, density.shape[axis]), axis=axis)


def nearest(at: float, points: int) -> int:
    """The grid plane nearest to a fraction."""
    return round(at * points) % points


def draw_slices(
    path: Path, predicted: np.ndarray, reference: Volume, *, at: tuple[float, float, float], title: str
) -> Path:
    """Write a PNG. predicted: (nx, ny, nz) on the grid of the reference; at: the point, fractional."""
    with style.applied():
        figure, axes = style.canvas(rows=3, columns=3, width=10.5, height=10.0)
        planes = [
            [plane_of(part, axis, at[axis]) for axis in range(3)] for part in (predicted, reference.total)
        ]
        off = [a - b for a, b in zip(*planes, strict=True)]
        most = (
            float(np.percentile(np.concatenate([p.ravel() for p in planes[0] + planes[1]]), 100 - _CLIP))
            or 1.0
        )
        worst = worst_of(off)
        from matplotlib.colors import FuncNorm, PowerNorm

        scale, around = PowerNorm(0.5, 0.0, most), FuncNorm((_root, _square), -worst, worst)
        parts = (
            ("predicted", planes[0], VALUES, scale),
            ("reference", planes[1], VALUES, scale),
            ("difference", off, DIFFERENCE, around),
        )
        for column, (name, values, colours, norm) in enumerate(parts):
            for row in range(3):
                _draw(axes[row][column], reference, row, at[row], values[row], colours, norm)
            axes[0][column].set_title(name, loc="center")
        for row in range(3):
            x, y = (NAMES[other] for other in range(3) if other != row)
            at_row = f"{NAMES[row]} = {nearest(at[row], reference.grid[row]) / reference.grid[row]:.3f}"
            axes[row][0].set_ylabel(f"{at_row}\ntowards {y}, Å")
            for column in range(3):
                axes[row][column].set_xlabel(f"along {x}, Å")
        _bar(figure, axes[:, :2], VALUES, scale, "e / Å³; colours follow the square root", extend="max")
        label = f"predicted − reference:\nat most {worst:.2g} e / Å³ here;\ncolours follow the square root"
        _bar(figure, axes[:, 2:], DIFFERENCE, around, label, extend="neither")
        figure.suptitle(style.drawable(title), fontsize=11.5, fontweight="bold", x=0.01, ha="left")
        data = io.BytesIO()
        figure.savefig(data, format="png")
    return write_bytes(path, data.getvalue())


def worst_of(planes: list[np.ndarray]) -> float:
    """The largest |difference| of the planes, which the colours reach; 1 where there is none."""
    return max(float(np.abs(plane).max()) for plane in planes) or 1.0


def _root(values: Any) -> Any:
    return np.sign(values) * np.sqrt(np.abs(values))


def _square(values: Any) -> Any:
    return np.sign(values) * np.square(values)


def _draw(
    axes: Any, volume: Volume, axis: int, at: float, values: np.ndarray, colours: str, norm: Any
) -> None:
    first, second = (volume.lattice[other] for other in range(3) if other != axis)
    right = first / np.linalg.norm(first)
    up = second - (second @ right) * right
    up /= np.linalg.norm(up)
    frame = np.stack([right, up], axis=1)  # (3, 2)
    edges = [(np.arange(n + 1) - 0.5) / n for n in values.shape]
    places = edges[0][:, None, None] * first + edges[1][None, :, None] * second
    flat = places @ frame
    axes.pcolormesh(
        flat[..., 0], flat[..., 1], values, cmap=colours, norm=norm, shading="flat", rasterized=True
    )
    away = volume.positions[:, axis] - at
    height = abs(float(np.linalg.det(volume.lattice))) / float(np.linalg.norm(np.cross(first, second)))
    near = np.abs(away - np.round(away)) * height < _NEAR_A
    inside = np.delete(volume.positions[near] % 1.0, axis, axis=1)
    dots = (inside[:, :1] * first + inside[:, 1:] * second) @ frame
    axes.plot(
        dots[:, 0],
        dots[:, 1],
        linestyle="none",
        marker="o",
        markersize=3.5,
        markerfacecolor="none",
        markeredgecolor="0.6",
    )
    axes.set_aspect("equal")
    axes.grid(False)


def _bar(figure: Any, axes: Any, colours: str, norm: Any, label: str, *, extend: str) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.ticker import MaxNLocator

    shown = ScalarMappable(norm, cmap=colours)
    bar = figure.colorbar(
        shown,
        ax=axes.ravel().tolist(),
        location="bottom",
        shrink=0.6,
        aspect=30,
        pad=0.02,
        label=label,
        extend=extend,
        ticks=MaxNLocator(4),
    )
    bar.outline.set_visible(False)
    bar.ax.grid(False)
