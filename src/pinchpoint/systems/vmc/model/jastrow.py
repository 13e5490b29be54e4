"""The Jastrow factor: exact cusps where two electrons meet, 1/4 for equal spins and 1/2 for opposite ones.

log J = sum_{i<j} c a r / (a + r). Its slope at r = 0 is c for any learned length a, and it is flat at large
r.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.layers import positive, raw_of

Array = jax.Array

SAME, OPPOSITE = 0.25, 0.5


def init_jastrow(system: System) -> dict[str, Array]:
    """Return one length for each kind of pair in the system (same, opposite); none for one electron."""
    start = raw_of(jnp.asarray(1.0))
    return {kind: start for kind, weights in _pairs(system).items() if weights.any()}


def log_jastrow(system: System, params: dict[str, Any], apart: Array) -> Array:
    """Return log J, a scalar. apart: (n, n) distances."""
    total = jnp.zeros((), dtype=apart.dtype)
    for kind, weights in _pairs(system).items():
        if weights.any():
            length = positive(params[kind])
            total = total + jnp.sum(
                jnp.asarray(weights, dtype=apart.dtype) * (length * apart / (length + apart))
            )
    return total


def _pairs(system: System) -> dict[str, np.ndarray]:
    """Return, for each kind, (n, n) with the slope at contact above the diagonal for its pairs, else 0."""
    spins = np.arange(system.electrons) < system.up
    once = np.triu(np.ones((system.electrons, system.electrons)), k=1)
    alike = spins[:, None] == spins[None, :]
    return {"same": SAME * once * alike, "opposite": OPPOSITE * once * ~alike}
