"""Changes of a wave function's parameters from local energies: Adam, SPRING, and Adam first, SPRING after.

B walkers, P parameters in all. Neither differentiates through the local energy: the energy's gradient is
2 mean((E - mean E) grad log|psi|). Everything is pure and belongs inside the caller's program.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from pinchpoint.workloads.vmc.chunks import split
from pinchpoint.workloads.vmc.hamiltonian import LogPsi
from pinchpoint.workloads.vmc.settings import Settings

_DECAYS = (0.9, 0.999)  # of Adam's mean and mean square
_TINY = 1e-8


class OptimizerState(NamedTuple):
    """mean, square: like the parameters, Adam's (None without Adam); direction: (P,) SPRING's last (None without SPRING)."""

    mean: Any
    square: Any
    direction: Any


def optimizer_state(params: Any, settings: Settings) -> OptimizerState:
    """What an optimizer begins with: zeros."""
    uses_adam, uses_spring = "adam" in settings.optimizer, "spring" in settings.optimizer

    def zeros() -> Any:  # apart from each other: donated arrays must not share their memory
        return jax.tree_util.tree_map(jnp.zeros_like, params) if uses_adam else None

    return OptimizerState(zeros(), zeros(), jnp.zeros_like(ravel_pytree(params)[0]) if uses_spring else None)


def updated(
    log_psi: LogPsi, params: Any, state: OptimizerState, x: Any, energies: Any, step: Any, settings: Settings
) -> tuple[Any, OptimizerState, Any]:
    """Parameters and state after one step, and the length of the change.

    x: (B, n, 3); energies: (B,), clipped; step: () whole number, from 0, of the whole run.
    """

    def by_adam(params: Any, state: OptimizerState) -> tuple[Any, OptimizerState]:
        gradient = energy_gradient(log_psi, params, x, energies, chunk=settings.chunk)
        rate = settings.adam_rate / (1 + step / settings.adam_decay)
        change, mean, square = adam_change(gradient, state.mean, state.square, step)
        return jax.tree_util.tree_map(lambda c: -rate * c, change), state._replace(mean=mean, square=square)

    def by_spring(params: Any, state: OptimizerState) -> tuple[Any, OptimizerState]:
        rows = scores(log_psi, params, x, chunk=settings.chunk)
        ordered = energies if settings.chunk is None else split(energies, min(settings.chunk, len(energies))).reshape(-1)
        direction = spring_direction(
            rows, ordered, state.direction, momentum=settings.momentum, damping=settings.damping
        )  # fmt: skip
        rate = settings.spring_rate / (1 + (step - settings.adam_until) / settings.spring_decay)
        length = jnp.linalg.norm(direction)
        rate = jnp.minimum(rate, jnp.sqrt(settings.norm_cap) / jnp.maximum(length, _TINY))
        _, shaped = ravel_pytree(params)
        return shaped(-rate.astype(direction.dtype) * direction), state._replace(direction=direction)

    if settings.optimizer == "adam+spring":
        change, after = jax.lax.cond(step < settings.adam_until, by_adam, by_spring, params, state)
    else:
        change, after = (by_adam if settings.optimizer == "adam" else by_spring)(params, state)
    moved = jax.tree_util.tree_map(lambda p, c: p + c.astype(p.dtype), params, change)
    return moved, after, jnp.linalg.norm(ravel_pytree(change)[0])


def energy_gradient(log_psi: LogPsi, params: Any, x: Any, energies: Any, *, chunk: int | None = None) -> Any:
    """2 mean((E - mean E) grad log|psi|), like the parameters, by one reverse pass over each chunk of walkers."""
    weights = 2 * (energies - energies.mean()) / energies.shape[0]

    def of(x: Any, weights: Any) -> Any:
        _, back = jax.vjp(lambda p: jax.vmap(log_psi, (None, 0))(p, x), params)
        return back(weights)[0]

    if chunk is None or chunk >= x.shape[0]:
        return of(x, weights)

    def turn(done: Any, part: tuple[Any, Any]) -> tuple[Any, None]:
        return jax.tree_util.tree_map(jnp.add, done, of(*part)), None

    zero = jax.tree_util.tree_map(jnp.zeros_like, params)
    return jax.lax.scan(turn, zero, (split(x, chunk), split(weights, chunk)))[0]


def adam_change(gradient: Any, mean: Any, square: Any, step: Any) -> tuple[Any, Any, Any]:
    """Adam's direction (to go against) with the new mean and mean square; step: from 0."""
    tree = jax.tree_util.tree_map
    first, second = _DECAYS
    mean = tree(lambda m, g: first * m + (1 - first) * g, mean, gradient)
    square = tree(lambda s, g: second * s + (1 - second) * g**2, square, gradient)
    # 1 - decay**(step + 1), by expm1: in float32 the difference itself would lose four digits.
    of_mean, of_square = (-jnp.expm1((step + 1) * math.log(decay)) for decay in _DECAYS)

    def change(m: Any, s: Any) -> Any:
        return (m / of_mean.astype(m.dtype)) / (jnp.sqrt(s / of_square.astype(s.dtype)) + _TINY)

    return tree(change, mean, square), mean, square


def scores(log_psi: LogPsi, params: Any, x: Any, *, chunk: int | None = None) -> Any:
    """The gradient of log|psi| by all parameters at every walker: (B, P).

    In chunks, the rows are in the order of the chunks (`chunks.split`): sorting them would copy the largest array there is.
    """
    each = jax.grad(log_psi)
    rows = jax.vmap(lambda walker: ravel_pytree(each(params, walker))[0])
    if chunk is None or chunk >= x.shape[0]:
        return rows(x)
    return jax.lax.map(rows, split(x, chunk)).reshape(x.shape[0], -1)


def spring_direction(rows: Any, energies: Any, previous: Any, *, momentum: float, damping: float) -> Any:
    """SPRING's direction (P,), to go against: previous * momentum, mended where the walkers' energies ask for it.

    rows: (B, P) scores; energies: (B,); previous: (P,). With O the centred scores over sqrt(B), e the centred energies over
    sqrt(B), m the momentum: K = O O^T + damping + 1/B, z = K^-1 (e - m O previous), direction = O^T z + m previous.
    The 1/B lifts the one direction in which O is zero by being centred.
    """
    size = rows.shape[0]
    root = jnp.sqrt(jnp.asarray(size, rows.dtype))
    rows = (rows - rows.mean(axis=0)) / root
    wanted = (energies - energies.mean()) / root - momentum * _dot(rows, previous)
    matrix = _dot(rows, rows.T) + 1 / size + damping * jnp.eye(size, dtype=rows.dtype)
    return _dot(solved(matrix, wanted), rows) + momentum * previous


def solved(matrix: Any, wanted: Any) -> Any:
    """matrix^-1 wanted for a symmetric positive matrix (B, B) that may be near singular in its kind of number.

    Cholesky of the matrix with just enough on its diagonal to stay positive under rounding; then two corrections towards the
    matrix itself, which halve what was put on or better.
    """
    extra = jnp.finfo(matrix.dtype).eps * jnp.trace(matrix)
    factor = jax.scipy.linalg.cho_factor(matrix + extra * jnp.eye(matrix.shape[0], dtype=matrix.dtype))
    found = jax.scipy.linalg.cho_solve(factor, wanted)
    for _ in range(2):
        found = found + jax.scipy.linalg.cho_solve(factor, wanted - _dot(matrix, found))
    return found


def _dot(a: Any, b: Any) -> Any:
    """With all digits: a GPU's shortened products (TF32) would make K's smallest eigenvalues negative."""
    return jnp.dot(a, b, precision=jax.lax.Precision.HIGHEST)
