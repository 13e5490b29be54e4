"""One training step as one program: moves, local energies, gradient, optimizer; or many steps in one.

B walkers, P parameters. Nothing inside waits for the host. Arrays of the carry are donated: the input of a
step cannot be used after it. The steps of a program are all by Adam or all by SPRING, because a program with
both would need the memory of both. If the energy or the update of a step is not finite, parameters and
optimizer state stay as they were, and `Stats.finite` is false. Random keys and the positions of the nuclei
are arguments, so one program serves all seeds and bond lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.hamiltonian import walker_energies
from pinchpoint.systems.vmc.model.observables import spin_excess
from pinchpoint.systems.vmc.optimization.chunks import over_walkers
from pinchpoint.systems.vmc.optimization.devices import place, placing_jit
from pinchpoint.systems.vmc.optimization.optimizers import OptimizerState, optimizer_state, update
from pinchpoint.systems.vmc.optimization.sampling import (
    Walkers,
    adapt,
    key_of,
    moves,
    refresh,
    stage_key,
    start,
)
from pinchpoint.systems.vmc.optimization.walk_kernel import walk_of
from pinchpoint.systems.vmc.settings import OptimizerStage, Settings, Stage


class Wave(Protocol):
    """The part of a wave function that a step needs.

    at(nuclei): the same with its nuclei at other positions (M, 3), which may be traced. signature: equal for
    wave functions that differ in the positions of their nuclei alone, so that they can share programs.
    """

    @property
    def system(self) -> System: ...
    @property
    def signature(self) -> Hashable: ...
    def at(self, nuclei: Any) -> Wave: ...
    @property
    def init(self) -> Callable[[Any], Any]: ...
    @property
    def copies(self) -> int: ...  # of the electrons in a walker: one for each state
    @property
    def sign_and_log(self) -> Callable[[Any, Any], tuple[Any, Any]]: ...
    def log(self, params: Any, x: Any) -> Any: ...


class RunInputs(NamedTuple):
    """Inputs of the programs of a run: runs that differ only in these share their programs.

    They follow from the configuration of the run and are not in checkpoints.
    """

    key: Any  # (2,), from which the keys of the steps are derived; raw bits, so that it is a plain array
    nuclei: Any  # (M, 3), positions in bohr
    spring_from: Any  # (), first step by SPRING


class Carry(NamedTuple):
    """The state of a run. step: (), steps taken."""

    params: Any
    optimizer: OptimizerState
    walkers: Walkers
    step: Any
    inputs: RunInputs | None  # None in a checkpoint


class Stats(NamedTuple):
    """Measurements of one step, () each, or of many steps in one program, (count,) each."""

    energy: Any  # mean local energy of the walkers before the update, unclipped
    variance: Any  # of the local energy
    acceptance: Any
    width: Any  # of the proposals of this step
    norm: Any  # norm of the update of all parameters
    clipped: Any  # fraction of the walkers whose energy was clipped
    finite: Any  # whether energy and update are finite; otherwise the update was skipped


Step = Callable[[Carry], tuple[Carry, Stats]]
# (params, walkers, steps, key, nuclei) -> walkers and the accepted fraction
Burn = Callable[[Any, Walkers, int, Any, Any], tuple[Walkers, Any]]


def begin(
    wave: Wave,
    settings: Settings,
    *,
    params: Any = None,
    x: Any = None,
    mesh: Mesh | None = None,
    burn: Burn | None = None,
) -> Carry:
    """Return the carry of a new run.

    By default, parameters are random and walkers start near the nuclei; then the walkers are moved. x: (B, n,
    3), initial positions, for example from pretraining. burn: that of `make_burn`.
    """
    dtype = dtype_of(settings)
    if params is None:
        params = wave.init(key_of(settings.seed, Stage.PARAMETERS))
    # A copy even if the dtype is right, because the carry is donated and the arrays belong to the caller.
    params = jax.tree_util.tree_map(lambda leaf: jnp.array(leaf, dtype, copy=True), params)
    if x is None:
        x = start(
            wave.system,
            settings.walkers,
            key_of(settings.seed, Stage.WALKERS),
            dtype=dtype,
            copies=wave.copies,
        )
    if settings.spin_penalty and x.shape[1] != wave.system.electrons:
        raise BadInput(
            "A spin penalty for several states is not supported.",
            hint="Leave out --set spin_penalty, or train one state.",
        )
    walkers = Walkers(
        jnp.array(x, dtype, copy=True), jnp.zeros(len(x), dtype), jnp.asarray(settings.width, dtype)
    )
    carry = Carry(
        params,
        optimizer_state(params, settings),
        walkers,
        jnp.asarray(0, jnp.int32),
        run_inputs(wave.system, settings),
    )
    carry = place(carry, mesh)
    if not settings.burn:
        return carry
    key = place(stage_key(settings.seed, Stage.BURN), mesh)
    burn = make_burn(wave, settings, mesh=mesh) if burn is None else burn
    assert carry.inputs is not None
    walkers, _ = burn(carry.params, carry.walkers, settings.burn, key, carry.inputs.nuclei)
    return carry._replace(walkers=walkers)


def run_inputs(system: System, settings: Settings) -> RunInputs:
    """Return the inputs of a run of a system."""
    return RunInputs(
        jax.random.key_data(stage_key(settings.seed, Stage.TRAIN)),
        jnp.asarray(system.positions, dtype_of(settings)),
        jnp.asarray(settings.adam_until, jnp.int32),
    )


def program_settings(settings: Settings) -> Settings:
    """Return the settings with everything removed that is an input of programs, or no part of them."""
    return replace(settings, seed=0, steps=1, adam_steps=0, burn=0, width=1.0)


def make_step(
    wave: Wave, settings: Settings, *, stage: OptimizerStage | None = None, mesh: Mesh | None = None
) -> Step:
    """Return step(carry) -> (carry, stats), compiled at the first call; the carry is donated.

    stage: the optimizer of the step, `settings.stage_at(carry.step)`; optional unless the optimizer is
    adam+spring.
    """
    many = _steps(wave, settings, 1, stage, mesh)

    def step(carry: Carry) -> tuple[Carry, Stats]:
        carry, stats = many(carry)
        return carry, Stats(*(value[0] for value in stats))

    return placing_jit(step, mesh=mesh)


def make_steps(
    wave: Wave,
    settings: Settings,
    count: int,
    *,
    stage: OptimizerStage | None = None,
    mesh: Mesh | None = None,
) -> Step:
    """Return the same as `make_step`, with `count` steps in one program.

    Launching small steps one by one takes longer than computing them.
    """
    if count < 1:
        raise BadInput(f"A program cannot have {count} steps.", hint="Use at least 1.")
    return placing_jit(_steps(wave, settings, count, stage, mesh), mesh=mesh)


def make_burn(wave: Wave, settings: Settings, *, mesh: Mesh | None = None) -> Burn:
    """Return burn(params, walkers, steps, key, nuclei) -> (walkers, acceptance).

    It only moves walkers, and adjusts the width to the target acceptance. key: that of a stage, from
    `stage_key`; nuclei: (M, 3), positions. The walkers are donated.
    """

    def burn(params: Any, walkers: Walkers, steps: Any, base: Any, nuclei: Any) -> tuple[Walkers, Any]:
        own = wave.at(nuclei)
        log_psi = own.log

        def turn(at: Any, carried: tuple[Walkers, Any]) -> tuple[Walkers, Any]:
            key = jax.random.fold_in(base, at)
            walkers, accepted = moves(
                log_psi,
                params,
                carried[0],
                key,
                steps=settings.moves,
                kind=settings.kind,
                system=own.system,
            )
            return adapt(walkers, accepted, settings.target), accepted

        first = refresh(log_psi, params, walkers), jnp.zeros((), walkers.x.dtype)
        return jax.lax.fori_loop(0, steps, turn, first)

    return placing_jit(burn, mesh=mesh, donate=1)


def clip(energies: Any, deviations: float) -> tuple[Any, Any]:
    """Return energies (B,) clipped around their median, and the fraction that was clipped.

    The limit is a number of mean absolute deviations.
    """
    ordered = jnp.sort(energies)
    # The median; jnp.median would return NaN if one energy is NaN.
    middle = (ordered[(len(energies) - 1) // 2] + ordered[len(energies) // 2]) / 2
    reach = deviations * jnp.mean(jnp.abs(energies - middle))
    within = jnp.clip(energies, middle - reach, middle + reach)
    return within, jnp.mean(within != energies, dtype=energies.dtype)


def dtype_of(settings: Settings) -> Any:
    """Return the dtype of a run. float64 must be enabled, or JAX would silently use float32."""
    if jax.dtypes.canonicalize_dtype(settings.precision) != jnp.dtype(settings.precision):
        raise BadInput(
            f"{settings.precision} is not enabled in JAX.",
            hint='Call jax.config.update("jax_enable_x64", True) first.',
        )
    return jnp.dtype(settings.precision)


def _steps(
    wave: Wave, settings: Settings, count: int, stage: OptimizerStage | None, mesh: Mesh | None
) -> Step:
    by = _stage(settings, stage)

    def steps(carry: Carry) -> tuple[Carry, Stats]:
        inputs = carry.inputs
        assert inputs is not None
        own = wave.at(inputs.nuclei)
        energies_of = walker_energies(own, method=settings.method, chunk=settings.chunk)
        numbers = carry.step + jnp.arange(count, dtype=carry.step.dtype)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.wrap_key_data(inputs.key), numbers)
        shaped = ravel_pytree(carry.params)[1]

        def spin_excesses(params: Any, x: Any) -> Any:
            # S^2 is Hermitian and has real values, as the energy: its gradient has the same form.
            return over_walkers(
                lambda walker: spin_excess(own.sign_and_log, own.system, params, walker),
                x,
                chunk=settings.chunk,
            )

        def step(at: tuple[Any, ...], now: tuple[Any, Any]) -> tuple[tuple[Any, ...], Any]:
            (params, state, walkers), (number, key) = at, now
            walkers, accepted = moves(
                own.log,
                params,
                walkers,
                key,
                steps=settings.moves,
                kind=settings.kind,
                system=own.system,
                renew=True,
                walk=walk_of(own, len(walkers.x), walkers.x.dtype),
            )
            energies = energies_of(params, walkers.x)
            within, outside = clip(energies, settings.clip)
            if settings.spin_penalty:
                excess, _ = clip(spin_excesses(params, walkers.x), settings.clip)
                within = within + settings.spin_penalty * excess
            change, after = update(
                own.log,
                params,
                state,
                walkers.x,
                within,
                number,
                settings,
                stage=by,
                spring_from=inputs.spring_from,
                mesh=mesh,
            )
            energy, norm = energies.mean(), jnp.linalg.norm(change)
            finite = jnp.isfinite(energy) & jnp.isfinite(norm)
            params = jax.tree_util.tree_map(jnp.add, params, shaped(jnp.where(finite, change, 0)))
            state = jax.tree_util.tree_map(lambda new, old: jnp.where(finite, new, old), after, state)
            stats = Stats(energy, energies.var(), accepted, walkers.width, norm, outside, finite)
            # One row of numbers, because each on its own would cost another launch.
            row = jnp.stack([jnp.asarray(value, energies.dtype) for value in stats])
            return (params, state, adapt(walkers, accepted, settings.target)), row

        (params, state, walkers), rows = jax.lax.scan(step, carry[:3], (numbers, keys))
        stats = Stats(*rows.T)
        return Carry(params, state, walkers, carry.step + count, inputs), stats._replace(
            finite=stats.finite > 0
        )

    return steps


def _stage(settings: Settings, stage: OptimizerStage | None) -> OptimizerStage:
    """Return the optimizer of the steps of a program, by default the only one in the settings."""
    if stage is None and settings.optimizer == "adam+spring":
        raise BadInput(
            "A program of adam+spring needs its stage.", hint="Pass stage=settings.stage_at(step)."
        )
    own: OptimizerStage = stage or ("adam" if settings.optimizer == "adam" else "spring")
    if own not in settings.optimizer:
        raise BadInput(
            f"The optimizer {settings.optimizer!r} has no steps by {own!r}.",
            hint="Pass stage=settings.stage_at(step).",
        )
    return own
