"""Closed-form wave functions of non-interacting electrons around one nucleus.

Hydrogen-like atoms are exact, helium-like ones are the product exp(-a (r1 + r2)), and more electrons the
determinants of 1s, 2s and 2p orbitals, exact for the Hamiltonian without electron-electron repulsion. Params
= {"a": the charge that the electrons feel}, initially the nuclear charge. Letters: n electrons, k of one
spin.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.determinants import sum_of_determinants
from pinchpoint.systems.vmc.model.features import geometry
from pinchpoint.systems.vmc.model.ferminet import spins
from pinchpoint.systems.vmc.model.wavefunction import Params, WaveFunction

Array = jax.Array

_SHELL = (1, 2, 2, 2, 2)  # principal numbers of 1s, 2s, 2px, 2py, 2pz


def hydrogenic(system: System) -> WaveFunction:
    """Determinants of the lowest hydrogen-like orbitals of each spin.

    For one nucleus and up to five electrons of a spin.
    """
    assert system.nuclei == 1 and max(system.up, system.down) <= len(_SHELL)

    def init(key: Array) -> Params:
        del key  # nothing is drawn
        return {"a": jnp.asarray(float(system.charges[0]))}

    def orbitals(params: Params, x: Array) -> tuple[Array, ...]:
        places = geometry(system, x)
        a, r, d = params["a"], places.nuclear[:, 0], places.to_nuclei[:, 0]
        inner, outer = jnp.exp(-a * r), jnp.exp(-a * r / 2)
        rows = jnp.stack([inner, (1 - a * r / 2) * outer, *(d[:, axis] * outer for axis in range(3))], axis=1)
        return tuple(rows[None, part, : part.stop - part.start] for part in spins(system).values())

    def sign_and_log(params: Params, x: Array) -> tuple[Array, Array]:
        return sum_of_determinants(orbitals(params, x))

    config = NetConfig("ferminet", one=1, two=1, layers=1, determinants=1, full=False, jastrow=False)
    return WaveFunction(system, config, init, sign_and_log, orbitals)


def independent_energy(system: System) -> float:
    """Energy of `hydrogenic` at its start, where electrons do not repel one another."""
    levels = [-((system.charges[0] / number) ** 2) / 2 for number in _SHELL]
    return math.fsum(level for count in (system.up, system.down) for level in levels[:count])
