"""What the count of a density's electrons and its least value tell: of the grid, of the charge, of the model.

A grid that is too coarse for the peaks at the nuclei counts wrongly by itself. How much, spherical atoms tell: their density
is known, so the sum over the grid points near them can be held against the integral.
"""

from __future__ import annotations

import numpy as np

from pinchpoint.systems.density.data.atomic import AtomTable, load_table
from pinchpoint.systems.density.files.volume import Volume
from pinchpoint.systems.density.grid.grids import SPACING_A
from pinchpoint.systems.density.grid.structure import SYMBOLS, Structure, reduced_cell

OFF = 0.01  # of the electrons: a count so far off is noted
FAR_OFF = 0.05  # the same where the count of the neutral atoms is not known, but one was asked for
NEGATIVE, NEGATIVE_CHARGE = 1e-3, 1e-4  # in e / angstrom^3, and of the electrons: less is rounding
_FEWEST = 0.1  # electrons an atom: no density of a structure has fewer
_PEAK_A = 2.5  # from a nucleus: what lies beyond is smooth
_ATOMS = 64  # whose peaks are looked at
_COARSE_A = 0.5  # between points: such a grid may count anything
_FINE_A = 0.03  # between points: such a grid misses nothing
_AT_ONCE = 2**20  # grid points round an atom


def count_notes(volume: Volume, raw: float, *, neutral: int | None, asked: float | None) -> tuple[str, ...]:
    """Sentences on the count. volume: as the model gave it, with `raw` electrons; neutral: of the atoms, where it is known."""
    notes = []
    if asked is not None and neutral is not None and abs(asked - neutral) > OFF * neutral:
        notes.append(
            f"{asked:g} electrons asked for, {neutral} in the neutral atoms: the model knows of no charge"
        )
    if absurd := _absurd(volume.structure, raw):
        spacing = spacing_of(volume)
        coarse = (
            f"give a finer grid than {spacing:.2g} angstrom"
            if spacing > _COARSE_A
            else "train the model more, or with a lower --lr"
        )
        notes.append(f"{raw:.4g} electrons by the model, {absurd}: this is no density; {coarse}")
        return tuple(notes)
    if neutral is None:
        if asked is not None and abs(asked / raw - 1) > FAR_OFF:
            notes.append(
                f"{raw:.4g} electrons by the model, {asked:g} asked for, more than {FAR_OFF:.0%} apart: the structure is unlike "
                f"the training data, charged, or the grid is too coarse ({spacing_of(volume):.2g} angstrom)"
            )
        return tuple(notes)
    off = raw - neutral
    if abs(off) > OFF * neutral:
        by_grid, spacing = grid_error(volume.structure, volume.grid), spacing_of(volume)
        by_model = off - by_grid
        told = (
            f"{raw:.5g} electrons by the model, {neutral} in the neutral atoms ({off / neutral:+.1%}: grid {by_grid:+.2g}, "
            f"model {by_model:+.2g})"
        )
        coarse = f"the grid is too coarse for the peaks ({spacing:.2g} angstrom): give --spacing {min(SPACING_A, spacing / 2):.2g}"
        strange = "the structure is unlike the training data, or charged"
        if abs(by_grid) >= abs(by_model) and by_grid * off > 0:
            notes.append(f"{told}: {coarse}")
        elif abs(by_grid) > OFF * neutral:
            notes.append(f"{told}: {strange}; besides, {coarse}")
        else:
            notes.append(f"{told}: {strange}; the grid is fine enough")
    return tuple(notes)


def _absurd(structure: Structure, raw: float) -> str:
    """Why no atoms of this kind could have so many electrons; empty where they could."""
    if not raw > 0:
        return "no number above zero"
    if raw > (every := sum(SYMBOLS.index(symbol) + 1 for symbol in structure.species)) * (1 + 2 * FAR_OFF):
        return f"more than all {every:,} of the atoms, cores too"
    if raw < _FEWEST * len(structure.species):
        return f"less than {_FEWEST:g} an atom"
    return ""


def negative_notes(volume: Volume) -> tuple[str, ...]:
    """A sentence where the density is below zero by more than rounding."""
    below = volume.total < 0
    least = float(volume.total.min())
    charge = float(volume.total[below].sum()) * volume.structure.volume / volume.total.size
    if least > -NEGATIVE and charge > -NEGATIVE_CHARGE * max(abs(volume.electrons), 1.0):
        return ()
    return (
        f"the density is below zero at {int(below.sum()):,} of {below.size:,} grid points: {least:.2g} e/angstrom^3 at the "
        f"lowest, {charge:.2g} electrons in all",
    )


def spacing_of(volume: Volume) -> float:
    """The most between two neighbouring grid points, angstrom."""
    return float((np.linalg.norm(volume.lattice, axis=1) / volume.grid).max())


def grid_error(structure: Structure, grid: tuple[int, int, int], *, table: AtomTable | None = None) -> float:
    """Electrons by which a sum over the grid misses the integral over spherical atoms; atoms of the table only.

    Only the peaks are summed: each atom's density is brought to zero at 2.5 angstrom. Of many atoms some stand for all.
    """
    table = table or load_table()
    # The points as a lattice by its shortest vectors: steps of a skewed cell may all but lie along one line.
    step = reduced_cell(structure.lattice / np.array(grid)[:, None])
    if np.linalg.norm(step, axis=1).max() < _FINE_A:
        return 0.0
    some = np.unique(np.linspace(0, len(structure.species) - 1, _ATOMS).astype(int))
    inverse = np.linalg.inv(step)
    planes = np.floor(_PEAK_A * np.linalg.norm(inverse, axis=0))  # so many lie within reach along each vector
    voxel, missed = structure.volume / np.prod(grid), 0.0
    for atom in some:
        # A grid point near the atom, then all around: grids coarser than the peak have one or none.
        row = _peak(table, structure.species[atom])
        away = -((structure.cartesian[atom] @ inverse) % 1.0)
        along, *axes = (np.arange(-reach, reach + 2) + part for reach, part in zip(planes, away, strict=True))
        across = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2) @ step[1:]
        for part in np.split(along, range(0, len(along), max(1, _AT_ONCE // len(across)))[1:]):
            apart = np.linalg.norm(part[:, None, None] * step[0] + across, axis=2)
            missed += np.interp(apart, table.radii, row, right=0.0).sum() * voxel
        missed -= 4 * np.pi * float(row @ table.radii**2) * table.radii[1]  # zero at both ends
    return float(missed) * len(structure.species) / len(some)


def _peak(table: AtomTable, symbol: str) -> np.ndarray:
    way = np.clip(table.radii / _PEAK_A, 0, 1)
    return table.row(symbol) * (1 - way**3 * (10 - 15 * way + 6 * way**2))
