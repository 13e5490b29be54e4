"""The density moves with the structure: turned, mirrored, shifted, renumbered or repeated."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pinchpoint.systems.density.grid.structure import Structure
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import DensityModel

CONFIG = DensityConfig.preset("small", ("H", "C", "O"), mul=40, lmax=4, spin=True)


@pytest.fixture
def densities(inputs_of):
    model = DensityModel(CONFIG).eval()

    def found(structure: Structure, points: np.ndarray) -> np.ndarray:
        graph, neighbours, vectors = inputs_of(structure, CONFIG, points, torch.float32)
        with torch.no_grad():
            return model(model.fields(graph), graph.species, neighbours, vectors)[0].double().numpy()

    return found


def close(one: np.ndarray, two: np.ndarray) -> bool:
    return bool(np.linalg.norm(one - two) <= 1e-5 * np.linalg.norm(two))


def points(structure: Structure, count: int = 30) -> np.ndarray:
    return np.random.default_rng(9).random((count, 3)) @ structure.lattice


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("improper", [False, True])
def test_a_turned_or_mirrored_structure_has_the_turned_density(
    crystal, densities, seed: int, improper: bool
) -> None:
    structure = crystal(seed)
    turn, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    turn *= np.sign(np.linalg.det(turn)) * (-1 if improper else 1)
    at = points(structure)
    moved = Structure(structure.lattice @ turn.T, structure.species, structure.positions)
    assert close(densities(moved, at @ turn.T), densities(structure, at))


def test_inversion_takes_the_density_along(crystal, densities) -> None:
    structure = crystal(3)
    at = points(structure)
    moved = Structure(structure.lattice, structure.species, -structure.positions)
    assert close(densities(moved, -at + structure.lattice.sum(axis=0)), densities(structure, at))


def test_a_shift_and_whole_lattice_vectors_take_the_density_along(crystal, densities) -> None:
    structure = crystal(4)
    shift = np.array([0.37, -0.61, 0.12])
    at = points(structure)
    moved = Structure(structure.lattice, structure.species, structure.positions + shift + [3, -1, 2])
    back = (at @ np.linalg.inv(structure.lattice) + shift) % 1.0
    assert close(densities(moved, back @ structure.lattice), densities(structure, at))


def test_the_order_of_the_atoms_does_not_matter(crystal, densities) -> None:
    structure = crystal(5, atoms=7)
    order = np.random.default_rng(0).permutation(7)
    moved = Structure(
        structure.lattice, tuple(structure.species[i] for i in order), structure.positions[order]
    )
    at = points(structure)
    assert close(densities(moved, at), densities(structure, at))


def test_a_supercell_has_the_density_of_its_cell_in_every_copy(crystal, densities) -> None:
    structure = crystal(6)
    lattice = structure.lattice * np.array([[2], [1], [2]])
    copies = np.array([[i, 0, k] for i in range(2) for k in range(2)])
    positions = ((structure.positions[None] + copies[:, None]) / [2, 1, 2]).reshape(-1, 3)
    repeated = Structure(lattice, structure.species * 4, positions)
    at = points(structure)
    for copy in copies:
        assert close(densities(repeated, at + copy @ structure.lattice), densities(structure, at))


def test_neither_species_nor_places_may_be_exchanged(crystal, densities) -> None:
    structure = crystal(7, species=("C",), atoms=4)
    other = Structure(structure.lattice, ("O", *structure.species[1:]), structure.positions)
    nudged = Structure(structure.lattice, structure.species, structure.positions + np.eye(4, 3) * 0.01)
    at = points(structure)
    truth = densities(structure, at)
    assert not close(densities(other, at), truth)
    assert not close(densities(nudged, at), truth)
