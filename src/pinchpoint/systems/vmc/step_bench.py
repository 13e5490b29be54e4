"""Timings of a training step and its parts, compared with the baseline of the FermiNeuT optimisation report.

Both sides are timed over the same boundaries: train_step, mcmc, energy_gradient, optimizer, forward. Weights
and walkers are already on the device, the sides run in turn (A B B A), the clock waits for the device, and
everything is compiled before it starts. Both sides use Langevin moves and Adam. Three more timings are of our
step alone: many steps in one program, as training runs them; with Metropolis moves, the default of training;
and both together. Only those with Langevin moves do the same work as the baseline's step. The last timing is
the first energy of the report, nested gradients from Python, timed on a few walkers and scaled up, which the
record says. It takes long, so the record is also written before it. The fast Laplacian, applied to the
baseline's wave function, must reproduce the nested energies; the record holds the largest difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core import machine as _machine
from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_seconds
from pinchpoint.studies.timing import Clock, Wait, interleave, ratio_interval, timing_of
from pinchpoint.systems.vmc.data.system import System, system_of
from pinchpoint.systems.vmc.model.baseline import Baseline, nested_energies
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.hamiltonian import local_energies
from pinchpoint.systems.vmc.model.wavefunction import WaveFunction, wave_function
from pinchpoint.systems.vmc.optimization.optimizers import adam_change, energy_gradient
from pinchpoint.systems.vmc.optimization.sampling import key_of, moves, refresh, start
from pinchpoint.systems.vmc.optimization.training_step import begin, clip, make_step, make_steps
from pinchpoint.systems.vmc.settings import Settings, Stage

FIGURES = ("train_step", "mcmc", "energy_gradient", "optimizer", "forward")
# Other versions of our step, compared with the only step of the baseline.
BESIDE = ("train_step_scanned_langevin", "train_step_metropolis", "train_step_scanned")
# Steps per program: enough to make the cost of its launch negligible.
SCANNED_STEPS = {"cuda": 200, "cpu": 20}
NESTED_SIZE = ("report", 128)  # network and walkers of the nested energy, as in the report
Run = Callable[[], Any]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Size:
    """A configuration of the report."""

    net: str
    walkers: int
    moves: int


CONFIGS: dict[str, Size] = {
    "report": Size("report", 128, 10),  # the configuration stated in the report
    "report-cpu": Size("report-cpu", 256, 5),  # the configuration of the timings in the report
}
USUAL = {"cuda": "report", "cpu": "report-cpu"}


@dataclass(frozen=True)
class Figure:
    """Seconds for one boundary: medians with 95 % intervals.

    scaled: whether the baseline was timed on only `timed_walkers` walkers and scaled up.
    """

    name: str
    baseline_s: float
    baseline_low_s: float
    baseline_high_s: float
    ours_s: float
    ours_low_s: float
    ours_high_s: float
    speedup: float  # baseline / ours
    speedup_low: float
    speedup_high: float
    baseline_runs: int
    ours_runs: int
    walkers: int
    timed_walkers: int
    scaled: bool = False
    note: str = ""


@dataclass(frozen=True)
class Benchmark(Record):
    """The record of `pinchpoint bench vmc`."""

    kind: ClassVar[str] = "vmc-bench"
    target: str
    device: str
    config: str
    net: NetConfig
    walkers: int
    moves: int
    figures: tuple[Figure, ...]
    scanned_steps: int  # steps in one program of train_step_scanned*
    # Largest relative difference between the nested and the fast energies; None if not timed yet.
    nested_error: float | None
    notes: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def figure(self, name: str) -> Figure:
        return next(one for one in self.figures if one.name == name)

    def summary(self) -> list[tuple[str, str]]:
        net = f"{self.net.one}x{self.net.two}, {self.net.layers} layers, {self.net.determinants} determinants"
        rows = [
            ("case", f"{self.target}, {self.walkers:,} walkers, {net}, {self.moves} moves, on {self.device}")
        ]
        for one in self.figures:
            text = f"{show_seconds(one.baseline_s)} -> {show_seconds(one.ours_s)}"
            text += f", {one.speedup:,.4g}x [{one.speedup_low:,.4g}, {one.speedup_high:,.4g}]"
            if one.scaled:
                text += f" (baseline timed on {one.timed_walkers} of {one.walkers} walkers)"
            rows.append((one.name, text))
        nested = (
            "not timed"
            if self.nested_error is None
            else f"differ by {self.nested_error:.1e} from the fast ones of the same function"
        )
        return [*rows, ("nested energies", nested)]


def bench(
    system: str | Path | System = "H2",
    config: str | None = None,
    *,
    device: str = "auto",
    repeats: int = 15,
    scanned: int | None = None,
    nested_walkers: int = 2,
    nested_repeats: int = 3,
    seed: int = 0,
    output: str | Path | None = None,
    progress: Progress | None = None,
    clock: Clock = time.perf_counter,
) -> Benchmark:
    """Time the baseline and our step.

    config: one of CONFIGS, by default the one for the device. scanned: steps per program, by default 200 on a
    GPU and 20 on a CPU. nested_walkers: number of walkers that the nested energy is timed on. output: path of
    the record, written before the nested energy and again after it.
    """
    if config is not None and config not in CONFIGS:
        raise BadInput(
            f"There is no configuration {config!r:.40}.", hint=f"Use one of: {', '.join(CONFIGS)}."
        )
    if min(repeats, 1 if scanned is None else scanned, nested_walkers, nested_repeats) < 1:
        raise BadInput(
            "The repeats, scanned steps and nested walkers must each be at least 1.",
            hint="Use at least 1 of each.",
        )
    jax_backend = backend("jax")
    place = resolve_device(device, jax_backend)
    config = config or USUAL[place]
    size, scanned = CONFIGS[config], scanned or SCANNED_STEPS[place]
    molecule, net = system_of(system), NetConfig.preset(size.net)
    tell = progress or (lambda stage, done, total: None)

    def wait(result: Any) -> None:
        jax_backend.wait(place, result)

    figures: list[Figure] = []
    with jax.default_device(jax.local_devices(backend="gpu" if place == "cuda" else place)[0]):
        theirs, ours = (
            _baseline(Baseline(molecule, net, size.moves), size, seed),
            _ours(molecule, net, size, seed, scanned),
        )
        for at, name in enumerate(FIGURES):
            tell(name, at, len(FIGURES) + 1)
            for one in (name, *BESIDE) if name == "train_step" else (name,):
                a, b = interleave(theirs[name], ours[one], wait=wait, warmup=2, repeats=repeats, clock=clock)
                steps = scanned if one.startswith("train_step_scanned") else 1
                figures.append(_figure(one, a, [seconds / steps for seconds in b], walkers=size.walkers))
        notes = (
            "random weights; on both sides weights and walkers are on the device, and the clock waits for it",
            f"train_step_scanned*: {scanned} of our steps in one program, seconds per step",
            "train_step_metropolis, train_step_scanned: ours uses Metropolis moves, the baseline Langevin",
        )
        record = Benchmark(
            molecule.name, place, config, net, size.walkers, size.moves, tuple(figures), scanned, None, notes
        )
        if output is not None:
            record.save(output)
        tell("nested energy", len(FIGURES), len(FIGURES) + 1)
        nested, error = _nested(
            molecule, seed, wait, clock, some=nested_walkers, repeats=(nested_repeats, repeats)
        )
    note = (
        f"energy_nested: gradients of gradients from Python on {nested.timed_walkers} walkers, "
        f"scaled to {nested.walkers}"
    )
    record = replace(record, figures=(*figures, nested), nested_error=error, notes=(*notes, note))
    if output is not None:
        record.save(output)
    return record


def _baseline(baseline: Baseline, size: Size, seed: int) -> dict[str, Run]:
    key = key_of(seed, Stage.PARAMETERS)
    params = baseline.init(key)
    x = start(baseline.system, size.walkers, key_of(seed, Stage.WALKERS))
    zero = jax.tree_util.tree_map(jnp.zeros_like, params)
    _, gradient = baseline.energy_and_gradient(params, x)
    current = [(params, zero, zero, x)]

    def step() -> Any:
        current[0], energy = baseline.step(*current[0], key, 0)
        return current[0], energy

    return {
        "train_step": step,
        "mcmc": lambda: baseline.walk(params, x, key),
        "energy_gradient": lambda: baseline.energy_and_gradient(params, x),
        "optimizer": lambda: baseline.update(params, zero, zero, gradient, 0),
        "forward": lambda: baseline.forward(params, x),
    }


def _ours(system: System, net: NetConfig, size: Size, seed: int, scanned: int) -> dict[str, Run]:
    wave = wave_function(system, net)
    settings = Settings(
        walkers=size.walkers, moves=size.moves, kind="langevin", optimizer="adam", burn=0, seed=seed
    )
    energies_of = local_energies(wave.log, system, method=settings.method)
    carry = begin(wave, settings)
    params, walkers, state = carry.params, carry.walkers, carry.optimizer
    key = key_of(seed, Stage.TRAIN)

    @jax.jit
    def walk(params: Any, walkers: Any) -> Any:
        return moves(
            wave.log, params, refresh(wave.log, params, walkers), key, steps=size.moves, kind="langevin"
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
    usual = replace(settings, kind="metropolis")
    _, gradient = gradient_of(params, walkers.x)
    return {
        "train_step": _stepping(wave, settings, make_step(wave, settings)),
        "train_step_metropolis": _stepping(wave, usual, make_step(wave, usual)),
        "train_step_scanned": _stepping(wave, usual, make_steps(wave, usual, scanned)),
        "train_step_scanned_langevin": _stepping(wave, settings, make_steps(wave, settings, scanned)),
        "mcmc": lambda: walk(params, walkers),
        "energy_gradient": lambda: gradient_of(params, walkers.x),
        "optimizer": lambda: update(params, state.mean, state.square, gradient),
        "forward": lambda: forward(params, walkers.x),
    }


def _stepping(wave: WaveFunction, settings: Settings, step: Callable[[Any], tuple[Any, Any]]) -> Run:
    """A step that continues from the last call, because the carry is donated."""
    current = [begin(wave, settings)]

    def run() -> Any:
        current[0], stats = step(current[0])
        return current[0], stats

    return run


def _nested(
    system: System, seed: int, wait: Wait, clock: Clock, *, some: int, repeats: tuple[int, int]
) -> tuple[Figure, float]:
    """Time the nested energy of some walkers, scaled to all, and ours of all walkers.

    Returns the figure, and the difference between the nested and the fast energy.
    """
    net, count = NetConfig.preset(NESTED_SIZE[0]), NESTED_SIZE[1]
    x = start(system, count, key_of(seed, Stage.WALKERS))
    wave, baseline = wave_function(system, net), Baseline(system, net, moves=1)
    params, old = (one.init(key_of(seed, Stage.PARAMETERS)) for one in (wave, baseline))
    energies = jax.jit(local_energies(wave.log, system))
    some = min(some, count)
    nested_energies(baseline.log_psi, old, system, x[:1])  # compiles each of its operations
    results: list[Any] = []

    def slow() -> Any:
        results.append(nested_energies(baseline.log_psi, old, system, x[:some]))
        return results[-1]

    a = _alone(slow, wait, clock, warmup=0, repeats=repeats[0])
    b = _alone(lambda: energies(params, x), wait, clock, warmup=2, repeats=repeats[1])
    expected = np.asarray(jax.jit(local_energies(baseline.log_psi, system, method="loop"))(old, x[:some]))
    error = float(np.max(np.abs(np.asarray(results[-1]) - expected) / np.maximum(np.abs(expected), 1.0)))
    scaled = [seconds * count / some for seconds in a]
    figure = _figure("energy_nested", scaled, b, walkers=count)
    return replace(
        figure, timed_walkers=some, scaled=some < count, note=f"network {NESTED_SIZE[0]}, no gradient"
    ), error


def _alone(run: Run, wait: Wait, clock: Clock, *, warmup: int, repeats: int) -> list[float]:
    return interleave(run, lambda: None, wait=wait, warmup=warmup, repeats=repeats, clock=clock)[0]


def _figure(name: str, baseline: list[float], ours: list[float], *, walkers: int) -> Figure:
    a, b = timing_of(baseline), timing_of(ours)
    return Figure(
        name,
        a.median_s,
        a.low_s,
        a.high_s,
        b.median_s,
        b.low_s,
        b.high_s,
        *ratio_interval(baseline, ours),
        a.runs,
        b.runs,
        walkers,
        walkers,
    )
