"""Local energies of a frozen wave function, moves and energies of many steps as one program; observables.

B walkers. The width of the proposals is constant as well, so that the samples follow |psi|^2 exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.hamiltonian import state_matrices, walker_energies
from pinchpoint.systems.vmc.model.observables import (
    ForceParts,
    dipole,
    force_parts,
    quadrupole,
    spin_excess,
)
from pinchpoint.systems.vmc.optimization.chunks import over_walkers
from pinchpoint.systems.vmc.optimization.devices import placing_jit
from pinchpoint.systems.vmc.optimization.sampling import Walkers, moves, refresh
from pinchpoint.systems.vmc.optimization.training_step import Wave
from pinchpoint.systems.vmc.settings import Settings


class Observations(NamedTuple):
    """Measurements of many steps. energies: (count, B) in hartree, unclipped; acceptance: (count,).

    Of a wave function of K states, energies are the matrices (count, B, K, K) of `state_matrices`.
    """

    energies: Any
    acceptance: Any


def make_observe(
    wave: Wave, settings: Settings, count: int, *, mesh: Mesh | None = None
) -> Callable[[Any, Walkers, Any, Any, Any], tuple[Walkers, Observations]]:
    """Return observe(params, walkers, first, key, nuclei) -> (walkers, Observations).

    It takes `count` steps of `settings.moves` moves each. first: the number of the first step; key: that of
    the stage, folded with the number of each step; nuclei: (M, 3), positions. Key and nuclei are arguments,
    so that one program serves all seeds and bond lengths. The walkers are donated.
    """
    if count < 1:
        raise BadInput(f"A program cannot have {count} steps.", hint="Use at least 1.")

    def observe(
        params: Any, walkers: Walkers, first: Any, base: Any, nuclei: Any
    ) -> tuple[Walkers, Observations]:
        own = wave.at(nuclei)
        matrices_of = state_matrices(own, method=settings.method, chunk=settings.chunk)
        energies_of = matrices_of or walker_energies(own, method=settings.method, chunk=settings.chunk)

        def turn(walkers: Walkers, at: Any) -> tuple[Walkers, Observations]:
            key = jax.random.fold_in(base, first + at)
            walkers, accepted = moves(
                own.log, params, walkers, key, steps=settings.moves, kind=settings.kind, system=own.system
            )
            return walkers, Observations(energies_of(params, walkers.x), accepted)

        return jax.lax.scan(turn, refresh(own.log, params, walkers), jnp.arange(count))

    return placing_jit(observe, mesh=mesh, donate=1)


class Measurements(NamedTuple):
    """Observables of B walkers: spin_excess (B,), dipole (B, 3), quadrupole (B, 3, 3), forces: (B, ...).

    There are no forces with pseudopotentials.
    """

    spin_excess: Any
    dipole: Any
    quadrupole: Any
    forces: ForceParts | None


def make_measure(
    wave_of: Callable[[System], Wave], system: System, settings: Settings, *, mesh: Mesh | None = None
) -> Callable[[Any, Any], Measurements]:
    """Return measure(params, x: (B, n, 3)) -> Measurements. wave_of: the wave function of a moved system."""
    wave = wave_of(system)

    def measure(params: Any, x: Any) -> Measurements:
        def each(walker: Any) -> Measurements:
            return Measurements(
                spin_excess(wave.sign_and_log, system, params, walker),
                dipole(system, walker),
                quadrupole(system, walker),
                None
                if system.pseudopotential
                else force_parts(wave_of, system, params, walker, method=settings.method),
            )

        return over_walkers(each, x, chunk=settings.chunk)

    return placing_jit(measure, mesh=mesh, donate=())
