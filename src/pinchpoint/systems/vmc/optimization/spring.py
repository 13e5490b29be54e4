"""The direction of SPRING: natural gradients with momentum, from a single array of walkers by parameters.

B walkers, P parameters. The rows of that array are computed for one chunk of walkers at a time, and centred
and scaled in place, so that there is never a second array of that size. On several devices, each has the
columns of its share of the parameters, for all walkers: the devices exchange one chunk of rows at a time, and
the sum of their (B, B) matrices.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pinchpoint.systems.vmc.model.hamiltonian import LogPsi
from pinchpoint.systems.vmc.optimization.chunks import split
from pinchpoint.systems.vmc.optimization.products import dot, gram

ROWS_BYTES = 1 << 28  # size of the rows computed at one time on a device, before they are copied into place
_MATRICES = (
    6  # copies alive while solving: the matrix, scaled, with its diagonal, two factors and the selected one
)
_TRIES = (8, 512)  # rounding units added to the diagonal; the second if the first has no Cholesky factor


def score_sum(log_psi: LogPsi, params: Any, x: Any, weights: Any, *, chunk: int | None = None) -> Any:
    """Return the sum over walkers of weights (B,) times the gradients of log|psi|, (P,).

    Takes one reverse pass per chunk of walkers x: (B, n, 3).
    """

    def of(x: Any, weights: Any) -> Any:
        _, back = jax.vjp(lambda p: jax.vmap(log_psi, (None, 0))(p, x), params)
        return ravel_pytree(back(weights)[0])[0]

    if chunk is None or chunk >= x.shape[0]:
        return of(x, weights)

    def turn(done: Any, part: tuple[Any, Any]) -> tuple[Any, None]:
        return done + of(*part), None

    zero = jnp.zeros_like(ravel_pytree(params)[0])
    return jax.lax.scan(turn, zero, (split(x, chunk), split(weights, chunk)))[0]


def centred_scores(
    log_psi: LogPsi, params: Any, x: Any, *, chunk: int | None = None, mesh: Mesh | None = None
) -> Any:
    """Return the gradient of log|psi| at every walker minus the mean, divided by sqrt(B), (B, P).

    With chunks, the rows are in the order of the chunks (`rows_at_once`, `chunks.split`): sorting them would
    copy the largest array. With a mesh, columns of zeros are added until the devices can share them evenly.
    """
    size, devices = x.shape[0], 1 if mesh is None else mesh.size
    mean = score_sum(log_psi, params, x, jnp.full(size, 1 / size, x.dtype), chunk=chunk)
    root, each = math.sqrt(size), jax.grad(log_psi)
    more = -mean.shape[0] % devices

    def rows(part: Any) -> Any:
        scores = jax.vmap(lambda walker: ravel_pytree(each(params, walker))[0])(part)
        scores = jnp.pad((scores - mean) / root, ((0, 0), (0, more)))
        return scores if mesh is None else _exchange(scores, mesh)

    part = rows_at_once(size, mean.shape[0] * mean.dtype.itemsize, chunk=chunk, devices=devices)
    return rows(x) if part == size else jax.lax.map(rows, split(x, part)).reshape(size, -1)


def _exchange(rows: Any, mesh: Mesh) -> Any:
    """Redistribute rows from the devices of their walkers, so that each device has its share of columns."""
    by_walkers, by_parameters = PartitionSpec(mesh.axis_names), PartitionSpec(None, mesh.axis_names)
    # The first constraint places the computation: without it, every device would compute all rows.
    for spec in (by_walkers, by_parameters):
        rows = jax.lax.with_sharding_constraint(rows, NamedSharding(mesh, spec))
    return rows


def rows_at_once(walkers: int, row_bytes: int, *, chunk: int | None, devices: int = 1) -> int:
    """Return how many walkers' rows are computed at one time: the chunk, or fewer if that is too much."""
    most = min(chunk or walkers, walkers, max(1, devices * ROWS_BYTES // row_bytes))
    parts = [part for part in range(1, most + 1) if walkers % part == 0]
    return max((part for part in parts if part % devices == 0), default=max(parts))


def spring_bytes(walkers: int, parameters: int, item_bytes: int) -> int:
    """Return about how many bytes SPRING needs for any chunk: its rows, and a few (B, B) matrices."""
    return walkers * (parameters + _MATRICES * walkers) * item_bytes


def in_order(values: Any, row_bytes: int, *, chunk: int | None, devices: int = 1) -> Any:
    """Return values (B,) in the order of the rows of `centred_scores`."""
    part = rows_at_once(values.shape[0], row_bytes, chunk=chunk, devices=devices)
    return values if part == values.shape[0] else split(values, part).reshape(-1)


def spring_direction(
    rows: Any, energies: Any, previous: Any, *, momentum: float, damping: float, mesh: Mesh | None = None
) -> Any:
    """Return the direction (P,) of SPRING, to be subtracted.

    It is previous * momentum, corrected by the energies of the walkers. rows: (B, P), the centred scores over
    sqrt(B), called O; energies: (B,), in the same order; previous: (P,). With e the centred energies over
    sqrt(B) and m the momentum: K = O O^T + damping + 1/B, z = K^-1 (e - m O previous), direction = O^T z +
    m previous. The 1/B lifts the one direction in which O is zero, because it is centred.
    """
    size = rows.shape[0]
    target = (energies - energies.mean()) / math.sqrt(size) - momentum * dot(rows, previous)
    matrix = gram(rows, mesh=mesh) + 1 / size + damping * jnp.eye(size, dtype=rows.dtype)
    if (
        mesh is not None
    ):  # every device solves the whole system: sharded factors would be gathered again and again
        matrix, target = jax.lax.with_sharding_constraint(
            (matrix, target), NamedSharding(mesh, PartitionSpec())
        )
    return dot(solve(matrix, target), rows) + momentum * previous


def solve(matrix: Any, target: Any) -> Any:
    """Return matrix^-1 target for a symmetric positive matrix (B, B) that may be nearly singular.

    The matrix is scaled to about one on the diagonal, so that walkers with small scores are solved as
    accurately as those with large ones. It is factored by Cholesky with a little added to the diagonal, or
    more if that fails, and the solution is improved by two steps of iterative refinement. Both attempts are
    always made, because a conditional loop would make the host wait for the device in every step. If both
    fail, the result is NaN, and the step is skipped.
    """
    eps = jnp.finfo(matrix.dtype).eps
    # Powers of two, so that scaling is exact.
    scale = jnp.ldexp(jnp.ones((), matrix.dtype), -(jnp.frexp(jnp.diagonal(matrix))[1] // 2))
    scaled = matrix * scale[:, None] * scale
    eye = jnp.eye(matrix.shape[0], dtype=matrix.dtype)

    first, second = (
        jax.lax.linalg.cholesky(scaled + tries * eps * eye, symmetrize_input=False) for tries in _TRIES
    )
    factor = jnp.where(jnp.isfinite(jnp.trace(first)), first, second)
    right = scale * target
    solution = jax.scipy.linalg.cho_solve((factor, True), right)
    for _ in range(2):
        solution = solution + jax.scipy.linalg.cho_solve((factor, True), right - dot(scaled, solution))
    return scale * solution
