"""Observables of one walker other than its energy: spin, multipole moments and forces on the nuclei.

n electrons (up first, then down), M nuclei; a walker is x: (n, 3) in bohr. Each function returns the local
value of one walker; its mean over walkers that follow |psi|^2 is the expectation value. Nothing is jitted
here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from pinchpoint.systems.vmc.data.system import System, with_nuclei_at
from pinchpoint.systems.vmc.model.hamiltonian import local_energy
from pinchpoint.systems.vmc.settings import Method

SignAndLog = Callable[[Any, Any], tuple[Any, Any]]  # (params, x: (n, 3)) -> sign of psi, log|psi|

_NEAR_NODE_BOHR = 0.02  # walkers closer to a node than this count less in the forces
_WARP_POWER = 4  # electrons follow the nuclei with weights r^-4


class SignedWave(Protocol):
    """The part of a wave function that observables need."""

    @property
    def system(self) -> System: ...
    @property
    def sign_and_log(self) -> SignAndLog: ...
    def log(self, params: Any, x: Any) -> Any: ...


class ForceParts(NamedTuple):
    """What the forces on the nuclei are computed from: the energy of a walker, and its changes.

    energy: (), the local energy; change: (M, 3), its derivatives with respect to the nuclei; weight: (M, 3),
    those of the logarithm of the walker's probability. Electrons near a nucleus move with it.
    """

    energy: Any
    change: Any
    weight: Any


def spin_excess(sign_and_log: SignAndLog, system: System, params: Any, x: Any) -> Any:
    """Return S^2 minus the least value S_z (S_z + 1) that the electrons allow, (); its mean is not negative.

    It is zero for every walker if the wave function is the state of lowest spin, and follows from the ratios
    psi(x with two electrons of opposite spins exchanged) / psi(x).
    """
    first, second = np.meshgrid(np.arange(system.up), np.arange(system.up, system.electrons), indexing="ij")
    first, second = first.ravel(), second.ravel()
    if not len(first):
        return jnp.zeros((), x.dtype)
    order = np.tile(np.arange(system.electrons), (len(first), 1))
    rows = np.arange(len(first))
    order[rows, first], order[rows, second] = second, first
    sign, log = sign_and_log(params, x)
    signs, logs = jax.vmap(sign_and_log, (None, 0))(params, x[order])
    return min(system.up, system.down) - jnp.sum(signs * sign * jnp.exp(logs - log))


def least_spin_squared(system: System) -> float:
    """Return S_z (S_z + 1), the value of S^2 in a pure state of the lowest spin."""
    spin = abs(system.spin) / 2
    return spin * (spin + 1)


def charge_centre(system: System) -> np.ndarray:
    """Return the centre of the charges of the nuclei, (3,), which moments are relative to."""
    charges = np.asarray(system.core_charges, float)
    return charges @ np.asarray(system.positions) / charges.sum()


def dipole(system: System, x: Any) -> Any:
    """Return the dipole moment in e bohr, (3,), relative to the centre of the nuclear charges."""
    return -jnp.sum(x - jnp.asarray(charge_centre(system), x.dtype), axis=0)


def quadrupole(system: System, x: Any) -> Any:
    """Return the traceless quadrupole moment sum q (3 r_a r_b - r^2 delta_ab) / 2 in e bohr^2, (3, 3)."""
    centre = charge_centre(system)
    nuclei = np.asarray(system.positions) - centre
    stored = np.einsum("m,ma,mb->ab", np.asarray(system.core_charges, float), nuclei, nuclei)
    places = x - jnp.asarray(centre, x.dtype)
    moments = jnp.asarray(stored, x.dtype) - jnp.einsum(
        "na,nb->ab", places, places, precision=jax.lax.Precision.HIGHEST
    )
    return (3 * moments - jnp.trace(moments) * jnp.eye(3, dtype=x.dtype)) / 2


def force_parts(
    wave_of: Callable[[System], SignedWave], system: System, params: Any, x: Any, *, method: Method = "auto"
) -> ForceParts:
    """Return what the forces follow from, for one walker. wave_of: the wave function of a moved system."""
    start = jnp.asarray(system.positions, x.dtype)

    def at(positions: Any) -> tuple[Any, Any]:
        own = with_nuclei_at(system, positions)
        wave, places = wave_of(own), _follow(x, start, positions)
        energy = local_energy(wave.log, own, method=method)(params, places)
        return energy, 2 * wave.log(params, places)

    steps = jnp.eye(start.size, dtype=x.dtype).reshape(-1, *start.shape)
    # One direction after another: all at once would need the memory of as many local energies.
    energies, changes = jax.lax.map(lambda step: jax.jvp(at, (start,), (step,)), steps)
    shifts = jax.jacfwd(lambda place: _shares(place, start))  # (3,) -> (M, 3)
    volume = jnp.sum(jax.vmap(shifts)(x), axis=0)  # (M, 3), of the logarithm of the volume
    slope = jax.grad(lambda walker: wave_of(system).log(params, walker))(x)
    near = _regular(1 / (_NEAR_NODE_BOHR * jnp.sqrt(jnp.sum(slope**2)) + 1e-12))
    change, weight = (part.reshape(start.shape) for part in changes)
    return ForceParts(energies[0][0], near * change, near * (weight + volume))


def _shares(place: Any, nuclei: Any) -> Any:
    """Return how much an electron at a place (3,) moves with each nucleus, (M,); the sum is one."""
    closeness = jnp.sum((place - nuclei) ** 2, axis=-1) ** (-_WARP_POWER / 2)
    return closeness / jnp.sum(closeness)


def _follow(x: Any, start: Any, positions: Any) -> Any:
    """Return the electrons moved with their nuclei from start to positions."""
    return x + jax.vmap(lambda place: _shares(place, start))(x) @ (positions - start)


def _regular(distance: Any) -> Any:
    """Return a factor that is one far from a node and removes the divergence of the forces at one.

    distance: from a node, in units of the width. The polynomial 9 t^2 - 15 t^4 + 7 t^6 has the mean that
    makes the bias vanish in first order (Pathak and Wagner 2020).
    """
    t = jnp.minimum(distance, 1.0) ** 2
    return jnp.where(distance < 1, 9 * t - 15 * t**2 + 7 * t**3, 1.0)
