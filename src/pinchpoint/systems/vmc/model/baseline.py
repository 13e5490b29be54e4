"""The training step of the FermiNeuT optimisation report, rewritten from its description for comparison only.

Letters: B walkers, n electrons, M nuclei, D determinants; one and two are the widths of the streams. What
makes that code slow is reproduced: every Langevin move runs operation by operation from Python, and its first
energy is a gradient of a gradient, built again for every walker and coordinate. What makes it wrong at no
cost in time is reproduced too: it has no envelope, separate orbital weights for each electron (so it is not
antisymmetric), no nuclear repulsion, moves without the ratio of the proposal densities, and the variance as
loss, differentiated through the local energy. The energy with its gradient and the optimizer are one jitted
program each, which is faster than the code that the report describes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pinchpoint.kit import kinetic_energy
from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.hamiltonian import LogPsi, potential
from pinchpoint.systems.vmc.optimization.optimizers import adam_change

RATE = 1e-3
TIME = 0.02  # time step of a Langevin move
SOFT = 1e-6  # added under the square root of every distance

Params = dict[str, Any]


def nested_energies(log_psi: LogPsi, params: Any, system: System, x: Any) -> Any:
    """Return local energies (B,), computed in Python loops over walkers and coordinates. Nothing is jitted.

    Every coordinate of every walker has its own derivatives. Works for any wave function log_psi(params, x),
    so that faster methods can be compared with it. x: (B, n, 3).
    """
    energies = []
    for walker in x:
        kinetic = kinetic_energy(lambda place: log_psi(params, place), walker, method="nested")
        energies.append(kinetic + potential(system, walker))
    return jnp.stack(energies)


@dataclass(frozen=True)
class Baseline:
    """The network and training step of the report, for one system."""

    system: System
    config: NetConfig
    moves: int

    def init(self, key: Any) -> Params:
        """Return normal random weights and zero biases."""
        n, one, two, determinants = (
            self.system.electrons,
            self.config.one,
            self.config.two,
            self.config.determinants,
        )
        wide, pair = 4 * self.system.nuclei, 4
        params: Params = {"layers": []}
        for layer in range(self.config.layers):
            a, b, key = jax.random.split(jax.random.fold_in(key, layer), 3)
            params["layers"].append(
                {
                    "one": jax.random.normal(a, (2 * wide + pair, one)) / (2 * wide + pair) ** 0.5,
                    "one_bias": jnp.zeros(one),
                    "two": jax.random.normal(b, (pair, two)) / pair**0.5,
                    "two_bias": jnp.zeros(two),
                }
            )
            wide, pair = one, two
        params["orbitals"] = jax.random.normal(key, (determinants, n, one, n)) / one**0.5
        params["mix"] = jnp.ones(determinants) / determinants
        return params

    def log_psi(self, params: Params, x: Any) -> Any:
        """Return log|psi| of one walker x: (n, 3)."""
        n = self.system.electrons
        nuclei = jnp.asarray(self.system.positions, x.dtype)
        to_nuclei = x[:, None] - nuclei
        far = jnp.sqrt(jnp.sum(to_nuclei**2, axis=-1, keepdims=True) + SOFT)
        h = jnp.concatenate([to_nuclei, far], axis=-1).reshape(n, -1)
        apart = x[:, None] - x
        pairs = jnp.concatenate([apart, jnp.sqrt(jnp.sum(apart**2, axis=-1, keepdims=True) + SOFT)], axis=-1)
        for layer in params["layers"]:
            shared = jnp.broadcast_to(jnp.mean(h, axis=0), h.shape)
            h = jnp.tanh(
                jnp.concatenate([h, shared, jnp.mean(pairs, axis=1)], axis=-1) @ layer["one"]
                + layer["one_bias"]
            )
            pairs = jnp.tanh(pairs @ layer["two"] + layer["two_bias"])
        orbitals = jnp.einsum("io,diok->dik", h, params["orbitals"])
        return jnp.log(jnp.abs(jnp.sum(params["mix"] * jnp.linalg.det(orbitals))) + 1e-10)

    def walk(self, params: Params, x: Any, key: Any) -> Any:
        """Take Langevin moves of all walkers (B, n, 3), operation by operation, without jit."""
        slope = jax.vmap(jax.grad(self.log_psi, argnums=1), (None, 0))
        logs = jax.vmap(self.log_psi, (None, 0))
        for _ in range(self.moves):
            key, to_where, to_accept = jax.random.split(key, 3)
            there = (
                x
                + TIME * slope(params, x)
                + (2 * TIME) ** 0.5 * jax.random.normal(to_where, x.shape, x.dtype)
            )
            ratio = jnp.exp(2 * (logs(params, there) - logs(params, x)))
            accepted = jax.random.uniform(to_accept, ratio.shape, ratio.dtype) < ratio
            x = jnp.where(accepted[:, None, None], there, x)
        return x

    def energies(self, params: Params, x: Any) -> Any:
        """Return local energies (B,) without the nuclear repulsion, from full Hessians."""

        def each(walker: Any) -> Any:
            kinetic = kinetic_energy(lambda place: self.log_psi(params, place), walker, method="hessian")
            return kinetic + self._attraction(walker)

        return jax.vmap(each)(x)

    @partial(jax.jit, static_argnums=0)
    def energy_and_gradient(self, params: Params, x: Any) -> tuple[Any, Params]:
        """Return the mean energy and the gradient of the variance of the energies."""

        def loss(params: Params) -> tuple[Any, Any]:
            energies = self.energies(params, x)
            return energies.var(), energies.mean()

        gradient, energy = jax.grad(loss, has_aux=True)(params)
        return energy, gradient

    @partial(jax.jit, static_argnums=0)
    def update(
        self, params: Params, mean: Params, square: Params, gradient: Params, step: Any
    ) -> tuple[Params, Params, Params]:
        """Take one step of Adam."""
        change, mean, square = adam_change(gradient, mean, square, step)
        return jax.tree_util.tree_map(lambda p, c: p - RATE * c, params, change), mean, square

    @partial(jax.jit, static_argnums=0)
    def forward(self, params: Params, x: Any) -> Any:
        """Return log|psi|, (B,)."""
        return jax.vmap(self.log_psi, (None, 0))(params, x)

    def step(
        self, params: Params, mean: Params, square: Params, x: Any, key: Any, step: Any
    ) -> tuple[tuple[Params, Params, Params, Any], Any]:
        """Take one training step: moves, energy with gradient, Adam.

        Returns the arguments of the next step, and the energy.
        """
        x = self.walk(params, x, key)
        energy, gradient = self.energy_and_gradient(params, x)
        return (*self.update(params, mean, square, gradient, step), x), energy

    def _attraction(self, x: Any) -> Any:
        nuclei, charges = (
            jnp.asarray(self.system.positions, x.dtype),
            jnp.asarray(self.system.charges, x.dtype),
        )
        first, second = np.triu_indices(self.system.electrons, 1)
        near = jnp.sqrt(jnp.sum((x[:, None] - nuclei) ** 2, axis=-1) + SOFT)
        apart = jnp.sqrt(jnp.sum((x[first] - x[second]) ** 2, axis=-1) + SOFT)
        return jnp.sum(1 / apart) - jnp.sum(charges / near)
