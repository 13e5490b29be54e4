"""The closed triangulation of every body: two caps of rings, and a tube of staggered rows between them.

At each of the two tips, `sectors` wedges meet; ring k of a cap has sectors x k points, and the last ring has
as many as each row of the tube. Rows are shifted by half a step against each other, so that the triangles are
nearly equilateral: with right-angled triangles, as from a grid of squares, the error of the panel method is
twice as large. The triangulation is mirror-symmetric, like a body without yaw. Letters: V vertices, F faces.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput

FEWEST_PANELS = 60


@dataclass(frozen=True)
class Counts:
    """Counts of a triangulation with 2 * sectors * rings * (rings + rows) triangles."""

    sectors: int  # wedges around a tip
    rings: int  # of a cap
    rows: int  # of the tube; even, so that the far cap is aligned

    @property
    def panels(self) -> int:
        return 2 * self.sectors * self.rings * (self.rings + self.rows)

    @property
    def steps(self) -> int:
        """The number of steps from tip to tip."""
        return 2 * self.rings + self.rows


@dataclass(frozen=True)
class Triangulation:
    along: Tensor  # (V,) from 0 at one tip to 1 at the other
    around: Tensor  # (V,) fraction of a full turn in (-1/2, 1/2]; mirrored points differ only in sign
    # (F, 3) anticlockwise from outside if `along` points to x and `around` goes from -z over y to z.
    faces: Tensor


def counts_for(panels: int, *, length: float, girth: float) -> Counts:
    """Counts for about `panels` triangles on a body with this girth and surface length from tip to tip."""
    if panels < FEWEST_PANELS:
        raise BadInput(
            f"{panels} panels are too few for a body; it needs at least {FEWEST_PANELS}.",
            hint=f"Request {FEWEST_PANELS} panels or more.",
        )

    def cost(counts: Counts) -> float:
        step, base = length / counts.steps, girth / (counts.sectors * counts.rings)
        # Between equilateral in the tube (0.87) and regular in the caps (0.95).
        slender = abs(math.log(step / (0.9 * base)))
        return 8 * abs(counts.panels / panels - 1) + slender + 0.05 * abs(counts.sectors - 6)

    candidates = []
    for sectors in (5, 6, 7):
        for rings in range(1, math.isqrt(panels // (2 * sectors)) + 2):
            rows = max(0, 2 * round((panels / (2 * sectors * rings) - rings) / 2))
            candidates.append(Counts(sectors, rings, rows))
    return min(candidates, key=cost)


def triangulation(counts: Counts) -> Triangulation:
    around_row = counts.sectors * counts.rings
    sizes = [1, *(counts.sectors * k for k in range(1, counts.rings)), *[around_row] * (counts.rows + 1)]
    sizes += sizes[: counts.rings][::-1]  # the far cap, back to one point
    starts = [0, *itertools.accumulate(sizes)]
    along, around = [], []
    for level, size in enumerate(sizes):
        shift = (level - counts.rings) % 2 if counts.rings <= level <= counts.rings + counts.rows else 0
        half_steps = 2 * torch.arange(size) + shift
        along.append(torch.full((size,), level / counts.steps, dtype=torch.float64))
        around.append(torch.where(half_steps > size, half_steps - 2 * size, half_steps).double() / (2 * size))
    levels = range(len(sizes) - 1)
    parts = [_between(counts, level, starts[level], starts[level + 1]) for level in levels]
    return Triangulation(torch.cat(along), torch.cat(around), torch.cat(parts))


def _between(counts: Counts, level: int, here: int, there: int) -> Tensor:
    """The triangles between two adjacent levels, whose points start at `here` and `there`."""
    if level < counts.rings:
        return _widening(counts.sectors, level, here, there)
    if level >= counts.rings + counts.rows:
        # The far cap is the near one seen from behind: the same triangles, flipped.
        return _widening(counts.sectors, counts.steps - 1 - level, there, here).flip(1)
    size = counts.sectors * counts.rings
    j = torch.arange(size)
    after = (j + 1) % size
    if (level - counts.rings) % 2 == 0:  # this row is not shifted, the next is by half a step
        triangles = [(here + j, here + after, there + j), (here + after, there + after, there + j)]
    else:
        triangles = [(here + j, here + after, there + after), (here + j, there + after, there + j)]
    return torch.cat([torch.stack(t, dim=1) for t in triangles])


def _widening(sectors: int, ring: int, inner: int, outer: int) -> Tensor:
    """The triangles between ring `ring` (0 is the tip) and the next wider one."""
    wedge = torch.arange(sectors)[:, None]

    def inside(i: Tensor) -> Tensor:
        return inner + (wedge * ring + i) % max(1, sectors * ring)

    def outside(i: Tensor) -> Tensor:
        return outer + (wedge * (ring + 1) + i) % (sectors * (ring + 1))

    i = torch.arange(ring + 1)
    out = [torch.stack([outside(i), inside(i), outside(i + 1)], dim=2).reshape(-1, 3)]
    if ring:
        i = torch.arange(ring)
        out.append(torch.stack([inside(i), inside(i + 1), outside(i + 1)], dim=2).reshape(-1, 3))
    return torch.cat(out)
