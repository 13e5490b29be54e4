"""Choice of the grid of a cell, from a number of points or a spacing, in sizes that suit Fourier transforms.

Such smooth numbers are even and have no prime factor above 7.
"""

from __future__ import annotations

import math

import numpy as np

from pinchpoint.core import host_memory
from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import show_bytes
from pinchpoint.systems.density.files.volume import check_grid
from pinchpoint.systems.density.grid.structure import reduced_cell

SPACING_A = 0.1
_BYTES = 112  # most main memory per grid point, with a spin density, until the CHGCAR is written
_MANY = 8  # times the points of the reduced cell: above this, a cell is needlessly skewed


def is_smooth(number: int) -> bool:
    """Return whether a number has no prime factor above 7."""
    for prime in (2, 3, 5, 7):
        while number % prime == 0:
            number //= prime
    return number == 1


def smooth_from(number: int) -> int:
    """Return the smallest even smooth number that is at least `number`."""
    number = max(2, number + number % 2)
    while not is_smooth(number):
        number += 2
    return number


def choose_grid(
    lattice: np.ndarray, *, grid: int | tuple[int, int, int] | None = None, spacing_a: float | None = None
) -> tuple[int, int, int]:
    """Return the given grid after checks, or the coarsest smooth grid with at most this spacing.

    grid: a single number is used for all three directions.
    """
    if grid is not None and spacing_a is not None:
        raise BadInput("A grid and a spacing were both given.", hint="Leave one of them out.")
    if grid is None:
        step = SPACING_A if spacing_a is None else spacing_a
        if not (math.isfinite(step) and step > 0):
            raise BadInput(
                f"A spacing of {step:g} angstrom is not above 0.",
                hint=f"Set --spacing to a number above 0, such as {SPACING_A}.",
            )
        lengths = np.linalg.norm(lattice, axis=1) / step
        if not lengths.max() <= 1e6:
            raise BadInput(
                f"A spacing of {step:g} angstrom needs more than a million points along "
                f"{lengths.max() * step:.4g} angstrom.",
                hint=_coarser(lattice),
            )
        points = _spaced(lengths)
    elif isinstance(grid, int | np.integer):
        points = (int(grid), int(grid), int(grid))
    else:
        points = grid
    check_grid(points)
    if math.prod(points) * _BYTES > host_memory.free_bytes():
        raise _too_many(math.prod(points), lattice)
    return points


def skew_notes(lattice: np.ndarray, points: tuple[int, int, int]) -> tuple[str, ...]:
    """Return a note if a skewed cell needs far more grid points than its reduced cell."""
    share = _needless(lattice)
    if share < _MANY:
        return ()
    return (
        f"the cell is strongly skewed: its {math.prod(points):,} grid points are about {share:,.0f} times as "
        "many as its reduced cell needs at the same spacing; reducing it (Niggli) saves as much time",
    )


def _spaced(lengths: np.ndarray) -> tuple[int, int, int]:
    # 10 angstrom at a spacing of 0.1 need 100 points, whatever the last bit of the quotient is.
    nx, ny, nz = (smooth_from(math.ceil(length - 1e-9)) for length in lengths)
    return nx, ny, nz


def _needless(lattice: np.ndarray) -> float:
    """Return how many times more points the vectors of a cell need than the shortest ones of its lattice."""
    volume_given, least = (
        float(np.linalg.norm(cell, axis=1).prod()) for cell in (lattice, reduced_cell(lattice))
    )
    return volume_given / least


def parse_grid(text: str) -> tuple[int, int, int]:
    """Parse `80,80,80` or `80x80x80`, or one number for all three."""
    words = text.lower().replace("x", ",").split(",")
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    if len(numbers) == 1:
        numbers *= 3
    if len(numbers) != 3:
        raise BadInput(f"{text!r} is not a grid.", hint="Give three whole numbers, such as 80,80,80.")
    return check_grid((numbers[0], numbers[1], numbers[2]))


def _too_many(points: int, lattice: np.ndarray) -> BadInput:
    text = f"{points:,}" if points < 10**15 else f"{points:.1e}"
    return BadInput(
        f"A grid of {text} points takes {show_bytes(points * _BYTES)} of main memory, but only "
        f"{show_bytes(host_memory.free_bytes())} are free.",
        hint=_coarser(lattice),
    )


def _coarser(lattice: np.ndarray) -> str:
    share = _needless(lattice)
    skewed = (
        f"Reduce the cell (Niggli), which then needs about {share:,.0f} times fewer points; or give"
        if share >= _MANY
        else "Give"
    )
    return f"{skewed} a coarser --grid or a wider --spacing."
