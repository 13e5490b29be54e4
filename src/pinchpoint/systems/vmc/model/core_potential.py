"""The energy of electrons in pseudopotentials: a local part, and a non-local part by quadrature on spheres.

Letters: n electrons, M nuclei, K of them near an electron, Q points on a sphere, L angular momenta. Around
each core, the non-local part projects the wave function on s, p and d functions of one electron: an integral
over the sphere through that electron, computed with Q points turned at random. The average over rotations is
exact, so the energy has no bias. The rotations follow from the bits of the walker's position: the local
energy is a function of the position alone, and a resumed run repeats itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pinchpoint.systems.vmc.data.pseudopotentials import Term, pseudopotentials
from pinchpoint.systems.vmc.data.system import System

SignAndLog = Callable[[Any, Any], tuple[Any, Any]]  # (params, x: (n, 3)) -> sign of psi, log|psi|

# Most moved walkers per electron and walker that are evaluated together: a forward Laplacian of n electrons
# carries 3 n directions along.
_AT_ONCE = 12
_TINY = 1e-20


def local_potential(system: System, distances: Any) -> Any:
    """Return the sum of the local potentials at distances (n, M), with the attraction by the cores.

    Near a core the attraction and the terms c / r cancel, so that the potential is finite everywhere.
    """
    cores = pseudopotentials(system.pseudopotential, system.symbols)
    r = distances[..., None]
    total = jnp.zeros_like(r)
    for power in sorted({n for core in cores for n, _, _ in core.local}):
        terms = [[term for term in core.local if term[0] == power] for core in cores]
        a, c = (jnp.asarray(values, distances.dtype) for values in _table(terms))
        if power == 1:  # these coefficients add up to the charge
            part = c * jnp.expm1(-a * r**2) / jnp.sqrt(r**2 + _TINY)
        else:
            part = c * r ** (power - 2) * jnp.exp(-a * r**2)
        total = total + jnp.sum(part, axis=-1, keepdims=True)
    return jnp.sum(total)


def nonlocal_energy(
    sign_and_log: SignAndLog, system: System, params: Any, x: Any, *, near: int | None = None
) -> Any:
    """Return the non-local part of H psi / psi at x: (n, 3).

    near: the result of `cores_near_electron`, needed if the positions of the nuclei are traced.
    """
    cores = pseudopotentials(system.pseudopotential, system.symbols)
    reaches = np.array([core.reach_bohr for core in cores])
    owners = np.flatnonzero(reaches)
    if not len(owners):
        return jnp.zeros((), x.dtype)
    near = cores_near_electron(system) if near is None else near
    channels = max(len(core.channels) for core in cores)
    exponents, coefficients = (
        jnp.asarray(values, x.dtype).reshape(len(owners), channels, -1)
        for values in _table(
            [
                cores[owner].channels[degree] if degree < len(cores[owner].channels) else ()
                for owner in owners
                for degree in range(channels)
            ]
        )
    )
    sign, log = sign_and_log(params, x)
    points = jnp.asarray(icosahedron(), x.dtype)
    nuclei = jnp.asarray(system.positions, x.dtype)[owners]
    lengths = jnp.asarray(reaches[owners], x.dtype)

    def of_electron(electron: Any, rotation: Any) -> Any:
        vectors = x[electron] - nuclei
        r = jnp.sqrt(jnp.sum(vectors**2, axis=-1) + _TINY)
        decays = jnp.exp(-exponents * (r**2)[:, None, None])
        potentials = jnp.sum(coefficients * decays, axis=-1)  # (cores, L)
        # An electron is within the reach of `near` cores at most: only these spheres are integrated over.
        nearest = jax.lax.top_k(-r / lengths, near)[1]
        directions = jnp.matmul(points, rotation, precision=jax.lax.Precision.HIGHEST)
        cosines = jnp.einsum(
            "kx,qx->kq", vectors[nearest] / r[nearest, None], directions, precision=jax.lax.Precision.HIGHEST
        )
        places = nuclei[nearest, None] + r[nearest, None, None] * directions
        walkers = jax.vmap(lambda place: x.at[electron].set(place))(places.reshape(-1, 3))
        signs, logs = jax.vmap(lambda walker: sign_and_log(params, walker))(walkers)
        ratios = (signs * sign * jnp.exp(logs - log)).reshape(cosines.shape)
        weights = _legendre(cosines, channels)  # (L, K, Q)
        return jnp.sum(potentials[nearest].T[:, :, None] * weights * ratios) / len(points)

    rotations = _rotations(x)
    together = max(1, min(len(x), _AT_ONCE * len(x) // (near * len(points))))
    parts = jax.lax.map(lambda each: of_electron(*each), (jnp.arange(len(x)), rotations), batch_size=together)
    return jnp.sum(parts)


def cores_near_electron(system: System) -> int:
    """Return the result of `nearby_cores` for a system; 0 if no core has a non-local part."""
    if not system.pseudopotential:
        return 0
    cores = pseudopotentials(system.pseudopotential, system.symbols)
    reaches = np.array([core.reach_bohr for core in cores])
    owners = np.flatnonzero(reaches)
    return nearby_cores(np.asarray(system.positions)[owners], reaches[owners]) if len(owners) else 0


def nearby_cores(positions: np.ndarray, reaches: np.ndarray) -> int:
    """Return the largest number of cores that may be within reach of one electron, or more.

    positions: (M, 3); reaches: (M,). Spheres that share a point overlap in pairs.
    """
    apart = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    return int(((apart < reaches[:, None] + reaches[None]).sum(axis=1)).max())


def icosahedron() -> np.ndarray:
    """Return the 12 corners (12, 3) of an icosahedron on the unit sphere: exact up to degree 5."""
    golden = (1 + math.sqrt(5)) / 2
    corners = [(0.0, one, golden * other) for one in (-1, 1) for other in (-1, 1)]
    points = [np.roll(corner, shift) for corner in corners for shift in range(3)]
    return np.array(points) / math.hypot(1, golden)


def _table(rows: Sequence[Sequence[Term]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the exponents and coefficients of the terms of each row, padded with zeros, (rows, T) each."""
    values = np.zeros((2, len(rows), max(map(len, rows))))
    for at, terms in enumerate(rows):
        values[:, at, : len(terms)] = np.array([term[1:] for term in terms]).reshape(-1, 2).T
    return values[0], values[1]


def _legendre(cosines: Any, count: int) -> Any:
    """Return (2 l + 1) P_l of cosines (K, Q) for the first `count` degrees, (count, K, Q)."""
    values = [jnp.ones_like(cosines), cosines]
    for degree in range(1, count - 1):
        values.append(((2 * degree + 1) * cosines * values[-1] - degree * values[-2]) / (degree + 1))
    return jnp.stack([(2 * degree + 1) * values[degree] for degree in range(count)])


def _rotations(x: Any) -> Any:
    """Return a random rotation of each electron, (n, 3, 3), from the bits of the position x: (n, 3)."""
    # The leading bits of float64 as well: a position in float32 that is read as float64 keeps its rotations.
    bits = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(x).astype(jnp.float32), jnp.uint32).reshape(-1)
    rng = np.random.default_rng(0)
    odd = 2 * rng.integers(0, 1 << 31, size=(2, bits.shape[0]), dtype=np.uint32) + np.uint32(1)
    seeds = jnp.sum((bits ^ (bits >> 15)) * jnp.asarray(odd), axis=1, dtype=jnp.uint32)
    numbers = jax.random.normal(jax.random.wrap_key_data(seeds), (x.shape[0], 4), x.dtype)
    w, a, b, c = (numbers / jnp.linalg.norm(numbers, axis=1, keepdims=True)).T
    rows = (
        (1 - 2 * (b * b + c * c), 2 * (a * b - w * c), 2 * (a * c + w * b)),
        (2 * (a * b + w * c), 1 - 2 * (a * a + c * c), 2 * (b * c - w * a)),
        (2 * (a * c - w * b), 2 * (b * c + w * a), 1 - 2 * (a * a + b * b)),
    )
    return jnp.moveaxis(jnp.stack([jnp.stack(row) for row in rows]), -1, 0)
