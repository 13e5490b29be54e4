"""Times of a training step and its parts, beside the baseline of the FermiNeuT optimisation report.

Both sides get weights and walkers that lie on the device, run in turn (A B B A), and are waited for; compilation is over before
the clock starts. Moves are Langevin's and the optimizer is Adam on both sides. Beside them stand our step scanned, many in one
program, as training runs it; with Metropolis moves, as training takes them by default; and both at once. Only those with
Langevin moves do what the original's step does. Last comes the energy the original began with: nested gradients from Python,
timed on a few walkers and scaled up, which the record says; it takes long, so the record is written before it too. The quick
Laplacian of the original's own function must give the nested energies; the record says how well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jax.flatten_util import ravel_pytree

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core import machine as _machine
from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_seconds
from pinchpoint.studies.timing import Clock, Wait, interleave, ratio_interval, timing_of
from pinchpoint.systems.common import bench_command
from pinchpoint.systems.vmc.data.system import System, system_of
from pinchpoint.systems.vmc.model.baseline import Original, nested_energies
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.hamiltonian import local_energies
from pinchpoint.systems.vmc.model.wavefunction import WaveFunction, wave_function
from pinchpoint.systems.vmc.optimization.optimizers import adam_change, energy_gradient
from pinchpoint.systems.vmc.optimization.sampling import key_of, moves, refreshed, start
from pinchpoint.systems.vmc.optimization.training_step import begin, clipped, make_step, make_steps
from pinchpoint.systems.vmc.settings import Settings, Stage

FIGURES = ("train_step", "mcmc", "energy_gradient", "optimizer", "forward")
# Other forms of our step, against the original's one.
BESIDE = ("train_step_scanned_langevin", "train_step_metropolis", "train_step_scanned")
SCANNED = {
    "cuda": 200,
    "cpu": 20,
}  # steps in one program: as many as make what a program costs at its ends not count
NESTED = ("report", 128)  # network and walkers of the nested energy: the report's size
Run = Callable[[], Any]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Size:
    """What the report calls a configuration."""

    net: str
    walkers: int
    moves: int


CONFIGS: dict[str, Size] = {
    "report": Size("report", 128, 10),  # what the report says it ran
    "report-cpu": Size("report-cpu", 256, 5),  # what its figures were measured with
}
USUAL = {"cuda": "report", "cpu": "report-cpu"}


@dataclass(frozen=True)
class Figure:
    """Seconds of one boundary, medians with 95 % intervals. scaled: the baseline was timed on `timed_walkers` alone."""

    name: str
    baseline_s: float
    baseline_low_s: float
    baseline_high_s: float
    ours_s: float
    ours_low_s: float
    ours_high_s: float
    speedup: float  # baseline over ours
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
    scanned_steps: int  # steps in one program of the figures train_step_scanned*
    nested_error: (
        float | None
    )  # largest relative distance of the nested energies from the quick ones; None: not timed yet
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
        told = (
            "not timed"
            if self.nested_error is None
            else f"{self.nested_error:.1e} from the quick ones of the same function"
        )
        return [*rows, ("nested energies", told)]


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
    """Time the original and ours. config: one of CONFIGS; None: the one for the device.

    scanned: steps in one program; None: 200 on a GPU, 20 on a CPU. nested_walkers: walkers the nested energy is timed on.
    output: the record, written before the nested energy and again with it.
    """
    if config is not None and config not in CONFIGS:
        raise BadInput(f"unknown configuration {config!r:.40}", hint=f"use one of: {', '.join(CONFIGS)}")
    if min(repeats, 1 if scanned is None else scanned, nested_walkers, nested_repeats) < 1:
        raise BadInput(
            "a count below 1 of repeats, scanned steps or nested walkers", hint="give at least 1 of each"
        )
    used = backend("jax")
    place = resolve_device(device, used)
    config = config or USUAL[place]
    size, scanned = CONFIGS[config], scanned or SCANNED[place]
    what, net = system_of(system), NetConfig.preset(size.net)
    tell = progress or (lambda stage, done, total: None)

    def wait(result: Any) -> None:
        used.wait(place, result)

    figures: list[Figure] = []
    with jax.default_device(jax.local_devices(backend="gpu" if place == "cuda" else place)[0]):
        theirs, ours = (
            _original(Original(what, net, size.moves), size, seed),
            _ours(what, net, size, seed, scanned),
        )
        for at, name in enumerate(FIGURES):
            tell(name, at, len(FIGURES) + 1)
            for one in (name, *BESIDE) if name == "train_step" else (name,):
                a, b = interleave(theirs[name], ours[one], wait=wait, warmup=2, repeats=repeats, clock=clock)
                steps = scanned if one.startswith("train_step_scanned") else 1
                figures.append(_figure(one, a, [seconds / steps for seconds in b], walkers=size.walkers))
        notes = (
            "random weights; both sides start from weights and walkers on the device, and are waited for",
            f"train_step_scanned*: {scanned} of our steps in one program, seconds of one",
            "train_step_metropolis, train_step_scanned: ours with Metropolis moves, the original's with its Langevin ones",
        )
        made = Benchmark(
            what.name, place, config, net, size.walkers, size.moves, tuple(figures), scanned, None, notes
        )
        if output is not None:
            made.save(output)
        tell("nested energy", len(FIGURES), len(FIGURES) + 1)
        nested, error = _nested(
            what, seed, wait, clock, some=nested_walkers, repeats=(nested_repeats, repeats)
        )
    note = f"energy_nested: gradients of gradients from Python on {nested.timed_walkers} walkers, scaled to {nested.walkers}"
    made = replace(made, figures=(*figures, nested), nested_error=error, notes=(*notes, note))
    if output is not None:
        made.save(output)
    return made


def _original(original: Original, size: Size, seed: int) -> dict[str, Run]:
    key = key_of(seed, Stage.PARAMETERS)
    params = original.init(key)
    x = start(original.system, size.walkers, key_of(seed, Stage.WALKERS))
    zero = jax.tree_util.tree_map(jnp.zeros_like, params)
    _, gradient = original.energy_and_gradient(params, x)
    held = [(params, zero, zero, x)]

    def step() -> Any:
        held[0], energy = original.step(*held[0], key, 0)
        return held[0], energy

    return {
        "train_step": step,
        "mcmc": lambda: original.walk(params, x, key),
        "energy_gradient": lambda: original.energy_and_gradient(params, x),
        "optimizer": lambda: original.update(params, zero, zero, gradient, 0),
        "forward": lambda: original.forward(params, x),
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
            wave.log, params, refreshed(wave.log, params, walkers), key, steps=size.moves, kind="langevin"
        )

    @jax.jit
    def gradient_of(params: Any, x: Any) -> Any:
        energies = energies_of(params, x)
        return energies.mean(), energy_gradient(wave.log, params, x, clipped(energies, settings.clip)[0])

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
    """Goes on from where the last call ended: the carry is donated."""
    held = [begin(wave, settings)]

    def run() -> Any:
        held[0], stats = step(held[0])
        return held[0], stats

    return run


def _nested(
    system: System, seed: int, wait: Wait, clock: Clock, *, some: int, repeats: tuple[int, int]
) -> tuple[Figure, float]:
    """The original's nested energy on some walkers, scaled to all, beside ours of all; how far it is from the quick one."""
    net, count = NetConfig.preset(NESTED[0]), NESTED[1]
    x = start(system, count, key_of(seed, Stage.WALKERS))
    wave, original = wave_function(system, net), Original(system, net, moves=1)
    params, old = (one.init(key_of(seed, Stage.PARAMETERS)) for one in (wave, original))
    energies = jax.jit(local_energies(wave.log, system))
    some = min(some, count)
    nested_energies(original.log_psi, old, system, x[:1])  # compiles each operation it will run
    found: list[Any] = []

    def slow() -> Any:
        found.append(nested_energies(original.log_psi, old, system, x[:some]))
        return found[-1]

    a = _alone(slow, wait, clock, warmup=0, repeats=repeats[0])
    b = _alone(lambda: energies(params, x), wait, clock, warmup=2, repeats=repeats[1])
    wanted = np.asarray(jax.jit(local_energies(original.log_psi, system, method="loop"))(old, x[:some]))
    error = float(np.max(np.abs(np.asarray(found[-1]) - wanted) / np.maximum(np.abs(wanted), 1.0)))
    scaled = [seconds * count / some for seconds in a]
    figure = _figure("energy_nested", scaled, b, walkers=count)
    return replace(
        figure, timed_walkers=some, scaled=some < count, note=f"network {NESTED[0]}, no gradient"
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


def command(
    molecule: str = typer.Argument("H2", metavar="MOLECULE", help="H2, LiH ... or an .xyz file."),
    output: Path = bench_command.OUTPUT,
    config: str = typer.Option(
        None,
        "--config",
        help="report: 128 walkers, 10 moves; report-cpu: 256 and 5.  "
        "[default: report on cuda, else report-cpu]",
    ),
    repeats: int = typer.Option(15, "--repeats", help="Runs of each figure."),
    seed: int = typer.Option(0, "--seed", help="Seed of parameters and walkers."),
    device: str = bench_command.DEVICE,
) -> None:
    """Time a training step and its parts beside the baseline.

    train_step, mcmc, energy_gradient, optimizer and forward over the same boundary, in turn, waited for.
    The baseline is that of the FermiNeuT optimisation report. Its nested energies come last, timed on 2
    walkers and scaled up, which the record says; the record is written before them too.
    """
    from pinchpoint.systems.vmc.cli import start_jax

    start_jax()
    kept = (
        "nothing was written"
        if output is None
        else f"{output} holds what was timed, if all but the nested energies was"
    )
    measure = partial(bench, molecule, config, device=device, repeats=repeats, seed=seed)
    bench_command.run_bench(measure, output=output, kept=kept)
