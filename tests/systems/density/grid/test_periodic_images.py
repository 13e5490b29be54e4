"""Periodic images and edges are all there: against sums over far more cells than are needed, for cells of
any shape.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.grid.periodic_images import atom_graph, images_of
from pinchpoint.systems.density.grid.structure import Structure
from pinchpoint.systems.density.model.config import DensityConfig

CELLS = {
    "cubic": np.diag([6.0, 6.0, 6.0]),
    "smaller than the cutoff": np.diag([1.3, 1.6, 2.1]),
    "long and thin": np.diag([1.5, 9.0, 2.0]),
    "skewed": np.array([[4.0, 0.0, 0.0], [3.1, 2.4, 0.0], [-2.2, 1.9, 3.0]]),
    "very skewed": np.array([[3.0, 0.0, 0.0], [5.5, 1.2, 0.0], [4.0, 2.5, 1.9]]),
    "left-handed": np.array([[0.0, 4.1, 0.3], [3.9, 0.2, 0.0], [0.4, 1.0, 5.0]]),
}


def drawn(cell: str, atoms: int = 3) -> Structure:
    rng = np.random.default_rng(len(cell))
    # Far outside the cell as well: positions need not lie in [0, 1).
    return Structure(CELLS[cell], ("H", "O", "H")[:atoms], rng.uniform(-2.5, 2.5, (atoms, 3)))


def brute(structure: Structure, cells: int = 9) -> tuple[np.ndarray, np.ndarray]:
    """(I, 3) and (I,): the images in 19^3 cells, with the atoms where the structure has them."""
    shifts = np.stack(np.meshgrid(*[np.arange(-cells, cells + 1)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    inside = structure.positions % 1.0
    moved = (inside[:, None] + shifts).reshape(-1, 3) @ structure.lattice
    return moved, np.repeat(np.arange(len(inside)), len(shifts))


@pytest.mark.parametrize("cell", CELLS)
def test_every_image_within_reach_of_a_point_of_the_cell_is_there_once(cell: str) -> None:
    structure, reach = drawn(cell), 4.0
    images = images_of(structure, reach)
    every, whose = brute(structure)
    points = np.random.default_rng(1).random((300, 3))
    points[:8] = np.stack(np.meshgrid([0, 1], [0, 1], [0, 1]), axis=-1).reshape(
        -1, 3
    )  # the corners are the hardest
    apart = np.linalg.norm(every[None] - (points @ structure.lattice)[:, None], axis=-1)
    wanted = np.flatnonzero((apart < reach).any(axis=0))
    have = {(int(a), *np.round(p, 6) + 0.0) for p, a in zip(images.positions, images.atom, strict=True)}
    assert len(have) == len(images.atom)
    assert all((int(whose[i]), *np.round(every[i], 6) + 0.0) in have for i in wanted)


@pytest.mark.parametrize("cell", CELLS)
def test_edges_between_atoms_are_those_of_the_slow_sum(cell: str) -> None:
    structure = drawn(cell)
    config = DensityConfig(("O", "H"), mul=8, lmax=1, gaussians=4, hidden=8, cutoff_a=3.0)
    graph = atom_graph(structure, config, dtype=torch.float64)
    every, whose = brute(structure)
    home = (structure.positions % 1.0) @ structure.lattice
    wanted = []
    for to, place in enumerate(home):
        vectors = every - place
        length = np.linalg.norm(vectors, axis=1)
        wanted += [
            (int(whose[i]), to, *np.round(vectors[i], 6) + 0.0)
            for i in np.flatnonzero((length < 3) & (length > 1e-6))
        ]
    parts = zip(graph.source.tolist(), graph.destination.tolist(), graph.vectors.numpy(), strict=True)
    made = [(source, to, *np.round(vector, 6) + 0.0) for source, to, vector in parts]
    assert sorted(made) == sorted(wanted)
    assert graph.species.tolist() == [1, 0, 1]


def test_edges_of_many_atoms_are_all_there_by_destination() -> None:
    rng = np.random.default_rng(2)
    places = np.stack(np.meshgrid(*[np.arange(n) / n for n in (12, 4, 5)], indexing="ij"), axis=-1).reshape(
        -1, 3
    )
    structure = Structure(
        np.diag([24.0, 8.0, 10.0]), ("H",) * 240, rng.permutation(places) + rng.uniform(0, 0.02, (240, 3))
    )
    config = DensityConfig(("H",), mul=8, lmax=1, gaussians=4, hidden=8, cutoff_a=3.0)
    graph = atom_graph(structure, config, dtype=torch.float64)
    # No two images of an atom are near one atom in so large a cell.
    apart = structure.positions[None] - structure.positions[:, None]
    apart = (apart - np.round(apart)) @ structure.lattice
    to, source = np.nonzero((np.linalg.norm(apart, axis=2) < 3.0) & ~np.eye(240, dtype=bool))
    made = np.lexsort((graph.source.numpy(), graph.destination.numpy()))
    assert np.array_equal(graph.destination.numpy(), to) and np.array_equal(
        graph.source.numpy()[made], source
    )
    np.testing.assert_allclose(graph.vectors.numpy()[made], apart[to, source], atol=1e-12)


def test_a_coordinate_just_below_zero_is_no_second_atom() -> None:
    structure = Structure(np.eye(3) * 3.0, ("H",), np.array([[-1e-17, 0.5, 1.0]]))
    images = images_of(structure, 0.1)
    assert len(np.unique(np.round(images.positions, 9), axis=0)) == len(images.atom)
    assert (np.linalg.norm(images.positions - [0.0, 1.5, 0.0], axis=1) < 1e-9).sum() == 1


def test_nothing_is_capped_where_atoms_are_dense() -> None:
    structure = Structure(np.eye(3) * 0.9, ("H",), np.zeros((1, 3)))
    config = DensityConfig(("H",), mul=8, lmax=1, gaussians=4, hidden=8, cutoff_a=5.0)
    shifts = np.stack(np.meshgrid(*[np.arange(-6, 7)] * 3), axis=-1).reshape(-1, 3) * 0.9
    within = (np.linalg.norm(shifts, axis=1) < 5.0).sum() - 1
    assert len(atom_graph(structure, config).source) == within > 600


def test_species_the_model_never_saw_are_named_with_those_it_knows() -> None:
    config = DensityConfig(("H", "C"), mul=8, lmax=1, gaussians=4, hidden=8)
    with pytest.raises(BadInput, match=r"not trained on Hf, O.*H, C") as caught:
        atom_graph(Structure(np.eye(3) * 5, ("Hf", "O"), np.array([[0, 0, 0], [0.5, 0.5, 0.5]])), config)
    assert "train" in caught.value.hint
