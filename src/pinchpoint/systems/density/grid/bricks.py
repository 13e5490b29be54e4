"""Bricks of probes that divide a grid, and the atom images around each brick.

The images are found on the device for a few bricks at a time, never stored for all. Letters: N bricks, B
probes per brick, T bricks processed together, K neighbour slots, I images. The last bricks along an axis may
extend beyond the grid; values there are discarded. The images of a brick are those within the cutoff of the
sphere around it: all images within the cutoff of any of its probes, and a few more. An unused slot lies
beyond the cutoff.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pinchpoint.kit.edges.edge_ops import is_fake, on_device, own_kernels
from pinchpoint.systems.density.files.volume import check_grid
from pinchpoint.systems.density.grid.periodic_images import images_of
from pinchpoint.systems.density.grid.structure import Structure

SLOTS = 4  # slot counts are multiples of this, so that a few shapes serve all bricks
_SHARE = 0.1  # of the cutoff: few neighbours of a brick up to this radius are beyond reach of all its probes
_MARGIN_A = 1e-3  # float32 distances are more accurate than this in cells of up to 1,000 angstrom
_AT_ONCE = 2**22  # pairs of a brick and an image whose distances are computed in one step


@dataclass(frozen=True)
class Bricks:
    """A division of a grid. grid: points along each lattice vector; sides: the same for one brick."""

    grid: tuple[int, int, int]
    sides: tuple[int, int, int]

    @property
    def along(self) -> tuple[int, int, int]:
        """The number of bricks along each lattice vector."""
        x, y, z = (-(-n // side) for n, side in zip(self.grid, self.sides, strict=True))
        return x, y, z

    @property
    def count(self) -> int:
        return math.prod(self.along)

    @property
    def probes(self) -> int:
        return math.prod(self.sides)

    def on_grid(self, values: np.ndarray) -> np.ndarray:
        """Arrange the values of all bricks in order, (N, B, ...), on the grid: (nx, ny, nz, ...)."""
        rest, (nx, ny, nz) = values.shape[2:], self.grid
        # The probes of a brick along z stay together, so they are copied as one item, which takes less time.
        line = np.dtype((np.void, values.itemsize * self.sides[2] * math.prod(rest)))
        lines = np.ascontiguousarray(values).reshape(-1).view(line)
        apart = lines.reshape(*self.along, *self.sides[:2]).transpose(0, 3, 1, 4, 2)
        whole = np.ascontiguousarray(apart).reshape(-1).view(values.dtype)
        whole = whole.reshape(*(a * s for a, s in zip(self.along, self.sides, strict=True)), *rest)
        return whole[:nx, :ny, :nz]


def bricks_of(grid: tuple[int, int, int], lattice: np.ndarray, cutoff_a: float) -> Bricks:
    """Return bricks of 4 x 4 x 4 probes on fine grids and of 2 x 2 x 2 on coarse grids."""
    check_grid(grid)
    fine = Bricks(grid, (4, 4, 4))
    return fine if radius_a(fine, lattice) <= _SHARE * cutoff_a else Bricks(grid, (2, 2, 2))


def radius_a(bricks: Bricks, lattice: np.ndarray) -> float:
    """Return the distance from the centre of a brick to its farthest probe, in angstrom."""
    return float(np.linalg.norm(_offsets(bricks, lattice), axis=1).max())


def _offsets(bricks: Bricks, lattice: np.ndarray) -> np.ndarray:
    """Return the probes relative to the centre of their brick, (B, 3), z fastest."""
    axes = np.meshgrid(*(np.arange(side) - (side - 1) / 2 for side in bricks.sides), indexing="ij")
    return np.stack(axes, axis=-1).reshape(-1, 3) @ (lattice / np.array(bricks.grid)[:, None])


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Everything needed to find the neighbours of any brick, on one device."""

    bricks: Bricks
    cutoff_a: float
    radius_a: float
    sides: Tensor  # (3,) float64, grid points along each side of a brick
    steps: Tensor  # (3, 3) float64, from one grid point to the next along each lattice vector
    offsets: Tensor  # (B, 3) probes relative to the centre of their brick
    positions: Tensor  # (I, 3) float64
    atom: Tensor  # (I,) int64
    middle: Tensor  # (3,) float64, centre of the cell: the origin of float32 distances

    @property
    def reach_a(self) -> float:
        """Images whose distance from the centre of a brick is less than this are near it."""
        return self.cutoff_a + self.radius_a + _MARGIN_A

    @property
    def far_a(self) -> float:
        """The coordinates of an unused slot."""
        return 2 * (self.cutoff_a + self.radius_a)

    @property
    def of_kernel(self) -> tuple[tuple[int, int, int], tuple[Tensor, ...], float, float]:
        """What our kernel needs to know, in the order of its arguments."""
        tensors = (self.sides, self.steps, self.middle, self.positions, self.atom)
        return self.bricks.along, tensors, self.reach_a, self.far_a

    def counts(self, numbers: Tensor) -> Tensor:
        """Return how many images are near each of the bricks with these numbers (T,), as (T,) int64.

        Without our kernel, works on a few bricks at a time.
        """
        if own_kernels(numbers):
            counts = torch.empty_like(numbers)
            if not is_fake(numbers) and len(numbers):
                from pinchpoint.systems.density.grid import bricks_triton

                with on_device(numbers):
                    bricks_triton.write_counts(self.of_kernel, numbers, counts)
            return counts
        block = max(1, _AT_ONCE // max(1, len(self.atom)))
        counts = [self._near(part).sum(dim=1) for part in numbers.split(block)]
        return torch.cat(counts) if counts else numbers.new_zeros(0)

    def block(self, tile: int) -> int:
        """Return how many bricks to process in one step, a multiple of `tile`.

        A compromise between few steps and little memory.
        """
        return max(1, _AT_ONCE // 4 // max(1, len(self.atom)) // tile) * tile

    def nearby(self, numbers: Tensor, slots: int) -> tuple[Tensor, Tensor]:
        """Return the atoms in the slots (T, K), and their positions relative to the brick's centre (T, K, 3).

        Images keep their order. A brick with more neighbours than slots loses the last ones: call `counts`
        first.
        """
        if own_kernels(numbers):
            atoms = numbers.new_empty(len(numbers), slots)
            apart = self.offsets.new_empty(len(numbers), slots, 3)
            if not is_fake(numbers) and atoms.numel():
                from pinchpoint.systems.density.grid import bricks_triton

                with on_device(numbers):
                    bricks_triton.write_nearby(self.of_kernel, numbers, atoms, apart)
            return atoms, apart
        near = self._near(numbers)
        slot = torch.where(near, near.cumsum(dim=1) - 1, slots).clamp_(max=slots)
        every = torch.arange(near.shape[1], device=near.device).expand_as(slot)
        # Images that are not near all go to one extra slot, which is removed.
        image = slot.new_full((len(numbers), slots + 1), -1).scatter_(1, slot, every)[:, :slots]
        used = image >= 0
        image = image.clamp_(min=0)
        # In float64 up to here. Relative to the brick, float32 resolves a few 1e-7 angstrom.
        apart = self.positions[image] - self._centres(numbers)[:, None]
        apart = torch.where(used[..., None], apart, self.far_a).to(self.offsets.dtype)
        return self.atom[image], apart

    def neighbours(self, numbers: Tensor, slots: int) -> tuple[Tensor, Tensor]:
        """Return the atoms in the slots (T, K), and the vectors from them to the probes (T, B, K, 3)."""
        atoms, apart = self.nearby(numbers, slots)
        return atoms, self.vectors(apart)

    def vectors(self, apart: Tensor) -> Tensor:
        """Convert the second result of `nearby`, (T, K, 3), to the vectors of every probe, (T, B, K, 3).

        In memory, each coordinate is contiguous, by tile, slot and probe: kernels treat pairs in that order.
        """
        vectors = self.offsets.T[:, None, None] - apart.permute(2, 0, 1)[..., None]
        return vectors.permute(1, 3, 2, 0)

    def _centres(self, numbers: Tensor) -> Tensor:
        """Return the centres (T, 3) float64 of the bricks with these numbers (T,)."""
        _, ny, nz = self.bricks.along
        place = torch.stack([numbers // (ny * nz), numbers // nz % ny, numbers % nz], dim=1)
        return (place * self.sides + (self.sides - 1) / 2) @ self.steps

    def _near(self, numbers: Tensor) -> Tensor:
        """Return which images are near which bricks, (T, I) bool."""
        # Sums of squares instead of a matrix product, which would lose images where TF32 is enabled.
        centres, images = ((x - self.middle).float() for x in (self._centres(numbers), self.positions))
        square = (centres[:, 0, None] - images[:, 0]).square_()
        for axis in (1, 2):
            apart = centres[:, axis, None] - images[:, axis]
            square.addcmul_(apart, apart)
        return square < self.reach_a**2

    def to(self, device: str | torch.device) -> Surroundings:
        tensors = {
            name: getattr(self, name).to(device)
            for name in ("sides", "steps", "offsets", "positions", "atom", "middle")
        }
        return replace(self, **tensors)


def surroundings_of(
    structure: Structure,
    bricks: Bricks,
    cutoff_a: float,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Surroundings:
    """Build the surroundings of a structure. dtype: that of the vectors that `neighbours` returns."""
    radius = radius_a(bricks, structure.lattice)
    images = images_of(structure, cutoff_a + _MARGIN_A)
    surroundings = Surroundings(
        bricks,
        cutoff_a,
        radius,
        sides=torch.tensor(bricks.sides, dtype=torch.float64),
        steps=torch.from_numpy(structure.lattice / np.array(bricks.grid)[:, None]),
        offsets=torch.from_numpy(_offsets(bricks, structure.lattice)).to(dtype),
        positions=torch.from_numpy(images.positions),
        atom=torch.from_numpy(images.atom),
        middle=torch.from_numpy(structure.lattice.sum(axis=0) / 2),
    )
    return surroundings.to(device)


@dataclass(frozen=True, eq=False)
class SlotClass:
    """Bricks with the same number of slots. rows: their indices into the list of bricks, in order."""

    slots: int
    rows: Tensor  # (n,) int64


def classes_of(surroundings: Surroundings, numbers: Tensor, *, least: int = 1) -> list[SlotClass]:
    """Group the rows of `numbers` by slots, most slots first.

    A class with fewer than `least` bricks is merged into the one with the next larger number of slots.
    """
    # On the host, because a GPU would take longer to launch all this than to compute it.
    units = (surroundings.counts(numbers).cpu().numpy() + SLOTS - 1) // SLOTS
    sizes = np.bincount(units)
    kinds = np.flatnonzero(sizes).tolist()
    classes: list[SlotClass] = []
    lowest = waiting = 0
    for kind in kinds:
        waiting += int(sizes[kind])
        # Empty space is never merged, because it costs nothing.
        if kind and waiting < least and kind != kinds[-1]:
            continue
        rows = np.flatnonzero((units >= lowest) & (units <= kind))
        classes.append(SlotClass(kind * SLOTS, torch.from_numpy(rows).to(numbers.device)))
        lowest, waiting = kind + 1, 0
    return classes[::-1]
