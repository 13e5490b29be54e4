"""Sampling of |psi|^2: initial positions, Metropolis and Langevin moves, and adaptation of their width.

B walkers, n electrons; all electrons of a walker move together. Moves are turns of one loop inside the
caller's program, which carries log|psi| along. The width is constant within a call, so each call satisfies
detailed balance. Scaled Metropolis moves are shorter near the nuclei: with one width for all electrons, those
of the cores would force it on the valence electrons, which then take hundreds of moves across the molecule.
On a GPU, the time of small systems is dominated by the number of launches, so all random numbers of a call
are drawn at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.hamiltonian import LogPsi
from pinchpoint.systems.vmc.settings import Kind, Stage

# Electrons of all walkers times parameters: below this, launching a pass on a GPU takes longer than its work.
_SMALL = 1e8
# Most moves that are unrolled; 1 turns unrolling off. Each saves the few launches of a loop turn, but is
# compiled separately: for H2 on an H200, ten instead of five take 1 s longer to compile and make a step 10 %
# shorter.
MOST_UNROLLED = 10
_LARGEST_CHANGE = 0.2  # of log(width) in one adaptation
_WIDTHS = (1e-3, 10.0)  # bohr


class Walkers(NamedTuple):
    """Walkers and the width of their proposals.

    x: (B, n, 3) in bohr; log: (B,), log|psi| with the parameters of the last moves; width: () in bohr.
    """

    x: Any
    log: Any
    width: Any


def stage_key(seed: int, stage: Stage) -> Any:
    """Return the random key of a stage, from which the keys of its steps are derived."""
    return jax.random.fold_in(jax.random.key(seed), int(stage))


def key_of(seed: int, stage: Stage, step: Any = 0) -> Any:
    """Return the random key of one step. It does not depend on when or on how many devices the step runs."""
    return jax.random.fold_in(stage_key(seed, stage), step)


def start(system: System, walkers: int, key: Any, *, dtype: Any = None, copies: int = 1) -> Any:
    """Return positions (B, n, 3) near the nuclei; (B, copies n, 3) of several copies of the electrons.

    Spins alternate on each nucleus, so that atoms start neutral.
    """
    homes = jnp.asarray([system.positions[at] for at in _homes(system)] * copies, dtype)
    return homes + jax.random.normal(key, (walkers, *homes.shape), homes.dtype)


def moves(
    log_psi: LogPsi,
    params: Any,
    walkers: Walkers,
    key: Any,
    *,
    steps: int,
    kind: Kind = "metropolis",
    system: System | None = None,
    renew: bool = False,
    walk: Any = None,
) -> tuple[Walkers, Any]:
    """Take `steps` moves of every walker; returns the walkers and the accepted fraction.

    system: needed for scaled moves, whose lengths depend on the nuclei. walkers.log must belong to these
    parameters, unless `renew` is set: then it is computed with the first move. walk: that of `walk_of`, which
    takes all Metropolis moves in one kernel.
    """
    shape = walkers.x.shape
    numbers = jax.random.normal(key, (steps, shape[0], shape[1] * 3 + 2), walkers.x.dtype)
    if walk is not None and kind == "metropolis":
        x, log, accepted = walk(params, walkers.x, walkers.log, walkers.width, numbers, renew=renew)
        return Walkers(x, log, walkers.width), accepted.mean() / steps
    noise = numbers[..., :-2].reshape(steps, *shape)
    # The log of a uniform random number between 0 and 1.
    threshold = -(numbers[..., -2] ** 2 + numbers[..., -1] ** 2) / 2
    if kind == "langevin":
        x, log, accepted = _langevin(log_psi, params, walkers, noise, threshold, renew)
    else:
        assert system is not None or kind == "metropolis"
        scale = partial(move_scales, system) if system is not None and kind == "scaled" else None
        x, log, accepted = _metropolis(log_psi, params, walkers, noise, threshold, renew, scale)
    return Walkers(x, log, walkers.width), accepted.mean() / steps


def refresh(log_psi: LogPsi, params: Any, walkers: Walkers) -> Walkers:
    """Return the same walkers with log|psi| for these parameters.

    Needed before moves if the parameters or positions have changed.
    """
    return walkers._replace(log=jax.vmap(log_psi, (None, 0))(params, walkers.x))


def adapt(walkers: Walkers, acceptance: Any, target: float) -> Walkers:
    """Return the same walkers with a width adapted to the target acceptance.

    Proposals become wider if too many moves were accepted, and narrower if too few were.
    """
    change = jnp.clip(acceptance - target, -_LARGEST_CHANGE, _LARGEST_CHANGE)
    width = jnp.clip(walkers.width * jnp.exp(change), *_WIDTHS)
    return walkers._replace(width=width.astype(walkers.width.dtype))


def move_scales(system: System, x: Any) -> Any:
    """Return the factors of the width of scaled moves, (..., n, 1). x: (..., n, 3).

    They grow with the distance d to the nearest nucleus as d / (1 + d), from 1 / (Z + 1) to 1.
    """
    nuclei = jnp.asarray(system.positions, x.dtype)
    charges = jnp.asarray(system.core_charges, x.dtype)
    squares = jnp.sum((x[..., None, :] - nuclei) ** 2, axis=-1) + 1 / charges**2
    distance = jnp.sqrt(jnp.min(squares, axis=-1, keepdims=True))
    return distance / (1 + distance)


def _metropolis(
    log_psi: LogPsi,
    params: Any,
    walkers: Walkers,
    noise: Any,
    threshold: Any,
    renew: bool,
    scale: Callable[[Any], Any] | None = None,
) -> tuple[Any, Any, Any]:
    """Return positions (B, n, 3), log|psi| (B,), and accepted moves (B,). noise: (steps, B, n, 3)."""
    logs = jax.vmap(log_psi, (None, 0))

    def propose(x: Any, noise: Any) -> tuple[Any, Any]:
        """Return a new position, and the log of the ratio of the proposal densities, reverse over forward."""
        if scale is None:
            return x + walkers.width * noise, None
        here = scale(x)
        there = x + walkers.width * here * noise
        ratio = here / scale(there)
        # Three coordinates share the scale of an electron.
        return there, jnp.sum(jnp.log(ratio) + (1 - ratio**2) * noise**2 / 2, axis=(1, 2))

    def decide(
        at: tuple[Any, ...], proposal: tuple[Any, Any], log_there: Any, threshold: Any
    ) -> tuple[Any, ...]:
        (x, log, count), (there, ratio) = at, proposal
        change = 2 * (log_there - log)
        accepted = threshold < (change if ratio is None else change + ratio)  # never if log|psi| is NaN there
        return _select(accepted, there, x), jnp.where(accepted, log_there, log), count + accepted

    def turn(at: tuple[Any, ...], numbers: tuple[Any, Any]) -> tuple[tuple[Any, ...], None]:
        proposal = propose(at[0], numbers[0])
        return decide(at, proposal, logs(params, proposal[0]), numbers[1]), None

    at: tuple[Any, ...] = walkers.x, walkers.log, jnp.zeros_like(walkers.log)
    if renew:
        # Both positions of the first move in one pass: in a small system, the launches of a pass take longer
        # than its work.
        proposal = propose(walkers.x, noise[0])
        log, log_there = jax.vmap(logs, (None, 0))(params, jnp.stack([walkers.x, proposal[0]], axis=1)).T
        at = decide((walkers.x, log, at[2]), proposal, log_there, threshold[0])
        noise, threshold = noise[1:], threshold[1:]
    return _turns(turn, at, (noise, threshold), params)


def _langevin(
    log_psi: LogPsi, params: Any, walkers: Walkers, noise: Any, threshold: Any, renew: bool
) -> tuple[Any, Any, Any]:
    """Return the same for Langevin moves. log|psi| comes with the first gradient, which is needed anyway."""
    both = jax.vmap(jax.value_and_grad(log_psi, argnums=1), (None, 0))
    time = walkers.width**2

    def turn(at: tuple[Any, ...], numbers: tuple[Any, Any]) -> tuple[tuple[Any, ...], None]:
        (x, log, drift, count), (noise, threshold) = at, numbers
        there = x + drift + walkers.width * noise
        log_there, slope = both(params, there)
        drift_there = _drift(slope, time)
        # The ratio of the proposal densities of the reverse and the forward move: without it, the samples
        # would not follow psi^2.
        back = (x - there - drift_there) / walkers.width
        ratio = jnp.sum(noise**2 - back**2, axis=(1, 2)) / 2
        accepted = threshold < 2 * (log_there - log) + ratio
        x, drift = _select(accepted, there, x), _select(accepted, drift_there, drift)
        return (x, jnp.where(accepted, log_there, log), drift, count + accepted), None

    log, slope = both(params, walkers.x)
    first = walkers.x, log if renew else walkers.log, _drift(slope, time), jnp.zeros_like(walkers.log)
    x, log, _, count = _turns(turn, first, (noise, threshold), params)
    return x, log, count


def _turns(
    turn: Callable[..., Any], first: tuple[Any, ...], numbers: tuple[Any, Any], params: Any
) -> tuple[Any, ...]:
    """Return the carry after all turns.

    On a GPU, the turns of small systems are unrolled: fewer launches, but more to compile.
    """

    def loop(first: Any, numbers: Any, unroll: int = 1) -> Any:
        return jax.lax.scan(turn, first, numbers, unroll=unroll)[0]

    work = math.prod(first[0].shape[:2]) * sum(leaf.size for leaf in jax.tree_util.tree_leaves(params))
    turns = len(numbers[0])
    # A divisor, because a remainder would be unrolled separately.
    count = max(part for part in range(1, MOST_UNROLLED + 1) if turns % part == 0)
    if work > _SMALL or not turns or count < 2:
        return loop(first, numbers)
    return jax.lax.platform_dependent(first, numbers, cpu=loop, default=partial(loop, unroll=count))


def _drift(slope: Any, time: Any) -> Any:
    """Return the drift in `time` along a gradient (B, n, 3) of log|psi|: time * slope for small gradients.

    Near a node or a nucleus, the gradient changes quickly, so an electron drifts by at most about
    sqrt(2 time).
    """
    square = time * jnp.sum(slope**2, axis=-1, keepdims=True)
    return time * slope * 2 / (1 + jnp.sqrt(1 + 2 * square))


def _select(accepted: Any, new: Any, old: Any) -> Any:
    return jnp.where(accepted[:, None, None], new, old)


def _homes(system: System) -> list[int]:
    """Return the nucleus of every electron, up first, then down."""
    places = [at for at, charge in enumerate(system.core_charges) for _ in range(charge)]
    heaviest = max(range(system.nuclei), key=lambda at: system.core_charges[at])
    places = (places + [heaviest] * system.electrons)[: system.electrons] if system.charge else places
    up: list[int] = []
    down: list[int] = []
    for turn, place in enumerate(places):
        wants_up = turn % 2 == 0
        goes_up = (wants_up and len(up) < system.up) or len(down) == system.down
        (up if goes_up else down).append(place)
    return up + down
