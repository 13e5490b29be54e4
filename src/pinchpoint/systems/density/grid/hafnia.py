"""Monoclinic HfO2, the crystal of benchmarks and studies.

12 atoms; a point has about 23 neighbours within 4 angstrom.
"""

from __future__ import annotations

import math

import numpy as np

from pinchpoint.systems.density.grid.structure import Structure

_A, _B, _C, _BETA = 5.1156, 5.1722, 5.2948, 99.18  # angstrom, degrees
_SITES = (("Hf", (0.2759, 0.0404, 0.2081)), ("O", (0.0742, 0.3313, 0.3447)), ("O", (0.4496, 0.7573, 0.4798)))


def hafnia() -> Structure:
    """Return the crystal. Space group P2_1/c; every site has multiplicity four."""
    beta = math.radians(_BETA)
    lattice = np.array([[_A, 0.0, 0.0], [0.0, _B, 0.0], [_C * math.cos(beta), 0.0, _C * math.sin(beta)]])
    species, positions = [], []
    for symbol, (x, y, z) in _SITES:
        species += [symbol] * 4
        positions += [(x, y, z), (-x, y + 0.5, 0.5 - z), (-x, -y, -z), (x, 0.5 - y, z + 0.5)]
    return Structure(lattice, tuple(species), np.array(positions) % 1.0)
