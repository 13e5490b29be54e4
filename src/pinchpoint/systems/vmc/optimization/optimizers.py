"""Parameter updates from local energies: Adam and SPRING.

B walkers, P parameters in total. Neither differentiates through the local energy: the gradient of the energy
is 2 mean((E - mean E) grad log|psi|). The optimizer of a step is fixed when the step is compiled. The state
of an optimizer is flat, (P,): one operation handles all parameters, where a tree would cost a GPU one launch
per leaf.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from pinchpoint.systems.vmc.model.hamiltonian import LogPsi
from pinchpoint.systems.vmc.optimization.spring import centred_scores, in_order, score_sum, spring_direction
from pinchpoint.systems.vmc.settings import OptimizerStage, Settings

_DECAYS = (0.9, 0.999)  # of Adam's mean and mean square
_TINY = 1e-8


class OptimizerState(NamedTuple):
    """The state of the optimizers, (P,) each.

    mean, square: those of Adam (None without it); direction: the last one of SPRING (None without it).
    """

    mean: Any
    square: Any
    direction: Any


def optimizer_state(params: Any, settings: Settings) -> OptimizerState:
    """Return the initial state, which is zero."""

    def zeros(
        stage: OptimizerStage,
    ) -> Any:  # a separate array each, because donated arrays must not share memory
        return jnp.zeros_like(ravel_pytree(params)[0]) if stage in settings.optimizer else None

    return OptimizerState(zeros("adam"), zeros("adam"), zeros("spring"))


def update(
    log_psi: LogPsi,
    params: Any,
    state: OptimizerState,
    x: Any,
    energies: Any,
    step: Any,
    settings: Settings,
    *,
    stage: OptimizerStage,
    spring_from: Any = None,
    mesh: Mesh | None = None,
) -> tuple[Any, OptimizerState]:
    """Return the update (P,) of all parameters in one step, and the new state.

    x: (B, n, 3); energies: (B,), clipped; step: (), the number of the step in the run, from 0; spring_from:
    (), that of the first step by SPRING, by default the one of the settings.
    """
    if stage == "adam":
        gradient = energy_gradient(log_psi, params, x, energies, chunk=settings.chunk)
        change, mean, square = adam_change(gradient, state.mean, state.square, step)
        rate = settings.adam_rate / (1 + step / settings.adam_decay)
        return -jnp.asarray(rate, change.dtype) * change, state._replace(mean=mean, square=square)
    direction = _spring(log_psi, params, state.direction, x, energies, settings, mesh)
    since = step - (settings.adam_until if spring_from is None else spring_from)
    rate = settings.spring_rate / (1 + since / settings.spring_decay)
    rate = jnp.minimum(rate, math.sqrt(settings.norm_cap) / jnp.maximum(jnp.linalg.norm(direction), _TINY))
    return -jnp.asarray(rate, direction.dtype) * direction, state._replace(direction=direction)


def energy_gradient(log_psi: LogPsi, params: Any, x: Any, energies: Any, *, chunk: int | None = None) -> Any:
    """Return the energy gradient 2 mean((E - mean E) grad log|psi|), (P,)."""
    weights = 2 * (energies - energies.mean()) / energies.shape[0]
    return score_sum(log_psi, params, x, weights, chunk=chunk)


def adam_change(gradient: Any, mean: Any, square: Any, step: Any) -> tuple[Any, Any, Any]:
    """Return the direction of Adam, to be subtracted, and the new mean and mean square.

    step: counted from 0. Works for arrays and trees.
    """
    tree = jax.tree_util.tree_map
    first, second = _DECAYS
    mean = tree(lambda m, g: first * m + (1 - first) * g, mean, gradient)
    square = tree(lambda s, g: second * s + (1 - second) * g**2, square, gradient)
    # 1 - decay**(step + 1), computed with expm1: in float32, the difference itself would lose four digits.
    of_mean, of_square = (-jnp.expm1((step + 1) * math.log(decay)) for decay in _DECAYS)

    def change(m: Any, s: Any) -> Any:
        return (m / of_mean.astype(m.dtype)) / (jnp.sqrt(s / of_square.astype(s.dtype)) + _TINY)

    return tree(change, mean, square), mean, square


def _spring(
    log_psi: LogPsi, params: Any, previous: Any, x: Any, energies: Any, settings: Settings, mesh: Mesh | None
) -> Any:
    size, devices = previous.shape[0], 1 if mesh is None else mesh.size
    rows = centred_scores(log_psi, params, x, chunk=settings.chunk, mesh=mesh)
    energies = in_order(energies, size * previous.dtype.itemsize, chunk=settings.chunk, devices=devices)
    # With a mesh, the rows have extra columns of zeros.
    padded = jnp.pad(previous, (0, rows.shape[1] - size))
    direction = spring_direction(
        rows, energies, padded, momentum=settings.momentum, damping=settings.damping, mesh=mesh
    )
    return direction[:size]
