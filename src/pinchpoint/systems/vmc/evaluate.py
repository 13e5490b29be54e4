"""The energy of a trained wave function: frozen parameters, fresh samples, and an error bar that covers.

B walkers, T samples of each. No local energy is clipped. The density is collected from the walkers between
programs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pinchpoint.backends.jax import xla
from pinchpoint.core.errors import BadInput, Diverged
from pinchpoint.core.files import check_output
from pinchpoint.systems.common.budgets import budget_of
from pinchpoint.systems.vmc.analysis.density_cube import SPACING_BOHR, Spread
from pinchpoint.systems.vmc.analysis.observables import Collector
from pinchpoint.systems.vmc.analysis.statistics import (
    LARGEST_RHAT,
    Extrapolation,
    block_estimate,
    rhat,
    zero_variance,
)
from pinchpoint.systems.vmc.model.observables import least_spin_squared
from pinchpoint.systems.vmc.model.wavefunction import wave_function
from pinchpoint.systems.vmc.optimization.devices import Host, on, place
from pinchpoint.systems.vmc.optimization.programs import BLOCK, ProgramStore
from pinchpoint.systems.vmc.optimization.sample_energies import make_measure, make_observe
from pinchpoint.systems.vmc.optimization.sampling import Walkers, stage_key
from pinchpoint.systems.vmc.optimization.warm_start import resize, stored_params
from pinchpoint.systems.vmc.settings import Settings, Stage
from pinchpoint.systems.vmc.training.budget import Fit, fit
from pinchpoint.systems.vmc.training.records import Evaluation
from pinchpoint.systems.vmc.training.runs import Log, Row, Run, read_run

SAMPLES, FEWEST = 1000, 20
OBSERVABLE_BLOCK = 5  # samples between two measurements of observables, which cost several energies
LEAST_BURN = 50  # steps of moves before the first sample, which set the width of the moves again
OUTSIDE = 1e-3  # fraction of the electrons outside the box of a density from which on a note says so
_WINDOWS = 10  # of the log, for the extrapolation
_NEAR = 5.0  # times the final variance: a wave function farther off does not follow the line
_SPREAD = 1.2  # the largest variance over the smallest, or there is no line

SampleProgress = Callable[[str, int, int], None]  # stage, samples done, samples in all


def evaluate(
    run: str | Path,
    output: str | Path | None = None,
    *,
    samples: int = SAMPLES,
    walkers: int | None = None,
    moves: int | None = None,
    seed: int | None = None,
    precision: str | None = None,
    device: str = "auto",
    budget: str | int | None = None,
    cube: str | Path | None = None,
    spacing: float = SPACING_BOHR,
    observables: bool = False,
    store: ProgramStore | None = None,
    progress: SampleProgress | None = None,
) -> Evaluation:
    """Energy, variance and error bar of the last checkpoint of a run. output: JSON file for the record.

    samples: per walker; walkers, moves between samples, seed, precision: by default the run's own. budget: as
    in training; by default the run's method and chunk are used, and with more walkers than the run has,
    whatever fits the device's memory. cube: file for the one-electron density, on a grid of `spacing` bohr.
    observables: also measure spin, dipole, quadrupole, forces and radial densities. store: compiled programs
    to share with other runs of the process.
    """
    start = time.perf_counter()
    tell = progress or (lambda stage, done, total: None)
    source = read_run(Path(run))
    if budget is not None:
        budget_of(budget)
    for path in (output, cube):
        if path is not None:
            check_output(path)
    if samples < FEWEST:
        raise BadInput(
            f"{samples} samples per walker are too few for an error bar.",
            hint=f"Give --samples at least {FEWEST}.",
        )
    options = {"walkers": walkers, "moves": moves, "seed": seed, "precision": precision}
    settings = _settings(
        source.config.settings, {name: value for name, value in options.items() if value is not None}
    )
    states = source.config.net.states
    if (cube is not None or observables) and states > 1:
        raise BadInput(
            f"The run in {source.folder} is of {states} states, of which only energies are measured.",
            hint="Leave out --cube and --observables, or train one state.",
        )
    spread = None if cube is None else Spread(source.config.system, spacing=spacing)
    if budget is not None or settings.walkers > source.config.settings.walkers:
        settings = replace(settings, method="auto", chunk=None)
    with on(device, precision=settings.precision) as host:
        sampler = _Sampler(
            source,
            settings,
            host,
            dense=spread is not None,
            observables=observables,
            store=store,
            tell=tell,
        )
        choice = sampler.fit(budget)
        energies, acceptance = sampler.sample(samples, spread)
    matrices = energies if energies.ndim == 4 else None
    if matrices is not None:
        energies = np.trace(matrices, axis1=2, axis2=3)
    record = _record(source, sampler.settings, host.name, sampler.step, energies, acceptance)
    if sampler.collector is not None:
        record = replace(record, observables=sampler.collector.estimates())
    if choice is not None:
        record = replace(
            record, predicted_bytes=choice.predicted_bytes, budget_bytes=choice.budget_bytes, why=choice.why
        )
    if matrices is not None:
        record = replace(record, states=states_of(matrices, source.config.system.states_ha))
    if spread is not None and cube is not None:
        record = replace(record, cube=str(spread.write(cube)), outside=spread.outside_part)
        if spread.outside_part > OUTSIDE:
            record = replace(
                record,
                notes=(
                    *record.notes,
                    f"{spread.outside_part:.1%} of the electrons lay outside the box of the density",
                ),
            )
    record = replace(record, target=str(run), seconds=time.perf_counter() - start)
    if output is not None:
        record.save(output)
    return record


def _settings(stored: Settings, options: dict[str, Any]) -> Settings:
    """The run's settings with these options, and a chunk that divides the walkers."""
    settings = replace(stored, **{**options, "chunk": None})
    if stored.chunk is None:
        return settings
    chunks = (chunk for chunk in range(1, stored.chunk + 1) if settings.walkers % chunk == 0)
    return replace(settings, chunk=max(chunks))


class _Sampler:
    """Samples from the last checkpoint of a run.

    dense: whether the walkers' positions are needed between programs.
    """

    def __init__(
        self,
        run: Run,
        settings: Settings,
        host: Host,
        *,
        dense: bool,
        observables: bool = False,
        store: ProgramStore | None = None,
        tell: SampleProgress,
    ) -> None:
        self.run, self.settings, self.host, self.tell = run, settings, host, tell
        self.wave = wave_function(run.config.system, run.config.net)
        self.mesh = host.mesh(settings.walkers)
        # The density uses the walkers after each program: shorter programs give more samples of it.
        self.block = 2 if dense else OBSERVABLE_BLOCK if observables else BLOCK[host.name]
        system = run.config.system
        self.collector = (
            Collector(system, least_spin_squared=least_spin_squared(system)) if observables else None
        )
        self.step, params, x = stored_params(run, self.wave)
        dtype = jnp.dtype(settings.precision)
        self.params = place(jax.tree_util.tree_map(lambda leaf: jnp.array(leaf, dtype), params), self.mesh)
        positions = jnp.array(resize(x, settings.walkers), dtype)
        width = jnp.asarray(settings.width, dtype)
        self.first = place(Walkers(positions, jnp.zeros(len(positions), dtype), width), self.mesh)
        self.nuclei = place(jnp.asarray(system.positions, dtype), self.mesh)
        self.store = ProgramStore() if store is None else store

    def fit(self, budget: str | int | None) -> Fit | None:
        """Choose the method and the chunk, used from then on; None where they are the run's own."""
        if self.settings.method != "auto" and budget is None:
            return None
        choice = fit(
            self.settings,
            electrons=self.run.config.system.electrons,
            budget=budget,
            host=self.host,
            compile_with=self.heaviest_program,
            progress=lambda text: self.tell(text, 0, 0),
        )
        self.settings = choice.into(self.settings)
        return choice

    def heaviest_program(self, settings: Settings) -> Any:
        """The program that needs most memory of those that the evaluation runs, one after another."""
        programs = [self.program(settings)]
        if self.collector is not None:
            programs.append(self.observables_program(settings))
        return max(programs, key=lambda program: xla.compiled_bytes(program) or 0)

    def program(self, settings: Settings) -> Any:
        """The compiled program of the moves and energies of `block` samples."""

        def compiled() -> Any:
            self.tell("compiling", 0, 0)
            observe: Any = make_observe(self.wave, settings, self.block, mesh=self.mesh)
            key = self._key(Stage.EVALUATE)
            return observe.lower(self.params, self.first, 0, key, self.nuclei).compile()

        return self.store.get(self.wave, settings, ("energies", self.block, self.mesh), compiled)

    def observables_program(self, settings: Settings) -> Any:
        """The compiled program of the observables of one sample."""
        system, net = self.run.config.system, self.run.config.net

        def compiled() -> Any:
            self.tell("compiling the observables", 0, 0)
            measure: Any = make_measure(lambda own: wave_function(own, net), system, settings, mesh=self.mesh)
            return measure.lower(self.params, self.first.x).compile()

        # Moments are relative to the positions of the nuclei, which are constants of this program.
        what = "observables", system.positions, self.mesh
        return self.store.get(self.wave, settings, what, compiled)

    def _key(self, stage: Stage) -> Any:
        return place(stage_key(self.settings.seed, stage), self.mesh)

    def sample(self, samples: int, spread: Spread | None) -> tuple[np.ndarray, float]:
        """Local energies (T, B), or matrices (T, B, K, K) of K states, and the acceptance."""
        with ThreadPoolExecutor(1, thread_name_prefix="compile") as threads:
            burn = self.store.burn(self.wave, self.settings, self.mesh, threads)
            observe = self.program(self.settings)
        self.tell("warm-up", 0, 0)
        # Random numbers of its own: those of the training's burn-in have already moved these walkers.
        steps, key = max(self.settings.burn, LEAST_BURN), self._key(Stage.EVALUATE_BURN)
        walkers, _ = burn.result()(self.params, self.first, steps, key, self.nuclei)
        key = self._key(Stage.EVALUATE)
        measure = self.observables_program(self.settings) if self.collector is not None else None
        energies, accepted, unread = [], [], None
        for at in range(0, samples, self.block):
            walkers, observed = observe(self.params, walkers, at, key, self.nuclei)
            if spread is not None:
                spread.add(np.asarray(walkers.x))
            if self.collector is not None and measure is not None:
                self.collector.add(np.asarray(walkers.x), measure(self.params, walkers.x))
            if unread is not None:  # while the device computes the next
                energies.append(np.asarray(unread.energies))
                accepted.append(np.asarray(unread.acceptance))
                self.tell("samples", at, samples)
            unread = observed
        assert unread is not None
        energies.append(np.asarray(unread.energies))
        accepted.append(np.asarray(unread.acceptance))
        self.tell("samples", samples, samples)
        return np.concatenate(energies)[:samples], float(np.concatenate(accepted)[:samples].mean())


def _record(
    run: Run, settings: Settings, device: str, step: int, energies: np.ndarray, acceptance: float
) -> Evaluation:
    system = run.config.system
    not_finite_count = int((~np.isfinite(energies)).sum())
    if not_finite_count:
        raise Diverged(
            f"{not_finite_count:,} of {energies.size:,} local energies are not finite "
            f"at step {step:,} of {run.folder}.",
            hint="Evaluate with --precision float64, or train again: the wave function has poles.",
        )
    estimate, mixing = block_estimate(energies), rhat(energies)
    states = run.config.net.states
    exact = system.exact_ha if states == 1 else None
    extrapolated = None
    if states == 1:
        extrapolated = extrapolate(
            run.log_path, energy=estimate.mean, error=estimate.error, variance=estimate.variance, step=step
        )
    notes = ()
    if mixing > LARGEST_RHAT:
        notes = (f"R-hat is {mixing:.3f}: the walkers have not mixed; give more --samples or --moves",)
    return Evaluation(
        target=str(run.folder),
        system=system.name,
        up=system.up,
        down=system.down,
        charge=system.charge,
        pseudopotential=system.pseudopotential,
        step=step,
        energy_ha=estimate.mean,
        error_ha=estimate.error,
        variance=estimate.variance,
        acceptance=acceptance,
        rhat=mixing,
        autocorrelation=estimate.autocorrelation,
        block=estimate.block,
        walkers=settings.walkers,
        samples=len(energies),
        moves=settings.moves,
        reference_ha=exact,
        difference_ha=None if exact is None else estimate.mean - exact,
        extrapolated_ha=None if extrapolated is None else extrapolated.energy,
        extrapolated_error_ha=None if extrapolated is None else extrapolated.error,
        seed=settings.seed,
        precision=settings.precision,
        device=device,
        seconds=0.0,
        notes=notes,
        method=settings.method,
        chunk=settings.chunk,
        why="as in training",
    )


def states_of(matrices: np.ndarray, references: Sequence[float]) -> tuple[dict[str, Any], ...]:
    """Return the energy of each state with its error bar, from the lowest.

    matrices: (T, B, K, K), psi^-1 (H psi) of every sample. The energies are the eigenvalues of its mean. Left
    and right eigenvectors make a series of local energies of each state, whose mean is the eigenvalue, and
    whose blocks give the error bar.
    """
    mean = matrices.mean(axis=(0, 1), dtype=np.float64)
    values, right = np.linalg.eig(mean)
    order = np.argsort(np.real(values))
    right, left = right[:, order], np.linalg.inv(right)[order]
    series = [
        np.real(np.einsum("i,tbij,j->tb", left[at], matrices, right[:, at])).astype(np.float64)
        for at in range(len(order))
    ]
    states: list[dict[str, Any]] = []
    for at, local in enumerate(series):
        estimate, above = block_estimate(local), block_estimate(local - series[0])
        states.append(
            {
                "energy_ha": estimate.mean,
                "error_ha": estimate.error,
                "variance": estimate.variance,
                "excitation_ha": above.mean if at else 0.0,
                "excitation_error_ha": above.error if at else 0.0,
                "reference_ha": references[at] if at < len(references) else None,
            }
        )
    return tuple(states)


def extrapolate(
    path: Path, *, energy: float, error: float, variance: float, step: int
) -> Extrapolation | None:
    """The energy at zero variance, from windows of the log and the evaluation; None where they follow no
    line.
    """
    if not path.exists() or not error > 0:
        return None
    rows = [row for row in Log.read(path) if step // 10 < row.step <= step and math.isfinite(row.energy_ha)]
    rows = [row for row in rows if row.variance <= _NEAR * variance]
    points = [
        point
        for part in np.array_split(np.arange(len(rows)), _WINDOWS)
        if (point := _window([rows[i] for i in part]))
    ]
    points.append((energy, variance, error))
    variances = [point[1] for point in points]
    if len(points) < _WINDOWS // 2 or max(variances) < _SPREAD * min(variances):
        return None
    line = zero_variance(*zip(*((e, v, s) for e, v, s in points), strict=True))
    return line if line.slope > 0 else None


def _window(rows: Sequence[Row]) -> tuple[float, float, float] | None:
    """Mean energy and variance of rows, and the error of the energy; None where they are too few."""
    if len(rows) < FEWEST:
        return None
    estimate = block_estimate([row.energy_ha for row in rows])
    return (
        (estimate.mean, float(np.mean([row.variance for row in rows])), estimate.error)
        if estimate.error > 0
        else None
    )
