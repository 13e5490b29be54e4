"""Distances of one walker, and features computed from them that are smooth where particles meet.

Letters: n electrons, M nuclei. A kink at zero distance is a cusp of the wave function, and the cusps are set
exactly elsewhere (`envelopes`, `jastrow`). The inputs of the network are therefore smooth where electrons
meet nuclei or one another, and they grow slowly at large distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pinchpoint.systems.vmc.data.system import System

Array = jax.Array

# Added under the square root, so that a distance of zero has finite derivatives. The second derivative is of
# the order of _TINY^-1.5, which must be finite in float32: infinity times the zero beside it would be NaN.
_TINY = 1e-20
_CORE = 1.0  # bohr; at the core of a pseudopotential, features are quadratic within at most this length
_REACH = 4.0  # bohr; beyond it, features grow more slowly than the distance


class Geometry(NamedTuple):
    """Vectors and distances of one walker x: (n, 3).

    to_nuclei: (n, M, 3), with lengths (n, M); to_electrons: (n, n, 3), x_i - x_j, with lengths (n, n).
    """

    x: Array
    to_nuclei: Array
    nuclear: Array
    to_electrons: Array
    apart: Array


def geometry(system: System, x: Array) -> Geometry:
    """Return the vectors and distances of one walker x: (n, 3)."""
    to_nuclei = x[:, None, :] - jnp.asarray(system.positions, dtype=x.dtype)[None]
    to_electrons = x[:, None, :] - x[None, :, :]
    return Geometry(x, to_nuclei, _length(to_nuclei), to_electrons, _length(to_electrons))


def _length(vectors: Array) -> Array:
    return jnp.sqrt(jnp.sum(vectors * vectors, axis=-1) + _TINY)


def soft(distance: Array, scale: Array | float) -> Array:
    """Return distance^2 / (scale + distance), which is flat at zero and grows like the distance."""
    return distance * distance / (scale + distance)


def soft_nuclear(system: System, distances: Array) -> Array:
    """Return the soft distances to the nuclei, like `distances`: (n, M).

    Those to the cores of pseudopotentials are even in the distance: nothing is singular at their centre.
    """
    charges = jnp.asarray(system.core_charges, dtype=distances.dtype)
    if system.pseudopotential:
        lengths = jnp.minimum(_CORE, 2 / charges)
        return distances**2 / (lengths + jnp.sqrt(lengths**2 + distances**2))
    return soft(distances, 1.0 / charges)


def one_electron(system: System, places: Geometry) -> Array:
    """Return the vector and soft distance to every nucleus, (n, 4 M)."""
    damp = 1.0 / (1.0 + places.nuclear / _REACH)
    if system.pseudopotential:
        damp = 1.0 / jnp.sqrt(1.0 + (places.nuclear / _REACH) ** 2)
    vectors = places.to_nuclei * damp[..., None]
    lengths = soft_nuclear(system, places.nuclear) * damp
    return jnp.concatenate([vectors, lengths[..., None]], axis=-1).reshape(vectors.shape[0], -1)


def damped_nuclear(vector: Sequence[Array], charge: int) -> tuple[Array, list[Array]]:
    """Return the distance and the four features of one nucleus, from the components of the vectors to it."""
    distance = pair_distance(vector)
    damp = 1.0 / (1.0 + distance / _REACH)
    return distance, [*(value * damp for value in vector), soft(distance, 1.0 / charge) * damp]


def two_electrons(places: Geometry) -> Array:
    """Return the vector and soft distance of every pair, (n, n, 4); zero for an electron with itself."""
    return _pair_features(places.to_electrons, places.apart)


def pair_features(vectors: Array) -> Array:
    """Return the features (..., 4) of pairs whose electrons are apart by vectors (..., 3)."""
    return _pair_features(vectors, _length(vectors))


def pair_distance(vector: Sequence[Array]) -> Array:
    """Return the length of vectors from their three components."""
    return jnp.sqrt(vector[0] * vector[0] + vector[1] * vector[1] + vector[2] * vector[2] + _TINY)


def pair_components(vector: Sequence[Array]) -> list[Array]:
    """Return the same features as a list of four, from a list of the three components of the vectors."""
    apart = pair_distance(vector)
    damp = 1.0 / jnp.sqrt(1.0 + (apart / _REACH) ** 2)
    return [*(value * damp for value in vector), soft(apart, 1.0) * damp]


def _pair_features(vectors: Array, apart: Array) -> Array:
    # Even in the distance: a term r x_ij would change the cusp of equal spins, where psi is proportional to
    # x_ij.
    damp = 1.0 / jnp.sqrt(1.0 + (apart / _REACH) ** 2)
    return jnp.concatenate([vectors * damp[..., None], (soft(apart, 1.0) * damp)[..., None]], axis=-1)
