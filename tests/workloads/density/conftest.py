"""Volumes drawn at random."""

from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.workloads.density.structure import Structure
from pinchpoint.workloads.density.volume import Volume


@pytest.fixture
def draw():
    """draw(seed, grid=..., spin=...): a random volume in a skewed cell."""

    def made(seed: int, grid: tuple[int, int, int] = (5, 4, 6), spin: bool = False) -> Volume:
        rng = np.random.default_rng(seed)
        lattice = np.diag([5.0, 6.0, 7.0]) + rng.normal(size=(3, 3)) * 0.3
        structure = Structure(lattice, ("Hf", "Hf", "O", "Hf"), rng.random((4, 3)))
        return Volume(structure, rng.gamma(1.0, 1.0, grid), rng.normal(size=grid) if spin else None, comment=f"drawn {seed}")

    return made
