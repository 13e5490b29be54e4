"""Comparison of two densities on the same grid: NMAE, integrals, the worst point and pictures of slices.

NMAE = sum |a - b| / sum |b| over the grid points, where b is the reference: the measure by which published
density models are compared. Densities on other grids or in other cells are refused, not interpolated.

The pictures show three planes of the cell: predicted, reference and difference. Each plane contains two
lattice vectors and passes through one point. It is drawn as it lies in space, skewed where the cell is, with
one patch per grid point and no interpolation; lengths are in angstrom. Atoms near the plane are marked.
Colours follow the square root of a value, so that tails and small differences are visible beside peaks; the
colours of the difference extend to the worst point of the planes.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pinchpoint.core import machine as _machine
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes
from pinchpoint.core.records import Record, now
from pinchpoint.reporting.figures import style
from pinchpoint.systems.common.colour_bar import add_colour_bar
from pinchpoint.systems.common.evaluations import (
    check_evaluation_folder,
    make_evaluation_folder,
    save_evaluation,
)
from pinchpoint.systems.density.files.formats import read_volume
from pinchpoint.systems.density.files.volume import Volume

DEFINITION = "NMAE = sum |predicted - reference| / sum |reference| over the grid points"
SLICES = "slices.png"
_SAME_CELL = 1e-4  # fraction of the longest lattice vector: some programs write six decimals
_SAME_PLACE_A = 0.01


@dataclass(frozen=True)
class Evaluation(Record):
    """The comparison of two densities, stored as evaluation.json."""

    kind: ClassVar[str] = "density-evaluation"
    target: str  # path of the predicted density
    reference: str
    grid: tuple[int, int, int]
    nmae: float
    electrons: float
    electrons_reference: float
    rms: float  # e / angstrom^3
    worst: float  # largest |difference|, e / angstrom^3
    worst_at: tuple[float, float, float]  # fractional
    spin_nmae: float | None  # None unless both have a spin density
    moment: float | None
    moment_reference: float | None
    slices_at: tuple[float, float, float]  # fractional
    definition: str = DEFINITION
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        off = self.electrons - self.electrons_reference
        rows = [
            ("predicted", self.target),
            ("reference", self.reference),
            ("grid", " x ".join(map(str, self.grid))),
            ("NMAE", f"{self.nmae:.3%}"),
            ("electrons", f"{self.electrons:.6g}, reference {self.electrons_reference:.6g} ({off:+.3g})"),
            ("root mean square", f"{self.rms:.4g} e/angstrom^3"),
            ("worst", f"{self.worst:.4g} e/angstrom^3 at {', '.join(f'{x:.3f}' for x in self.worst_at)}"),
        ]
        if self.spin_nmae is not None:
            rows.append(("spin NMAE", f"{self.spin_nmae:.3%}"))
            rows.append(("moment", f"{self.moment:.6g}, reference {self.moment_reference:.6g}"))
        return rows


def evaluate(
    predicted: str | Path,
    reference: str | Path,
    output: str | Path | None = None,
    *,
    at: tuple[float, float, float] | None = None,
) -> Evaluation:
    """Compare two files.

    output: a folder for evaluation.json and slices.png. at: the fractional point where the planes cross; by
    default the reference's centre of charge.
    """
    folder = None if output is None else check_evaluation_folder(output)
    if at is not None:
        _check_place(at, at)
    ours, theirs = read_volume(predicted), read_volume(reference)
    check_comparable(ours, theirs)
    where = centre_of_charge(theirs.total) if at is None else at
    notes, files = _notes(ours, theirs), ()
    nmae = nmae_of(ours.total, theirs.total)
    if folder is not None:
        make_evaluation_folder(folder)
        title = f"{theirs.structure.formula}: NMAE {nmae:.2%}"
        files = (draw_slices(folder / SLICES, ours.total, theirs, at=where, title=title).name,)
    off = np.abs(ours.total - theirs.total)
    place = np.unravel_index(int(off.argmax()), off.shape)
    x, y, z = (int(i) / n for i, n in zip(place, ours.grid, strict=True))
    spins = None if ours.spin is None or theirs.spin is None else (ours.spin, theirs.spin)
    evaluation = Evaluation(
        target=str(predicted),
        reference=str(reference),
        grid=ours.grid,
        nmae=nmae,
        electrons=ours.electrons,
        electrons_reference=theirs.electrons,
        rms=float(np.sqrt(np.square(off).mean())),
        worst=float(off.max()),
        worst_at=(x, y, z),
        spin_nmae=None if spins is None or not np.abs(spins[1]).sum() > 0 else nmae_of(*spins),
        moment=None if spins is None else ours.moment,
        moment_reference=None if spins is None else theirs.moment,
        slices_at=where,
        notes=notes,
        files=files,
    )
    if folder is not None:
        save_evaluation(evaluation, folder, own=(SLICES,))
    return evaluation


def parse_place(text: str) -> tuple[float, float, float]:
    """Parse `0.5,0.5,0.5`, fractions of the lattice vectors."""
    try:
        x, y, z = (float(word) for word in text.split(","))
    except ValueError:
        x = y = z = float("nan")
    _check_place((x, y, z), text)
    return x, y, z


def _check_place(at: tuple[float, float, float], text: object) -> None:
    if len(at) != 3 or not all(0 <= part < 1 for part in at):
        raise BadInput(
            f"{text!r:.60} is not a point in the cell.",
            hint="Give three fractions of the lattice vectors, from 0 to below 1, such as 0.5,0.5,0.5.",
        )


def nmae_of(predicted: np.ndarray, reference: np.ndarray) -> float:
    """Return sum |a - b| / sum |b|. Raises BadInput where the reference is zero everywhere."""
    scale = float(np.abs(reference).sum())
    if not scale > 0:
        raise BadInput(
            "The reference density is zero everywhere, so a relative error is not defined.",
            hint="Give a reference density that is not zero.",
        )
    return float(np.abs(predicted - reference).sum()) / scale


def check_comparable(predicted: Volume, reference: Volume) -> None:
    """Raise BadInput unless both densities have the same grid and cell."""
    if predicted.grid != reference.grid:
        grids = [" x ".join(map(str, volume.grid)) for volume in (predicted, reference)]
        raise BadInput(
            f"A grid of {grids[0]} points cannot be compared with one of {grids[1]}.",
            hint=f"Predict on the reference's grid: --grid {','.join(map(str, reference.grid))}.",
        )
    apart = float(np.abs(predicted.lattice - reference.lattice).max())
    if apart > _SAME_CELL * np.linalg.norm(reference.lattice, axis=1).max():
        raise BadInput(
            f"The cells differ: their vectors are up to {apart:.4g} angstrom apart.",
            hint="Predict for the structure of the reference: density predict accepts its file.",
        )


def _notes(predicted: Volume, reference: Volume) -> tuple[str, ...]:
    notes = []
    if sorted(predicted.species) != sorted(reference.species):
        notes.append(f"the atoms differ: {predicted.structure.formula} and {reference.structure.formula}")
    elif predicted.species == reference.species:
        off = predicted.positions - reference.positions
        apart = float(np.linalg.norm((off - np.round(off)) @ reference.lattice, axis=1).max())
        if apart > _SAME_PLACE_A:
            notes.append(f"the atoms are up to {apart:.3g} angstrom apart")
    if (predicted.spin is None) != (reference.spin is None):
        notes.append(
            f"only the {'predicted' if predicted.spin is not None else 'reference'} density has a spin part, "
            "so spin is not compared"
        )
    return tuple(notes)


VALUES, DIFFERENCE = "magma", "PuOr_r"
NAMES = ("a", "b", "c")
_NEAR_A = 0.4  # atoms this close to a plane are marked
_CLIP = 0.5  # percent of the points that may exceed the colour scale
_EVEN = 1e-3  # fraction of the charge: a first Fourier component below this defines no centre


def centre_of_charge(density: np.ndarray) -> tuple[float, float, float]:
    """Return the fractional centre of a density (nx, ny, nz): along each vector the circular mean, 0 where
    even.
    """
    centre = []
    weight = np.abs(density)
    for axis in range(3):
        along = weight.sum(axis=tuple(other for other in range(3) if other != axis))
        wave = (along * np.exp(2j * np.pi * np.arange(len(along)) / len(along))).sum()
        centre.append(float(np.angle(wave) / (2 * np.pi) % 1.0) if abs(wave) > _EVEN * along.sum() else 0.0)
    return centre[0], centre[1], centre[2]


def plane_of(density: np.ndarray, axis: int, at: float) -> np.ndarray:
    """Return the values of a density (nx, ny, nz) on the grid plane nearest to a fraction along an axis."""
    return np.take(density, nearest(at, density.shape[axis]), axis=axis)


def nearest(at: float, points: int) -> int:
    """Return the index of the grid plane nearest to a fraction."""
    return round(at * points) % points


def draw_slices(
    path: Path, predicted: np.ndarray, reference: Volume, *, at: tuple[float, float, float], title: str
) -> Path:
    """Write a PNG of the three planes.

    predicted: (nx, ny, nz) on the reference's grid; at: fractional point.
    """
    with style.figure_style():
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
        from matplotlib.ticker import MaxNLocator

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
        label = "e / Å³; colours follow the square root"
        add_colour_bar(figure, axes[:, :2], VALUES, scale, label, extend="max", ticks=MaxNLocator(4))
        label = f"predicted − reference:\nat most {worst:.2g} e / Å³ here;\ncolours follow the square root"
        add_colour_bar(figure, axes[:, 2:], DIFFERENCE, around, label, extend="neither", ticks=MaxNLocator(4))
        figure.suptitle(style.drawable(title), fontsize=11.5, fontweight="bold", x=0.01, ha="left")
        data = io.BytesIO()
        figure.savefig(data, format="png")
    return write_bytes(path, data.getvalue())


def worst_of(planes: list[np.ndarray]) -> float:
    """Return the largest |difference| of the planes, the end of the colour scale; 1 where there is none."""
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
