"""The cases of `pinchpoint bench vmc`: a step and its parts, and local energies by several methods.

Both sides are timed over the same boundaries. Weights and walkers are on the device, and everything is
compiled before the clock starts. The baseline's step is that of the FermiNeuT report: its moves run operation
by operation from Python, and its physics is wrong (see `model/baseline.py`), so steps have no common result.
The energies are compared: all methods get the baseline's wave function, and the report's own method, nested
gradients from Python, is timed on a few walkers and scaled up. Peaks are XLA's memory analysis of a program;
what runs operation by operation has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from pinchpoint.systems.common.bench.cases import (
    BenchCase,
    Contender,
    Contest,
    Run,
    Setup,
    Sizes,
    imported,
    operations_floor,
)
from pinchpoint.systems.common.bench.records import Agreement
from pinchpoint.systems.vmc import WORKLOAD
from pinchpoint.systems.vmc.bench_programs import Program, contender_of, on_device, program
from pinchpoint.systems.vmc.data.system import system_of
from pinchpoint.systems.vmc.model.baseline import Baseline, nested_energies
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.hamiltonian import local_energies
from pinchpoint.systems.vmc.model.wavefunction import WaveFunction, wave_function
from pinchpoint.systems.vmc.optimization.optimizers import adam_change, energy_gradient
from pinchpoint.systems.vmc.optimization.sampling import key_of, moves, refresh, start
from pinchpoint.systems.vmc.optimization.training_step import begin, clip, make_step, make_steps
from pinchpoint.systems.vmc.settings import Method, Settings, Stage

MOLECULE = "H2"
# The report states the network `report`; its timings are of `report-cpu`.
NET: dict[Sizes, str] = {"tiny": "report-cpu", "small": "report-cpu", "report": "report"}
MOVES: dict[Sizes, int] = {"tiny": 1, "small": 5, "report": 10}
WALKERS: dict[Sizes, int] = {"tiny": 4, "small": 256, "report": 128}
# Steps per program: enough to make the cost of its launch negligible.
SCANNED_STEPS: dict[Sizes, int] = {"tiny": 2, "small": 20, "report": 200}
NESTED_WALKERS = 2  # walkers that the nested energies are timed on
TOLERANCE = 1e-3  # of energies in fp32, whose second derivatives lose digits
PARTS = {
    "moves": ("all Langevin moves of a step", "374 -> 295 ms of a step of 383 -> 300 ms"),
    "gradient": ("local energies and their gradient", "5.80 -> 1.15 ms"),
    "optimizer": ("an update by Adam", "0.31 -> 0.21 ms"),
    "forward": ("one evaluation of the wave function", "0.32 -> 99 ms, in which compilation is averaged"),
}
NOT_COMPARED = Agreement("the report's step computes other physics: not compared")


def all_cases() -> tuple[BenchCase, ...]:
    sides = cache(lambda setup: (_baseline(setup), _ours(setup)))
    parts = [
        BenchCase(
            name,
            title,
            f"The FermiNeuT report: {claim}.",
            "walkers",
            WALKERS,
            partial(_build_part, name, sides),
        )
        for name, (title, claim) in PARTS.items()
    ]
    return (
        BenchCase(
            "step",
            f"a training step of {MOLECULE}: moves, energies, gradient, Adam",
            "The FermiNeuT report takes 150 s per epoch, promises 150 to 300 times the speed, and measures "
            "383 -> 300 ms per step (1.3 times).",
            "walkers",
            WALKERS,
            partial(_build_step, sides),
        ),
        *parts,
        BenchCase(
            "energies",
            f"local energies of {MOLECULE} by five methods",
            "The FermiNeuT report takes about 60 s for 128 walkers with nested gradients; the Hessian that "
            "replaces them is indexed wrongly.",
            "walkers",
            {"tiny": 4, "small": 128, "report": 128},
            _build_energies,
        ),
        BenchCase(
            "large molecule",
            "local energies of N2 with FermiNet's published widths",
            "The FermiNeuT report has no larger molecule.",
            "walkers",
            {"report": 1_024},
            _build_large,
        ),
    )


def _build_step(sides: Callable[[Setup], Any], setup: Setup) -> Contest:
    with on_device(setup):
        theirs, ours = sides(setup)
    steps = SCANNED_STEPS[setup.sizes]

    def contender(key: str, name: str, **options: Any) -> Contender:
        return contender_of(setup, name, ours[key], check=lambda _: NOT_COMPARED, **options)

    with on_device(setup):
        operations = ours["step"]().operations
    return Contest(
        (
            contender_of(
                setup, "report", theirs["step"], "baseline", note="moves run operation by operation"
            ),
            contender("step", "one program", note="Langevin moves and Adam, as in the report"),
            contender(
                "scanned", f"{steps} steps in a program", work=float(steps), note="as training runs them"
            ),
            contender("metropolis", "one program, Metropolis", note="the default moves of training"),
            contender("metropolis scanned", f"{steps} steps in a program, Metropolis", work=float(steps)),
        ),
        _settings(setup),
        None
        if operations is None
        else operations_floor(
            setup, operations, precision="fp32", what="operations of one program, counted by XLA"
        ),
        notes=("random weights; weights and walkers are on the device on both sides",),
    )


def _build_part(name: str, sides: Callable[[Setup], Any], setup: Setup) -> Contest:
    with on_device(setup):
        theirs, ours = sides(setup)
    return Contest(
        (
            contender_of(setup, "report", theirs[name], "baseline"),
            contender_of(setup, "pinchpoint", ours[name], check=lambda _: NOT_COMPARED),
        ),
        _settings(setup),
    )


def _settings(setup: Setup) -> dict[str, object]:
    net = NetConfig.preset(NET[setup.sizes])
    return {
        "molecule": MOLECULE,
        "network": f"{net.one}x{net.two}, {net.layers} layers, {net.determinants} determinants",
        "moves": MOVES[setup.sizes],
    }


def _baseline(setup: Setup) -> dict[str, Callable[[], Run]]:
    """Return makers of the report's step and its parts."""
    baseline = Baseline(system_of(MOLECULE), NetConfig.preset(NET[setup.sizes]), MOVES[setup.sizes])
    key = key_of(setup.seed, Stage.PARAMETERS)
    params = baseline.init(key)
    x = start(baseline.system, setup.size, key_of(setup.seed, Stage.WALKERS))
    zero = jax.tree_util.tree_map(jnp.zeros_like, params)
    current = [(params, zero, zero, x)]

    def step() -> Any:
        current[0], energy = baseline.step(*current[0], key, 0)
        return current[0], energy

    def optimizer() -> Run:
        _, gradient = baseline.energy_and_gradient(params, x)
        return lambda: baseline.update(params, zero, zero, gradient, 0)

    return {
        "step": lambda: step,
        "moves": lambda: lambda: baseline.walk(params, x, key),
        "gradient": lambda: lambda: baseline.energy_and_gradient(params, x),
        "optimizer": optimizer,
        "forward": lambda: lambda: baseline.forward(params, x),
    }


def _ours(setup: Setup) -> dict[str, Callable[[], Run]]:
    """Return makers of our step and its parts, each one program."""
    wave = wave_function(system_of(MOLECULE), NetConfig.preset(NET[setup.sizes]))
    settings = Settings(
        walkers=setup.size,
        moves=MOVES[setup.sizes],
        kind="langevin",
        optimizer="adam",
        burn=0,
        seed=setup.seed,
    )
    energies_of = local_energies(wave.log, wave.system, method=settings.method)
    carry = begin(wave, settings)
    params, walkers, state = carry.params, carry.walkers, carry.optimizer
    key = key_of(setup.seed, Stage.TRAIN)
    steps = SCANNED_STEPS[setup.sizes]

    @jax.jit
    def walk(params: Any, walkers: Any) -> Any:
        return moves(
            wave.log, params, refresh(wave.log, params, walkers), key, steps=settings.moves, kind="langevin"
        )

    @jax.jit
    def gradient_of(params: Any, x: Any) -> Any:
        energies = energies_of(params, x)
        return energies.mean(), energy_gradient(wave.log, params, x, clip(energies, settings.clip)[0])

    @jax.jit
    def update(params: Any, mean: Any, square: Any, gradient: Any) -> Any:
        change, mean, square = adam_change(gradient, mean, square, 0)
        flat, shaped = ravel_pytree(params)
        return shaped(flat - settings.adam_rate * change), mean, square

    forward = jax.jit(jax.vmap(wave.log, (None, 0)))
    metropolis = replace(settings, kind="metropolis")

    def optimizer() -> Run:
        _, gradient = gradient_of(params, walkers.x)
        return program(update, params, state.mean, state.square, gradient)

    return {
        "step": lambda: _stepping(wave, settings, make_step(wave, settings)),
        "scanned": lambda: _stepping(wave, settings, make_steps(wave, settings, steps)),
        "metropolis": lambda: _stepping(wave, metropolis, make_step(wave, metropolis)),
        "metropolis scanned": lambda: _stepping(wave, metropolis, make_steps(wave, metropolis, steps)),
        "moves": lambda: program(walk, params, walkers),
        "gradient": lambda: program(gradient_of, params, walkers.x),
        "optimizer": optimizer,
        "forward": lambda: program(forward, params, walkers.x),
    }


def _stepping(wave: WaveFunction, settings: Settings, step: Any) -> Program:
    """A step that continues from the last call, because the carry is donated."""
    return program(step, begin(wave, settings), carries=True)


def _build_energies(setup: Setup) -> Contest:
    """All methods on the baseline's wave function, whose nested gradients are the report's own."""
    system = system_of(MOLECULE)
    with on_device(setup):
        baseline = Baseline(system, NetConfig.preset(NET[setup.sizes]), moves=1)
        params = baseline.init(key_of(setup.seed, Stage.PARAMETERS))
        x = start(system, setup.size, key_of(setup.seed, Stage.WALKERS))
    some = min(NESTED_WALKERS, setup.size)

    @cache
    def expected() -> Any:
        with on_device(setup), jax.default_matmul_precision("highest"):
            return np.asarray(nested_energies(baseline.log_psi, params, system, x[:some]))

    def by(method: Method) -> Callable[[], Run]:
        return lambda: program(jax.jit(local_energies(baseline.log_psi, system, method=method)), params, x)

    def check(energies: Any) -> Agreement:
        return _agreement(expected(), np.asarray(energies)[:some])

    def folx() -> Run:
        imported("folx")
        return by("forward")()

    def nested() -> Run:
        return lambda: nested_energies(baseline.log_psi, params, system, x[:some])

    def contender(name: str, build: Callable[[], Run], role: Any = "peer", **options: Any) -> Contender:
        return contender_of(setup, name, build, role, full_precision=True, check=check, **options)

    return Contest(
        (
            contender("jax.hessian", by("hessian"), "baseline", note="plain JAX, one program"),
            contender("loop", by("loop"), note="jax.linearize and a loop, as ferminet does"),
            contender("folx", folx, note="the forward Laplacian of folx"),
            contender("pinchpoint", by("auto"), "variant", note="chooses the fastest method that fits"),
            contender(
                "nested",
                nested,
                "report",
                work=some / setup.size,
                note="the report's own: gradients of gradients from Python",
            ),
        ),
        _settings(setup),
        notes=(
            f"nested is timed on {some} of {setup.size} walkers and scaled up",
            "products are computed in float32, not in TF32, JAX's default on a GPU",
        ),
        packages=("folx",),
    )


def _build_large(setup: Setup) -> Contest:
    settings = {"system": "N2", "net": "ferminet"}
    results: dict[str, Any] = {}

    def by(variant: str) -> Callable[[], Run]:
        def build() -> Run:
            case = WORKLOAD.case(
                setup.size,
                device=setup.device,
                mode="infer",
                variant=variant,
                seed=setup.seed,
                settings=settings,
            )
            return program(case.step, *case.args)

        return build

    def check(variant: str, energies: Any) -> Agreement:
        results[variant] = np.asarray(energies)
        if variant == "loop":
            return Agreement("the reference of the others")
        return _agreement(results["loop"], results[variant])

    def contender(variant: str, name: str, role: Any = "variant", **options: Any) -> Contender:
        checked = partial(check, variant)
        return contender_of(
            setup, name, by(variant), role, full_precision=True, warmup=1, check=checked, **options
        )

    return Contest(
        (
            contender("loop", "loop", "baseline", note="jax.linearize and a loop, as ferminet does"),
            contender("hessian", "jax.hessian", "peer", note="plain JAX"),
            contender("forward", "folx", "peer", note="the forward Laplacian of folx, all walkers at once"),
            contender("chunked", "pinchpoint", note="the fastest method, 256 walkers at a time"),
        ),
        settings,
        notes=("products are computed in float32, not in TF32, JAX's default on a GPU",),
        packages=("folx",),
    )


def _agreement(expected: Any, values: Any) -> Agreement:
    """Compare energies by the relative difference that 95 % of the walkers stay within.

    Near a node of the wave function, second derivatives in float32 have no digits left, and an energy near
    zero has a large relative error; so differences are relative to the median energy at least.
    """
    scale = np.maximum(np.abs(expected), np.median(np.abs(expected)))
    difference = float(np.quantile(np.abs(values - expected) / scale, 0.95))
    return Agreement(f"energies, for 95 % of {len(expected):,} walkers", difference, difference <= TOLERANCE)
