"""Periodic images of the atoms of a cell, and the edges between atoms: every one, whatever the shape of the cell.

A atoms, I images, E edges. Cells may be skewed or smaller than the cutoff; nothing is capped. An image may matter to a point
of the cell only if it lies within reach of the slab between two lattice planes, along each of the three directions: so many
are kept, which is some more than there must be and never fewer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pinchpoint.workloads.density.atoms import AtomGraph
from pinchpoint.workloads.density.config import DensityConfig
from pinchpoint.workloads.density.structure import Structure, check_structure

_AT_ONCE = 2**22  # pairs of an atom and an image that are looked at in one step


@dataclass(frozen=True, eq=False)
class Images:
    """home: (A, 3) the atoms inside the cell; positions: (I, 3) their images; atom: (I,) whose. Cartesian, float64."""

    home: np.ndarray
    positions: np.ndarray
    atom: np.ndarray


def images_of(structure: Structure, reach_a: float) -> Images:
    """Every image within reach of any point of the cell, atoms inside the cell among them."""
    inside = structure.positions - np.floor(structure.positions)
    inside[inside >= 1.0] = 0.0  # a coordinate just below 0 rounds to 1
    # A lattice plane and the next are this far apart, which in a skewed cell is less than the lattice vector is long.
    heights = 1 / np.linalg.norm(np.linalg.inv(structure.lattice), axis=0)
    room = reach_a / heights + 1e-9
    ranges = [np.arange(-int(np.ceil(share)) - 1, int(np.ceil(share)) + 2) for share in room]
    shifts = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, 3)
    found, whose = [], []
    for atom, place in enumerate(inside):
        moved = place + shifts
        kept = moved[((moved >= -room) & (moved <= 1 + room)).all(axis=1)]
        found.append(kept)
        whose.append(np.full(len(kept), atom, dtype=np.int64))
    return Images(inside @ structure.lattice, np.concatenate(found) @ structure.lattice, np.concatenate(whose))


def atom_graph(
    structure: Structure, config: DensityConfig, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> AtomGraph:
    """All periodic edges shorter than the cutoff, by destination. Raises BadInput for species the model never saw."""
    check_structure(structure)
    species = torch.tensor(config.index_of(structure.species), dtype=torch.int64)
    images = images_of(structure, config.cutoff_a)
    sources, destinations, vectors = [], [], []
    block = max(1, _AT_ONCE // len(images.atom))
    for start in range(0, len(images.home), block):
        apart = images.positions[None] - images.home[start : start + block, None]  # (a, I, 3)
        square = (apart**2).sum(axis=-1)
        # An atom itself is the one image without a distance: no two atoms of a checked structure are that near.
        to, image = np.nonzero((square < config.cutoff_a**2) & (square > 1e-8))
        sources.append(images.atom[image])
        destinations.append(to + start)
        vectors.append(apart[to, image])
    return AtomGraph(
        species=species.to(device),
        source=torch.from_numpy(np.concatenate(sources)).to(device),
        destination=torch.from_numpy(np.concatenate(destinations)).to(device),
        vectors=torch.from_numpy(np.concatenate(vectors)).to(device, dtype),
    )
