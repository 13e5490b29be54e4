"""The yardstick of `forms.py`: a straightforward FermiNet step with folx, without any optimisation.

Letters: B walkers, n electrons, D determinants. Each layer concatenates [h, mean up, mean down, pairs up,
pairs down] for every electron and multiplies by one matrix; determinants use slogdet (on a CPU ours, since
JAX's batched LAPACK calls can deadlock there); the Laplacian is `folx.forward_laplacian` of log|psi|,
vmapped; moves, energies, gradient and Adam are one jitted program. Architecture and parameters are those of
pinchpoint: `join_weights` converts its weights, and both give the same log|psi|. Only FermiNets with at least
one electron of each spin are supported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import folx
import jax
import jax.numpy as jnp

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.determinants import sum_of_determinants
from pinchpoint.systems.vmc.model.envelopes import log_cusp, soft_radii
from pinchpoint.systems.vmc.model.features import geometry, one_electron, two_electrons
from pinchpoint.systems.vmc.model.hamiltonian import potential
from pinchpoint.systems.vmc.model.jastrow import log_jastrow

PARTS = ("self", "mean_up", "mean_down", "pairs_up", "pairs_down")
RATE, DECAYS, TINY, CLIP, WIDTH = 1e-3, (0.9, 0.999), 1e-8, 5.0, 0.1


def join_weights(params: Any) -> Any:
    """Return pinchpoint's parameters with the weights of each layer joined into one matrix."""
    ones = [
        {"weights": jnp.concatenate([one[part] for part in PARTS]), "bias": one["bias"]}
        for one in params["network"]["one"]
    ]
    return {**params, "network": {"one": ones, "two": params["network"]["two"]}}


class State(NamedTuple):
    """The state between steps.

    x: (B, n, 3); mean, square: the moments of Adam, shaped like the parameters; step: (), steps taken.
    """

    params: Any
    mean: Any
    square: Any
    x: Any
    key: Any
    step: Any


def begin(params: Any, x: Any, seed: int = 0) -> State:
    """Return a state of joined weights and positions, both copied, because a step reuses their memory."""
    params = jax.tree_util.tree_map(jnp.array, params)
    mean, square = (jax.tree_util.tree_map(jnp.zeros_like, params) for _ in range(2))
    return State(params, mean, square, jnp.array(x), jax.random.key(seed), jnp.asarray(0, jnp.int32))


@dataclass(frozen=True)
class Plain:
    """The network `config` on `system`, and its step.

    precision: of its products; None is the default of JAX, TF32 on GPUs. library: determinants by slogdet,
    with the rule of folx.
    """

    system: System
    config: NetConfig
    moves: int = 10
    precision: Any = jax.lax.Precision.HIGHEST
    library: bool = False

    def __post_init__(self) -> None:
        if (
            self.config.kind != "ferminet"
            or not self.config.full
            or not (self.system.up and self.system.down)
        ):
            raise BadInput(
                "There is no yardstick for this network.",
                hint="Use a FermiNet with full determinants and both spins.",
            )

    def log(self, params: Any, x: Any) -> Any:
        """Return log|psi| of one walker x (n, 3). params: from `join_weights`."""
        places, up = geometry(self.system, x), self.system.up
        h, pairs = one_electron(self.system, places), two_electrons(places)
        for one, two in zip(params["network"]["one"], params["network"]["two"], strict=True):
            new = jnp.tanh(self._product(pairs, two["weights"]) + two["bias"])
            pairs = pairs + new if pairs.shape == new.shape else new
            means = [jnp.broadcast_to(jnp.mean(part, axis=0), h.shape) for part in (h[:up], h[up:])]
            beside = [jnp.mean(part, axis=1) for part in (pairs[:, :up], pairs[:, up:])]
            new = jnp.tanh(
                self._product(jnp.concatenate([h, *means, *beside], axis=1), one["weights"]) + one["bias"]
            )
            h = h + new if h.shape == new.shape else new
        log = self._log_determinants(self._orbitals(params, h, soft_radii(self.system, places)))
        log = log + jnp.sum(log_cusp(self.system, params["cusp"], places))
        return log + log_jastrow(self.system, params["jastrow"], places.apart) if self.config.jastrow else log

    def _log_determinants(self, orbitals: Any) -> Any:
        """Return log|sum of the determinants| of matrices (D, n, n)."""
        if not self.library:
            return sum_of_determinants([orbitals])[1]
        sign, log = jnp.linalg.slogdet(orbitals)
        largest = jax.lax.stop_gradient(jnp.max(log))
        return jnp.log(jnp.abs(jnp.sum(sign * jnp.exp(log - largest)))) + largest

    def _orbitals(self, params: Any, h: Any, radii: Any) -> Any:
        """Return the orbitals (D, n, n): the network's factors times the envelopes."""
        rows = []
        for spin, part in (("up", slice(0, self.system.up)), ("down", slice(self.system.up, None))):
            orbital, shape = params["orbital"][spin], params["envelope"][spin]
            factors = self._product(h[part], orbital["weights"]) + orbital["bias"]
            factors = factors.reshape(-1, self.config.determinants, self.system.electrons)
            decay = jnp.exp(-radii[part][:, :, None, None] * jax.nn.softplus(shape["sigma"]))
            rows.append(factors * jnp.sum(shape["pi"] * decay, axis=1))
        return jnp.swapaxes(jnp.concatenate(rows), 0, 1)

    def _product(self, x: Any, weights: Any) -> Any:
        return jnp.matmul(x, weights, precision=self.precision)

    def energies(self, params: Any, x: Any) -> Any:
        """Return the local energies (B,) of walkers x (B, n, 3)."""

        def energy(walker: Any) -> Any:
            forward = folx.forward_laplacian(lambda x: self.log(params, x), sparsity_threshold=0)
            log: Any = forward(walker)
            kinetic = -0.5 * (log.laplacian + jnp.sum(log.jacobian.dense_array**2))
            return kinetic + potential(self.system, walker)

        return jax.vmap(energy)(x)

    def walk(self, params: Any, x: Any, key: Any) -> Any:
        """Return the walkers (B, n, 3) after Metropolis moves that move all electrons at once."""
        logs = jax.vmap(self.log, (None, 0))

        def turn(carried: Any, key: Any) -> Any:
            x, log = carried
            where, accept = jax.random.split(key)
            there = x + WIDTH * jax.random.normal(where, x.shape, x.dtype)
            log_there = logs(params, there)
            accepted = jnp.log(jax.random.uniform(accept, log.shape, log.dtype)) < 2 * (log_there - log)
            return (jnp.where(accepted[:, None, None], there, x), jnp.where(accepted, log_there, log)), None

        return jax.lax.scan(turn, (x, logs(params, x)), jax.random.split(key, self.moves))[0][0]

    def step(self) -> Callable[[State], tuple[State, Any]]:
        """Return a jitted function from state to (state, energy), which donates the state."""
        return jax.jit(self._step, donate_argnums=0)

    def _step(self, state: State) -> tuple[State, Any]:
        key, here = jax.random.split(state.key)
        x = self.walk(state.params, state.x, here)
        energies = self.energies(state.params, x)
        middle = jnp.median(energies)
        reach = CLIP * jnp.mean(jnp.abs(energies - middle))
        weights = jnp.clip(energies, middle - reach, middle + reach)
        weights = 2 * (weights - weights.mean()) / len(weights)

        def loss(params: Any) -> Any:
            return jnp.sum(weights * jax.vmap(self.log, (None, 0))(params, x))

        tree, (first, second) = jax.tree_util.tree_map, DECAYS
        gradient = jax.grad(loss)(state.params)
        mean = tree(lambda m, g: first * m + (1 - first) * g, state.mean, gradient)
        square = tree(lambda s, g: second * s + (1 - second) * g**2, state.square, gradient)
        turns = state.step + 1
        params = tree(
            lambda p, m, s: p - RATE * (m / (1 - first**turns)) / (jnp.sqrt(s / (1 - second**turns)) + TINY),
            state.params,
            mean,
            square,
        )
        return State(params, mean, square, x, key, turns), energies.mean()
