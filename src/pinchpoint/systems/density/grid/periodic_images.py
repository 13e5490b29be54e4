"""Periodic images of the atoms of a cell, and edges between atoms; complete for cells of any shape.

Letters: A atoms, I images, E edges. Cells may be skewed or smaller than the cutoff, and the number of images
is not limited. An image can matter to a point of the cell only if, along each of the three directions, it
lies within reach of the slab between two lattice planes. These images are kept: all that are needed, and a
few more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from pinchpoint.core import host_memory
from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import show_bytes
from pinchpoint.systems.density.grid.structure import Structure, check_structure
from pinchpoint.systems.density.model.atom_network import AtomGraph
from pinchpoint.systems.density.model.config import DensityConfig

_BLOCK = 64  # atoms whose neighbours are searched together
_BYTES = 96  # of main memory per candidate image


@dataclass(frozen=True, eq=False)
class Images:
    """Atoms of a cell and their periodic images, in Cartesian coordinates.

    home: (A, 3), the atoms inside the cell; positions: (I, 3), the images; atom: (I,), the atom of each
    image.
    """

    home: np.ndarray
    positions: np.ndarray
    atom: np.ndarray


def images_of(structure: Structure, reach_a: float) -> Images:
    """Return all images within reach of any point of the cell, including the atoms inside the cell."""
    inside = structure.positions - np.floor(structure.positions)
    inside[inside >= 1.0] = 0.0  # a coordinate just below 0 rounds to 1
    # In a skewed cell, the distance between lattice planes is less than the length of the lattice vector.
    heights = 1 / np.linalg.norm(np.linalg.inv(structure.lattice), axis=0)
    room = reach_a / heights + 1e-9
    ranges = [np.arange(-int(np.ceil(share)), int(np.ceil(share)) + 2) for share in room]
    need = len(inside) * math.prod(map(len, ranges)) * _BYTES
    if need > host_memory.free_bytes():
        raise BadInput(
            f"Finding the atoms' images takes {show_bytes(need)} of main memory, but only "
            f"{show_bytes(host_memory.free_bytes())} are free.",
            hint="Reduce the cell (Niggli) if it is skewed, or give fewer atoms.",
        )
    shifts = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, 3)
    shifted = inside[:, None] + shifts  # (A, shifts, 3)
    atom, shift = np.nonzero(((shifted >= -room) & (shifted <= 1 + room)).all(axis=2))
    return Images(inside @ structure.lattice, shifted[atom, shift] @ structure.lattice, atom)


def atom_graph(
    structure: Structure,
    config: DensityConfig,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> AtomGraph:
    """Return all periodic edges shorter than the cutoff, sorted by destination.

    Raises BadInput for unknown species.
    """
    check_structure(structure)
    species = torch.tensor(config.index_of(structure.species), dtype=torch.int64)
    images = images_of(structure, config.cutoff_a)
    to, image = pairs_within(images.home, images.positions, config.cutoff_a)
    return AtomGraph(
        species=species.to(device),
        source=torch.from_numpy(images.atom[image]).to(device),
        destination=torch.from_numpy(to).to(device),
        vectors=torch.from_numpy(images.positions[image] - images.home[to]).to(device, dtype),
    )


def pairs_within(home: np.ndarray, positions: np.ndarray, cutoff_a: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the atoms (E,) and images (E,) of all pairs closer than the cutoff.

    Sorted by atom, then by image. An atom is not paired with itself.
    """
    axis = int(np.ptp(positions, axis=0).argmax())
    order = np.argsort(positions[:, axis], kind="stable")
    along = positions[order, axis]
    atoms, images = [], []
    # Sorted along the longest side, the neighbours of a block of atoms are consecutive images.
    by = np.argsort(home[:, axis], kind="stable")
    for part in np.split(by, range(_BLOCK, len(by), _BLOCK)):
        ends = home[part[0], axis] - cutoff_a, home[part[-1], axis] + cutoff_a
        near = order[slice(*np.searchsorted(along, ends))]
        square = np.zeros((len(part), len(near)))
        for side in range(3):
            square += (positions[near, side] - home[part, side, None]) ** 2
        # Only the atom itself is at distance zero: no two atoms of a checked structure are that close.
        to, image = np.nonzero((square < cutoff_a**2) & (square > 1e-8))
        atoms.append(part[to])
        images.append(near[image])
    to, image = np.concatenate(atoms), np.concatenate(images)
    order_of_pairs = np.lexsort((image, to))
    return to[order_of_pairs], image[order_of_pairs]
