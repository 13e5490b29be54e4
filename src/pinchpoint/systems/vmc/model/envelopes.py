"""One-electron factors: envelopes that make every orbital decay, and the exact cusp at each nucleus.

Letters: n electrons, k of them of one spin, M nuclei, D determinants. The envelope of an orbital is sum_m
pi_m exp(-sigma_m s(r_m)) with s(r) = r^2 / (1/Z + r), which is flat at the nucleus. The cusp factor
exp(-sum_m Z r_m / (1 + beta_m r_m)) is the same for every orbital and gives all of them the slope -Z there
for any weights. With beta = Z and sigma = Z their product is exp(-Z r): a hydrogen-like atom is exact.
Pseudopotentials have no cusps.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pinchpoint.systems.vmc.data.slater import Start, outer_exponent
from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.features import Geometry, soft_nuclear
from pinchpoint.systems.vmc.model.layers import positive, raw_of

Array = jax.Array

_CORE_ELSEWHERE = 0.1  # weight of the envelope of a core orbital on nuclei other than its own


def init_envelope(system: System, columns: list[Start], determinants: int) -> dict[str, Array]:
    """Return the initial pi and sigma, each (M, D, columns).

    A valence orbital extends over all nuclei; a core orbital is confined to its own.
    """
    pi = np.ones((system.nuclei, determinants, len(columns)))
    sigma = np.ones_like(pi)
    for column, start in enumerate(columns):
        for nucleus, charge in enumerate(system.charges):
            own = nucleus == start.nucleus
            sigma[nucleus, :, column] = start.zeta if own else outer_exponent(charge)
            if not own and not start.valence:
                pi[nucleus, :, column] = _CORE_ELSEWHERE
    return {"pi": jnp.asarray(pi, dtype=float), "sigma": raw_of(jnp.asarray(sigma, dtype=float))}


def init_cusp(system: System) -> Array:
    """Return the initial beta of each nucleus, (M,), before `positive` is applied."""
    return raw_of(jnp.asarray(system.charges, dtype=float))


def nearest(sigma: Array, radii: Array) -> Array:
    """Return the smallest exponent of each electron, (k,).

    It is added to the exponents and subtracted from the logarithm later, so that nothing underflows far from
    the nuclei. The wave function does not depend on it, so it has no derivative. sigma: (k or 1, M, D,
    columns), above zero.
    """
    return jax.lax.stop_gradient(jnp.min(radii * jnp.min(sigma, axis=(2, 3)), axis=1))


def envelope(pi: Array, sigma: Array, radii: Array, shift: Array) -> Array:
    """Return the envelopes (k, D, columns), times e^shift.

    pi, sigma: (k or 1, M, D, columns); radii: (k, M) soft distances; shift: (k,).
    """
    exponents = shift[:, None, None, None] - radii[:, :, None, None] * sigma
    return jnp.sum(pi * jnp.exp(exponents), axis=1)


def soft_radii(system: System, places: Geometry) -> Array:
    """Return s(r) of every electron and nucleus, (n, M)."""
    return soft_nuclear(system, places.nuclear)


def log_cusp(system: System, beta: Array, places: Geometry) -> Array:
    """Return the log of the cusp factor of each electron, (n,). beta: (M,), as from `init_cusp`."""
    charges = jnp.asarray(system.charges, dtype=places.nuclear.dtype)
    return -jnp.sum(charges * places.nuclear / (1.0 + positive(beta) * places.nuclear), axis=1)
