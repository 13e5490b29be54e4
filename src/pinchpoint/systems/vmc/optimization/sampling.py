"""Walkers that are spread as |psi|^2: a first place, Metropolis and Langevin moves, and a width that follows the acceptance.

B walkers, n electrons; all electrons of a walker move at once. Moves are turns of one loop inside the caller's program, with
log|psi| carried along. The width is the same within a call, so each call keeps detailed balance. What small systems wait for on
a GPU is the number of launches: all random numbers of a call are one draw.
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

_SMALL = 1e8  # electrons of all walkers times parameters: with fewer a card takes longer to launch a pass than to make it
# Moves written out at most; 1 switches it off, to measure. Each more saves a loop's few launches and is compiled apart: ten
# instead of five take 1 s more to compile for H2 on an H200 and make a step a tenth shorter.
WRITTEN_OUT = 10
_LONGEST = 0.2  # change of log(width) in one adaptation is at most this
_WIDTHS = (1e-3, 10.0)  # bohr


class Walkers(NamedTuple):
    """x: (B, n, 3) bohr; log: (B,) log|psi| there, for the parameters of the last moves; width: () bohr, of proposals."""

    x: Any
    log: Any
    width: Any


def stage_key(seed: int, stage: Stage) -> Any:
    """The random key that those of a stage's steps are folded from."""
    return jax.random.fold_in(jax.random.key(seed), int(stage))


def key_of(seed: int, stage: Stage, step: Any = 0) -> Any:
    """The random key of one step: the same numbers whenever, and on however many devices, it is taken."""
    return jax.random.fold_in(stage_key(seed, stage), step)


def start(system: System, walkers: int, key: Any, *, dtype: Any = None) -> Any:
    """Places (B, n, 3) near the nuclei, each nucleus with its electrons and spins in turn, so that atoms begin neutral."""
    homes = jnp.asarray([system.positions[at] for at in _homes(system)], dtype)
    return homes + jax.random.normal(key, (walkers, system.electrons, 3), homes.dtype)


def moves(
    log_psi: LogPsi,
    params: Any,
    walkers: Walkers,
    key: Any,
    *,
    steps: int,
    kind: Kind = "metropolis",
    renew: bool = False,
) -> tuple[Walkers, Any]:
    """`steps` moves of every walker, and the part of them that was accepted.

    walkers.log must be of these parameters; renew: it is of others, and is found along with the first move.
    """
    shape = walkers.x.shape
    drawn = jax.random.normal(key, (steps, shape[0], shape[1] * 3 + 2), walkers.x.dtype)
    noise = drawn[..., :-2].reshape(steps, *shape)
    threshold = (
        -(drawn[..., -2] ** 2 + drawn[..., -1] ** 2) / 2
    )  # the log of a number between 0 and 1, each as likely
    x, log, taken = _KINDS[kind](log_psi, params, walkers, noise, threshold, renew)
    return Walkers(x, log, walkers.width), taken.mean() / steps


def refreshed(log_psi: LogPsi, params: Any, walkers: Walkers) -> Walkers:
    """The same walkers with log|psi| of these parameters: wanted before moves wherever the parameters or places are new."""
    return walkers._replace(log=jax.vmap(log_psi, (None, 0))(params, walkers.x))


def adapt(walkers: Walkers, acceptance: Any, target: float) -> Walkers:
    """The same walkers with a wider proposal where too much was accepted, a narrower one where too little was."""
    change = jnp.clip(acceptance - target, -_LONGEST, _LONGEST)
    width = jnp.clip(walkers.width * jnp.exp(change), *_WIDTHS)
    return walkers._replace(width=width.astype(walkers.width.dtype))


def _metropolis(
    log_psi: LogPsi, params: Any, walkers: Walkers, noise: Any, threshold: Any, renew: bool
) -> tuple[Any, Any, Any]:
    """Places (B, n, 3), log|psi| and how many moves were taken, (B,) each, after moves by noise: (steps, B, n, 3)."""
    logs = jax.vmap(log_psi, (None, 0))

    def decided(at: tuple[Any, ...], there: Any, log_there: Any, threshold: Any) -> tuple[Any, ...]:
        x, log, count = at
        taken = threshold < 2 * (log_there - log)  # never, where log|psi| is no number there
        return _chosen(taken, there, x), jnp.where(taken, log_there, log), count + taken

    def turn(at: tuple[Any, ...], drawn: tuple[Any, Any]) -> tuple[tuple[Any, ...], None]:
        there = at[0] + walkers.width * drawn[0]
        return decided(at, there, logs(params, there), drawn[1]), None

    at: tuple[Any, ...] = walkers.x, walkers.log, jnp.zeros_like(walkers.log)
    if renew:
        # Both places of the first move in one pass, side by side: in a small system a pass costs its launches, not its work.
        there = walkers.x + walkers.width * noise[0]
        log, log_there = jax.vmap(logs, (None, 0))(params, jnp.stack([walkers.x, there], axis=1)).T
        at = decided((walkers.x, log, at[2]), there, log_there, threshold[0])
        noise, threshold = noise[1:], threshold[1:]
    return _turns(turn, at, (noise, threshold), params)


def _langevin(
    log_psi: LogPsi, params: Any, walkers: Walkers, noise: Any, threshold: Any, renew: bool
) -> tuple[Any, Any, Any]:
    """The same. The slope where they begin is wanted anyway, and log|psi| comes with it."""
    both = jax.vmap(jax.value_and_grad(log_psi, argnums=1), (None, 0))
    time = walkers.width**2

    def turn(at: tuple[Any, ...], drawn: tuple[Any, Any]) -> tuple[tuple[Any, ...], None]:
        (x, log, drift, count), (noise, threshold) = at, drawn
        there = x + drift + walkers.width * noise
        log_there, slope = both(params, there)
        drift_there = _limited(slope, time)
        # How much likelier the way back is proposed than the way there: without it psi^2 would not be what is drawn.
        back = (x - there - drift_there) / walkers.width
        ratio = jnp.sum(noise**2 - back**2, axis=(1, 2)) / 2
        taken = threshold < 2 * (log_there - log) + ratio
        kept = _chosen(taken, there, x), jnp.where(taken, log_there, log), _chosen(taken, drift_there, drift)
        return (*kept, count + taken), None

    log, slope = both(params, walkers.x)
    first = walkers.x, log if renew else walkers.log, _limited(slope, time), jnp.zeros_like(walkers.log)
    x, log, _, count = _turns(turn, first, (noise, threshold), params)
    return x, log, count


_KINDS = {"metropolis": _metropolis, "langevin": _langevin}


def _turns(
    turn: Callable[..., Any], first: tuple[Any, ...], drawn: tuple[Any, Any], params: Any
) -> tuple[Any, ...]:
    """What is carried after all turns. On a card small systems have turns written out: fewer launches, more to compile."""

    def looped(first: Any, drawn: Any, unroll: int = 1) -> Any:
        return jax.lax.scan(turn, first, drawn, unroll=unroll)[0]

    work = math.prod(first[0].shape[:2]) * sum(leaf.size for leaf in jax.tree_util.tree_leaves(params))
    turns = len(drawn[0])
    # A divisor: what is left over would be written out once more.
    count = max(part for part in range(1, WRITTEN_OUT + 1) if turns % part == 0)
    if work > _SMALL or not turns or count < 2:
        return looped(first, drawn)
    return jax.lax.platform_dependent(first, drawn, cpu=looped, default=partial(looped, unroll=count))


def _limited(slope: Any, time: Any) -> Any:
    """The drift in `time` along a slope (B, n, 3) of log|psi|, for small slopes time * slope.

    Near a node or a nucleus the slope is good for a short way only: an electron goes no farther than about sqrt(2 time).
    """
    square = time * jnp.sum(slope**2, axis=-1, keepdims=True)
    return time * slope * 2 / (1 + jnp.sqrt(1 + 2 * square))


def _chosen(taken: Any, new: Any, old: Any) -> Any:
    return jnp.where(taken[:, None, None], new, old)


def _homes(system: System) -> list[int]:
    """The nucleus of every electron, up first, then down."""
    places = [at for at, charge in enumerate(system.charges) for _ in range(charge)]
    heaviest = max(range(system.nuclei), key=lambda at: system.charges[at])
    places = (places + [heaviest] * system.electrons)[: system.electrons] if system.charge else places
    up: list[int] = []
    down: list[int] = []
    for turn, place in enumerate(places):
        wants_up = turn % 2 == 0
        goes_up = (wants_up and len(up) < system.up) or len(down) == system.down
        (up if goes_up else down).append(place)
    return up + down
