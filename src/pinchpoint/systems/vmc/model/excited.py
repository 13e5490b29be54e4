"""Several lowest states at once: natural excited states, whose total wave function is one determinant.

Letters: K states, n electrons of the system. A walker holds K copies of the electrons, (K n, 3), and the
total wave function is the determinant of the matrix psi_j(copy i). Its lowest energy is the sum of the
energies of the K lowest states of the electrons' spins, so that it is trained like any other wave function:
no penalty and no orthogonality has to be enforced. The energies of the single states are the eigenvalues of
the mean of the matrix psi^-1 (H psi), whose trace is the local energy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pinchpoint.systems.vmc.model.determinants import sum_of_determinants

Array = jax.Array
SignAndLog = Callable[[Any, Any], tuple[Any, Any]]


def init_states(init: Callable[[Array, int], Any], states: int) -> Callable[[Array], Any]:
    """Return init of all states: the parameters of each, drawn independently, stacked along a first axis.

    init: of a key and the number of the state.
    """

    def init_all(key: Array) -> Any:
        each = [init(part, state) for state, part in enumerate(jax.random.split(key, states))]
        return jax.tree_util.tree_map(lambda *leaves: jnp.stack(leaves), *each)

    return init_all


def total_sign_and_log(sign_and_log: SignAndLog, states: int) -> SignAndLog:
    """Return the sign and the logarithm of the total wave function, of params stacked by `init_states`."""

    def total(params: Any, x: Any) -> tuple[Any, Any]:
        matrix, shifts = _matrix(sign_and_log, params, x, states)
        sign, log = sum_of_determinants([matrix[None]])
        return sign, log + jnp.sum(shifts)

    return total


def energy_matrix(
    sign_and_log: SignAndLog, energy: Callable[[Any, Any], Any], states: int
) -> Callable[[Any, Any], Any]:
    """Return a function (params, x: (K n, 3)) -> psi^-1 (H psi), (K, K).

    energy: the local energy (params, x: (n, 3)) of one state.
    """

    def of_walker(params: Any, x: Any) -> Any:
        matrix, _ = _matrix(sign_and_log, params, x, states)
        copies = x.reshape(states, -1, 3)
        energies = jax.vmap(lambda copy: jax.vmap(energy, (0, None))(params, copy))(copies)
        return jnp.linalg.solve(matrix, matrix * energies)

    return of_walker


def _matrix(sign_and_log: SignAndLog, params: Any, x: Any, states: int) -> tuple[Any, Any]:
    """Return psi_j(copy i) times e^-shift_i, (K, K), and the shifts (K,), which prevent underflow."""
    copies = x.reshape(states, -1, 3)
    signs, logs = jax.vmap(lambda copy: jax.vmap(sign_and_log, (0, None))(params, copy))(copies)
    # They cancel out, so they need no derivative.
    shifts = jax.lax.stop_gradient(jnp.maximum(jnp.max(logs, axis=1), jnp.finfo(logs.dtype).min))
    return signs * jnp.exp(logs - shifts[:, None]), shifts
