"""Notes on the electron count and the smallest value of a density: errors of the grid, charge or model.

A grid that is too coarse for the peaks at the nuclei gives a wrong count by itself. Spherical atoms show by
how much: their density is known, so the sum over the grid points near them can be compared with the integral.
"""

from __future__ import annotations

import numpy as np

from pinchpoint.systems.density.data.atomic import AtomTable, load_table
from pinchpoint.systems.density.files.volume import Volume
from pinchpoint.systems.density.grid.elements import SYMBOLS
from pinchpoint.systems.density.grid.grids import SPACING_A
from pinchpoint.systems.density.grid.structure import Structure, reduced_cell

OFF = 0.01  # fraction of the electrons: a larger deviation of the count gets a note
FAR_OFF = 0.05  # the same where only the requested count is known, not that of the neutral atoms
NEGATIVE, NEGATIVE_CHARGE = 1e-3, 1e-4  # e / angstrom^3, and fraction of the electrons: less is rounding
_FEWEST = 0.1  # electrons per atom: no density of a structure has fewer
_PEAK_A = 2.5  # distance from a nucleus beyond which the density is smooth
_ATOMS = 64  # most atoms whose peaks are examined
_COARSE_A = 0.5  # spacing above which the count means nothing
_FINE_A = 0.03  # spacing below which the count is exact
_AT_ONCE = 2**20  # grid points around atoms per chunk


def count_notes(
    volume: Volume, raw: float, *, neutral: int | None, requested: float | None
) -> tuple[str, ...]:
    """Return notes on the electron count.

    volume: the density predicted by the model, which integrates to `raw` electrons; neutral: the count of the
    neutral atoms, if known; requested: the count to scale to.
    """
    notes = []
    if requested is not None and neutral is not None and abs(requested - neutral) > OFF * neutral:
        notes.append(
            f"{requested:g} electrons were requested, but the neutral atoms have {neutral}: the model "
            "ignores charge"
        )
    if absurd := _why_absurd(volume.structure, raw):
        spacing = spacing_of(volume)
        coarse = (
            f"use a grid finer than {spacing:.2g} angstrom"
            if spacing > _COARSE_A
            else "train the model longer, or with a lower --lr"
        )
        notes.append(f"the model predicts {raw:.4g} electrons, {absurd}: this is not a density; {coarse}")
        return tuple(notes)
    if neutral is None:
        if requested is not None and abs(requested / raw - 1) > FAR_OFF:
            notes.append(
                f"the model predicts {raw:.4g} electrons, but {requested:g} were requested, which differs by "
                f"more than {FAR_OFF:.0%}: the structure is unlike the training data or charged, or the "
                f"grid is too coarse ({spacing_of(volume):.2g} angstrom)"
            )
        return tuple(notes)
    off = raw - neutral
    if abs(off) > OFF * neutral:
        by_grid, spacing = grid_error(volume.structure, volume.grid), spacing_of(volume)
        by_model = off - by_grid
        text = (
            f"the model predicts {raw:.5g} electrons, but the neutral atoms have {neutral} "
            f"({off / neutral:+.1%}: grid {by_grid:+.2g} electrons, model {by_model:+.2g} electrons)"
        )
        coarse = (
            f"the grid is too coarse for the peaks ({spacing:.2g} angstrom): give --spacing "
            f"{min(SPACING_A, spacing / 2):.2g}"
        )
        strange = "the structure is unlike the training data, or charged"
        if abs(by_grid) >= abs(by_model) and by_grid * off > 0:
            notes.append(f"{text}: {coarse}")
        elif abs(by_grid) > OFF * neutral:
            notes.append(f"{text}: {strange}; in addition, {coarse}")
        else:
            notes.append(f"{text}: {strange}; the grid is fine enough")
    return tuple(notes)


def _why_absurd(structure: Structure, raw: float) -> str:
    """Return why these atoms cannot have this many electrons; empty if they can."""
    if not raw > 0:
        return "which is not above zero"
    if raw > (every := sum(SYMBOLS.index(symbol) + 1 for symbol in structure.species)) * (1 + 2 * FAR_OFF):
        return f"more than all {every:,} electrons of the atoms, including the cores"
    if raw < _FEWEST * len(structure.species):
        return f"fewer than {_FEWEST:g} per atom"
    return ""


def negative_notes(volume: Volume) -> tuple[str, ...]:
    """Return a note if the density is negative by more than rounding errors."""
    least = float(volume.total.min())
    if least >= 0:
        return ()
    charge = float(np.minimum(volume.total, 0).mean()) * volume.structure.volume
    if least > -NEGATIVE and charge > -NEGATIVE_CHARGE * max(abs(volume.electrons), 1.0):
        return ()
    below = np.count_nonzero(volume.total < 0)
    return (
        f"the density is negative at {below:,} of {volume.total.size:,} grid points: down to {least:.2g} "
        f"e/angstrom^3, {charge:.2g} electrons in total",
    )


def spacing_of(volume: Volume) -> float:
    """Return the largest distance between neighbouring grid points, in angstrom."""
    return float((np.linalg.norm(volume.lattice, axis=1) / volume.grid).max())


def grid_error(structure: Structure, grid: tuple[int, int, int], *, table: AtomTable | None = None) -> float:
    """Return by how many electrons the sum over the grid differs from the integral for spherical atoms.

    All species must have a table. Only the peaks are summed: the density of each atom is smoothly brought to
    zero at 2.5 angstrom. In a large structure, a subset of the atoms represents all.
    """
    table = table or load_table()
    # Describe the points as a lattice with the shortest vectors: in a skewed cell, the steps may be nearly
    # parallel.
    step = reduced_cell(structure.lattice / np.array(grid)[:, None])
    if np.linalg.norm(step, axis=1).max() < _FINE_A:
        return 0.0
    some = np.unique(np.linspace(0, len(structure.species) - 1, _ATOMS).astype(int))
    inverse = np.linalg.inv(step)
    planes = np.floor(
        _PEAK_A * np.linalg.norm(inverse, axis=0)
    )  # number of planes within reach along each vector
    voxel, excess = structure.volume / np.prod(grid), 0.0
    for atom in some:
        # One grid point near the atom, then all around it; a grid coarser than the peak has one or none.
        row = _peak(table, structure.species[atom])
        away = -((structure.cartesian[atom] @ inverse) % 1.0)
        along, *axes = (np.arange(-reach, reach + 2) + part for reach, part in zip(planes, away, strict=True))
        across = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2) @ step[1:]
        for part in np.split(along, range(0, len(along), max(1, _AT_ONCE // len(across)))[1:]):
            apart = np.linalg.norm(part[:, None, None] * step[0] + across, axis=2)
            excess += np.interp(apart, table.radii, row, right=0.0).sum() * voxel
        excess -= 4 * np.pi * float(row @ table.radii**2) * table.radii[1]  # zero at both ends
    return float(excess) * len(structure.species) / len(some)


def _peak(table: AtomTable, symbol: str) -> np.ndarray:
    way = np.clip(table.radii / _PEAK_A, 0, 1)
    return table.row(symbol) * (1 - way**3 * (10 - 15 * way + 6 * way**2))
