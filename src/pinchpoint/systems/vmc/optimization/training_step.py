"""One step of training as one program: moves, local energies, gradient, optimizer; and many steps in one program.

B walkers, P parameters. Nothing inside waits for the host. Arrays of the carry are donated: what goes into a step cannot be used
after it. A program's steps are all by Adam or all by SPRING: one with both would hold the memory of both. Where a step's energy
or change is no number, parameters and optimizer stay as they were and `Stats.finite` is false. Random keys are arguments: a
program does not know its seed, and one compiled for another seed is found on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.hamiltonian import local_energies
from pinchpoint.systems.vmc.optimization.devices import placed, placed_jit
from pinchpoint.systems.vmc.optimization.optimizers import OptimizerState, optimizer_state, updated
from pinchpoint.systems.vmc.optimization.sampling import (
    Walkers,
    adapt,
    key_of,
    moves,
    refreshed,
    stage_key,
    start,
)
from pinchpoint.systems.vmc.settings import OptimizerStage, Settings, Stage


class Wave(Protocol):
    """What a step needs of a wave function."""

    @property
    def system(self) -> System: ...
    @property
    def init(self) -> Callable[[Any], Any]: ...
    def log(self, params: Any, x: Any) -> Any: ...


class Carry(NamedTuple):
    """All that a run goes on from. step: () how many were made; key: (2,) what the random keys of steps are folded from."""

    params: Any
    optimizer: OptimizerState
    walkers: Walkers
    step: Any
    key: Any  # the bits of one, so that every leaf is a plain array; it follows from the seed, and no checkpoint holds it


class Stats(NamedTuple):
    """Of one step, () each; of many in one program, (count,) each."""

    energy: Any  # mean local energy of the walkers before the change, none clipped
    variance: Any  # of the local energy
    acceptance: Any
    width: Any  # of the proposals of this step
    norm: Any  # length of the change of all parameters
    clipped: Any  # part of the walkers whose energy was clipped
    finite: Any  # whether energy and change are numbers; else nothing was changed


Step = Callable[[Carry], tuple[Carry, Stats]]


def begin(
    wave: Wave, settings: Settings, *, params: Any = None, x: Any = None, mesh: Mesh | None = None
) -> Carry:
    """The carry of a new run: parameters (drawn unless given), walkers (near the nuclei unless given), moved for a while.

    x: (B, n, 3), such as pretraining leaves.
    """
    dtype = dtype_of(settings)
    if params is None:
        params = wave.init(key_of(settings.seed, Stage.PARAMETERS))
    # A copy even where the kind of number is right: the carry is donated, the caller's arrays are not ours.
    params = jax.tree_util.tree_map(lambda leaf: jnp.array(leaf, dtype, copy=True), params)
    if x is None:
        x = start(wave.system, settings.walkers, key_of(settings.seed, Stage.WALKERS), dtype=dtype)
    walkers = Walkers(
        jnp.array(x, dtype, copy=True), jnp.zeros(len(x), dtype), jnp.asarray(settings.width, dtype)
    )
    carry = Carry(
        params, optimizer_state(params, settings), walkers, jnp.asarray(0, jnp.int32), key_bits(settings.seed)
    )
    carry = placed(carry, mesh)
    if not settings.burn:
        return carry
    key = stage_key(settings.seed, Stage.BURN)
    walkers, _ = make_burn(wave, settings, mesh=mesh)(carry.params, carry.walkers, settings.burn, key)
    return carry._replace(walkers=walkers)


def key_bits(seed: int) -> Any:
    """`Carry.key` of a run with this seed."""
    return jax.random.key_data(stage_key(seed, Stage.TRAIN))


def make_step(
    wave: Wave, settings: Settings, *, stage: OptimizerStage | None = None, mesh: Mesh | None = None
) -> Step:
    """step(carry) -> (carry, stats), compiled at the first call; the carry is donated.

    stage: what the step is by, `settings.stage_at(carry.step)`; may be left out where the optimizer is one of the two.
    """
    many = _steps(wave, settings, 1, stage, mesh)

    def step(carry: Carry) -> tuple[Carry, Stats]:
        carry, stats = many(carry)
        return carry, Stats(*(value[0] for value in stats))

    return placed_jit(step, mesh=mesh)


def make_steps(
    wave: Wave,
    settings: Settings,
    count: int,
    *,
    stage: OptimizerStage | None = None,
    mesh: Mesh | None = None,
) -> Step:
    """The same, `count` steps in one program: small steps take less time than it takes to launch them one by one."""
    if count < 1:
        raise BadInput(f"{count} steps in one program", hint="give at least 1")
    return placed_jit(_steps(wave, settings, count, stage, mesh), mesh=mesh)


def make_burn(
    wave: Wave, settings: Settings, *, mesh: Mesh | None = None
) -> Callable[[Any, Walkers, int, Any], tuple[Walkers, Any]]:
    """burn(params, walkers, steps, key) -> (walkers, acceptance): moves alone, the width set for the acceptance aimed at.

    key: that of a stage, `stage_key`. The walkers are donated.
    """

    def burn(params: Any, walkers: Walkers, steps: Any, base: Any) -> tuple[Walkers, Any]:
        def turn(at: Any, carried: tuple[Walkers, Any]) -> tuple[Walkers, Any]:
            key = jax.random.fold_in(base, at)
            walkers, accepted = moves(
                wave.log, params, carried[0], key, steps=settings.moves, kind=settings.kind
            )
            return adapt(walkers, accepted, settings.target), accepted

        first = refreshed(wave.log, params, walkers), jnp.zeros((), walkers.x.dtype)
        return jax.lax.fori_loop(0, steps, turn, first)

    return placed_jit(burn, mesh=mesh, donate=1)


def clipped(energies: Any, deviations: float) -> tuple[Any, Any]:
    """Energies (B,) brought within so many mean absolute deviations of their median, and the part that lay outside."""
    ordered = jnp.sort(energies)
    middle = (
        ordered[(len(energies) - 1) // 2] + ordered[len(energies) // 2]
    ) / 2  # the median, but for numbers that are none
    reach = deviations * jnp.mean(jnp.abs(energies - middle))
    within = jnp.clip(energies, middle - reach, middle + reach)
    return within, jnp.mean(within != energies, dtype=energies.dtype)


def dtype_of(settings: Settings) -> Any:
    """The kind of number of a run. float64 must have been switched on: JAX would quietly take float32."""
    if jax.dtypes.canonicalize_dtype(settings.precision) != jnp.dtype(settings.precision):
        raise BadInput(
            f"{settings.precision} is not switched on in JAX",
            hint='call jax.config.update("jax_enable_x64", True) first',
        )
    return jnp.dtype(settings.precision)


def _steps(
    wave: Wave, settings: Settings, count: int, stage: OptimizerStage | None, mesh: Mesh | None
) -> Step:
    by = _stage(settings, stage)
    energies_of = local_energies(wave.log, wave.system, method=settings.method, chunk=settings.chunk)

    def steps(carry: Carry) -> tuple[Carry, Stats]:
        numbers = carry.step + jnp.arange(count, dtype=carry.step.dtype)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.wrap_key_data(carry.key), numbers)
        shaped = ravel_pytree(carry.params)[1]

        def step(at: tuple[Any, ...], now: tuple[Any, Any]) -> tuple[tuple[Any, ...], Any]:
            (params, state, walkers), (number, key) = at, now
            walkers, accepted = moves(
                wave.log, params, walkers, key, steps=settings.moves, kind=settings.kind, renew=True
            )
            energies = energies_of(params, walkers.x)
            within, outside = clipped(energies, settings.clip)
            change, after = updated(
                wave.log, params, state, walkers.x, within, number, settings, stage=by, mesh=mesh
            )
            energy, norm = energies.mean(), jnp.linalg.norm(change)
            finite = jnp.isfinite(energy) & jnp.isfinite(norm)
            moved = jax.tree_util.tree_map(jnp.add, params, shaped(jnp.where(finite, change, 0)))
            kept = jax.tree_util.tree_map(lambda new, old: jnp.where(finite, new, old), after, state)
            stats = Stats(energy, energies.var(), accepted, walkers.width, norm, outside, finite)
            # One row of numbers: each on its own would be a launch more.
            row = jnp.stack([jnp.asarray(value, energies.dtype) for value in stats])
            return (moved, kept, adapt(walkers, accepted, settings.target)), row

        (params, state, walkers), rows = jax.lax.scan(step, carry[:3], (numbers, keys))
        stats = Stats(*rows.T)
        return Carry(params, state, walkers, carry.step + count, carry.key), stats._replace(
            finite=stats.finite > 0
        )

    return steps


def _stage(settings: Settings, stage: OptimizerStage | None) -> OptimizerStage:
    """What was asked for, or what alone there is."""
    if stage is None and settings.optimizer == "adam+spring":
        raise BadInput(
            "a program of adam+spring without its stage", hint="give stage=settings.stage_at(step)"
        )
    chosen: OptimizerStage = stage or ("adam" if settings.optimizer == "adam" else "spring")
    if chosen not in settings.optimizer:
        raise BadInput(
            f"a step by {chosen!r} of optimizer {settings.optimizer!r}",
            hint="give stage=settings.stage_at(step)",
        )
    return chosen
