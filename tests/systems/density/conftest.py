"""Volumes drawn at random."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pinchpoint.systems.density.files.volume import Volume, grid_points
from pinchpoint.systems.density.grid.structure import Structure


@pytest.fixture
def draw():
    """draw(seed, grid=..., spin=...): a random volume in a skewed cell."""

    def made(seed: int, grid: tuple[int, int, int] = (5, 4, 6), spin: bool = False) -> Volume:
        rng = np.random.default_rng(seed)
        lattice = np.diag([5.0, 6.0, 7.0]) + rng.normal(size=(3, 3)) * 0.3
        structure = Structure(lattice, ("Hf", "Hf", "O", "Hf"), rng.random((4, 3)))
        return Volume(
            structure,
            rng.gamma(1.0, 1.0, grid),
            rng.normal(size=grid) if spin else None,
            comment=f"drawn {seed}",
        )

    return made


@pytest.fixture
def crystal():
    """crystal(seed, species=..., atoms=...): a random skewed cell whose atoms are at least 0.7 angstrom
    apart.
    """

    def made(seed: int, species: tuple[str, ...] = ("H", "C", "O"), atoms: int = 5) -> Structure:
        rng = np.random.default_rng(seed)
        lattice = np.diag([4.0, 4.5, 5.0]) + rng.normal(size=(3, 3)) * 0.4
        positions: list[np.ndarray] = []
        while len(positions) < atoms:
            tried = rng.random(3)
            apart = np.array([tried - other for other in positions]).reshape(-1, 3)
            if (np.linalg.norm((apart - np.round(apart)) @ lattice, axis=1) > 0.7).all():
                positions.append(tried)
        return Structure(lattice, tuple(rng.choice(species, atoms)), np.array(positions))

    return made


@pytest.fixture
def inputs_of():
    """inputs_of(structure, config, points, dtype): the atoms' graph, and one tile of all points with every
    image a slot.
    """

    def made(structure, config, points, dtype):  # torch is imported by the tests that want it
        import torch

        from pinchpoint.systems.density.grid.periodic_images import atom_graph, images_of

        images = images_of(structure, config.cutoff_a)
        neighbours = torch.from_numpy(images.atom)[None]
        vectors = torch.from_numpy(points[None, :, None] - images.positions[None, None]).to(dtype)
        return atom_graph(structure, config, dtype=dtype), neighbours, vectors

    return made


@pytest.fixture(scope="session")
def toy_structure():
    """toy_structure(seed): HfO2 in a skewed cell, its atoms moved a little."""
    lattice = np.array([[3.6, 0.0, 0.0], [0.9, 3.4, 0.0], [0.4, 0.7, 3.8]])
    rest = np.array([[0.0, 0.0, 0.0], [0.5, 0.45, 0.1], [0.1, 0.5, 0.55]])

    def made(seed: int) -> Structure:
        return Structure(
            lattice, ("Hf", "O", "O"), rest + np.random.default_rng(seed).normal(size=(3, 3)) * 0.03
        )

    return made


@pytest.fixture(scope="session")
def toy_volume(toy_structure):
    """toy_volume(seed, grid=..., spin=...): a periodic Gaussian at every atom; 16 electrons, a moment of
    0.5.
    """
    width, electrons, moments = 0.6, {"Hf": 4.0, "O": 6.0}, {"Hf": 1.0, "O": -0.25}

    def made(seed: int, grid: tuple[int, int, int] = (16, 15, 18), *, spin: bool = False) -> Volume:
        structure = toy_structure(seed)
        points = grid_points(grid) @ structure.lattice
        shifts = np.array(list(itertools.product(range(-2, 3), repeat=3))) @ structure.lattice
        total, moment = np.zeros(len(points)), np.zeros(len(points))
        for symbol, place in zip(structure.species, structure.cartesian, strict=True):
            shape = np.exp(-((points[:, None] - place - shifts) ** 2).sum(axis=2) / width**2).sum(axis=1) / (
                width**3 * np.pi**1.5
            )
            total, moment = total + electrons[symbol] * shape, moment + moments[symbol] * shape
        return Volume(
            structure, total.reshape(grid), moment.reshape(grid) if spin else None, comment=f"toy {seed}"
        )

    return made
