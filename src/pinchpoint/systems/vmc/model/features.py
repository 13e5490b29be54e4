"""Distances of one walker and features computed from them, without kinks where electrons meet nuclei or one
another.

Letters: n electrons, M nuclei. A kink at zero distance is a cusp of the wave function, and the cusps are set
exactly elsewhere (`envelopes`, `jastrow`). The inputs of the network are therefore smooth there, and grow
slowly far out.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pinchpoint.systems.vmc.data.system import System

Array = jax.Array

# Added under the square root, so that a distance of zero has finite derivatives. The second derivative is of
# the order of _TINY^-1.5, which a float32 must hold: infinity times the zero beside it would be NaN.
_TINY = 1e-20
_REACH = 4.0  # bohr, beyond which features grow more slowly than the distance


class Geometry(NamedTuple):
    """to_nuclei: (n, M, 3) and its lengths (n, M); to_electrons: (n, n, 3) and its lengths (n, n), of x_i -
    x_j.
    """

    to_nuclei: Array
    nuclear: Array
    to_electrons: Array
    apart: Array


def geometry(system: System, x: Array) -> Geometry:
    """Vectors and distances of one walker x: (n, 3)."""
    to_nuclei = x[:, None, :] - jnp.asarray(system.positions, dtype=x.dtype)[None]
    to_electrons = x[:, None, :] - x[None, :, :]
    return Geometry(to_nuclei, _length(to_nuclei), to_electrons, _length(to_electrons))


def _length(vectors: Array) -> Array:
    return jnp.sqrt(jnp.sum(vectors * vectors, axis=-1) + _TINY)


def soft(distance: Array, scale: Array | float) -> Array:
    """distance^2 / (scale + distance): the distance far out, flat where it is zero."""
    return distance * distance / (scale + distance)


def inverse_charges(system: System, like: Array) -> Array:
    """(M,): the length scale of each nucleus, 1 / Z."""
    return 1.0 / jnp.asarray(system.charges, dtype=like.dtype)


def one_electron(system: System, places: Geometry) -> Array:
    """(n, 4 M): vector and soft distance to every nucleus."""
    damp = 1.0 / (1.0 + places.nuclear / _REACH)
    vectors = places.to_nuclei * damp[..., None]
    lengths = soft(places.nuclear, inverse_charges(system, places.nuclear)) * damp
    return jnp.concatenate([vectors, lengths[..., None]], axis=-1).reshape(vectors.shape[0], -1)


def two_electrons(places: Geometry) -> Array:
    """(n, n, 4): vector and soft distance of every pair; an electron with itself has zeros."""
    # Even in the distance: a term r x_ij would change the cusp of equal spins, whose psi starts with x_ij
    # itself.
    damp = 1.0 / jnp.sqrt(1.0 + (places.apart / _REACH) ** 2)
    vectors = places.to_electrons * damp[..., None]
    return jnp.concatenate([vectors, (soft(places.apart, 1.0) * damp)[..., None]], axis=-1)
