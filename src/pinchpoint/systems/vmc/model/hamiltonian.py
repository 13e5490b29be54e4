"""The energy of electrons among nuclei or cores: potential and local energy of a walker, in hartree.

n electrons, B walkers, M nuclei; a walker is x: (n, 3) in bohr. Nothing is jitted here; the functions become
part of the caller's program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from pinchpoint.kit import kinetic_energy
from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.core_potential import SignAndLog, local_potential, nonlocal_energy
from pinchpoint.systems.vmc.model.excited import energy_matrix
from pinchpoint.systems.vmc.model.wavefunction import WaveFunction
from pinchpoint.systems.vmc.optimization.chunks import over_walkers
from pinchpoint.systems.vmc.settings import Method

LogPsi = Callable[[Any, Any], Any]  # (params, x: (n, 3)) -> log|psi|


def potential(system: System, x: Any) -> Any:
    """Return the local potential energy of all electrons and nuclei at x: (n, 3)."""
    distances = _lengths(x[:, None] - jnp.asarray(system.positions, x.dtype))
    if system.pseudopotential:
        attraction = -local_potential(system, distances)
    else:
        attraction = jnp.sum(jnp.asarray(system.charges, x.dtype) / distances)
    first, second = np.triu_indices(
        system.electrons, 1
    )  # numpy, so that the pairs are constants of the program
    repulsion = jnp.sum(1 / _lengths(x[first] - x[second]))
    return repulsion - attraction + _nuclear_repulsion(system, x.dtype)


def local_energy(
    log_psi: LogPsi,
    system: System,
    *,
    method: Method = "auto",
    sign_and_log: SignAndLog | None = None,
    near: int | None = None,
) -> Callable[[Any, Any], Any]:
    """Return a function (params, x: (n, 3)) -> H psi / psi at x.

    sign_and_log: needed for pseudopotentials, whose non-local part depends on the sign of psi; near: that of
    `nonlocal_energy`.
    """

    def energy(params: Any, x: Any) -> Any:
        local = kinetic_energy(lambda walker: log_psi(params, walker), x, method=method) + potential(
            system, x
        )
        if not system.pseudopotential:
            return local
        assert sign_and_log is not None
        return local + nonlocal_energy(sign_and_log, system, params, x, near=near)

    return energy


def local_energies(
    log_psi: LogPsi,
    system: System,
    *,
    method: Method = "auto",
    chunk: int | None = None,
    sign_and_log: SignAndLog | None = None,
    near: int | None = None,
) -> Callable[[Any, Any], Any]:
    """Return a function (params, x: (B, n, 3)) -> local energies (B,), computed `chunk` walkers at a time."""
    each = local_energy(log_psi, system, method=method, sign_and_log=sign_and_log, near=near)
    return lambda params, x: over_walkers(lambda walker: each(params, walker), x, chunk=chunk)


def _nuclear_repulsion(system: System, dtype: Any) -> Any:
    """Return the Coulomb energy of the nuclei, whose positions may be traced."""
    if isinstance(system.positions, tuple):
        return system.repulsion
    first, second = np.triu_indices(system.nuclei, 1)
    charges, nuclei = np.asarray(system.core_charges, float), jnp.asarray(system.positions, dtype)
    products = jnp.asarray(charges[first] * charges[second], dtype)
    return jnp.sum(products / _lengths(nuclei[first] - nuclei[second]))


def walker_energies(
    wave: Any, *, method: Method = "auto", chunk: int | None = None
) -> Callable[[Any, Any], Any]:
    """Return `local_energies` of a wave function of one state or of several."""
    if (matrices := state_matrices(wave, method=method, chunk=chunk)) is not None:
        return lambda params, x: jnp.trace(matrices(params, x), axis1=1, axis2=2)
    return local_energies(
        wave.log,
        wave.system,
        method=method,
        chunk=chunk,
        sign_and_log=wave.sign_and_log,
        near=wave.near if isinstance(wave, WaveFunction) else None,
    )


def state_matrices(
    wave: Any, *, method: Method = "auto", chunk: int | None = None
) -> Callable[[Any, Any], Any] | None:
    """Return a function (params, x: (B, K n, 3)) -> energy matrices (B, K, K) of K states.

    None for the wave function of a single state.
    """
    if not isinstance(wave, WaveFunction) or wave.single is None:
        return None
    single = wave.single
    energy = local_energy(
        single.log, single.system, method=method, sign_and_log=single.sign_and_log, near=single.near
    )
    each = energy_matrix(single.sign_and_log, energy, wave.config.states)
    return lambda params, x: over_walkers(lambda walker: each(params, walker), x, chunk=chunk)


def _lengths(vectors: Any) -> Any:
    return jnp.sqrt(jnp.sum(vectors**2, axis=-1))
