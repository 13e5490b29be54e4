"""Driver of compiled programs for the training loop: one program is queued ahead, and results are read later.

A program runs a block of steps. While the device works on one, the results of the previous program are read;
only a checkpoint makes the host wait. The random numbers of a step follow from the seed and its number, and
programs start at multiples of a block, so a run that was stopped and resumed equals one that was not, bit for
bit on a CPU. A run that goes wrong is stopped. This is judged by the median over the steps of a program,
because the energy of a single step may be far off: a local energy is unbounded near a node.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import jax
import numpy as np

from pinchpoint.systems.common.training.training_loop import TRAIN, Fault, Progress, Report
from pinchpoint.systems.vmc.analysis.statistics import block_estimate
from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.optimization import trees
from pinchpoint.systems.vmc.optimization.devices import Host
from pinchpoint.systems.vmc.optimization.programs import Program, program_at
from pinchpoint.systems.vmc.optimization.training_step import Carry, Stats
from pinchpoint.systems.vmc.settings import OptimizerStage, Settings
from pinchpoint.systems.vmc.training.runs import Log, Row, Run

MEAN_STEPS = 200  # the energy in a report is the mean of this many steps
MOST_NOT_FINITE = 3  # consecutive steps; a single one may be a walker at a nucleus, and is skipped
_RISE = 0.2  # fraction of the lowest energy by which the energy may rise,
_RISE_HA = 0.5  # or this much if larger: the energy may rise for a while, but not by more
_BELOW_HA = 2.0  # how far noise may take the energy below the lowest possible one
_STUCK, _LOOSE = 0.02, 0.98  # acceptance below and above which the walkers do not sample


@dataclass(frozen=True)
class EnergyReport(Report):
    """Progress of training. The energy is the mean over the last steps."""

    energy_ha: float | None = None
    error_ha: float | None = None
    variance: float | None = None
    acceptance: float | None = None
    step_s: float | None = None


class ProgramDriver:
    """Queues programs that advance a carry.

    programs: returns the compiled program for a number of steps by an optimizer.
    """

    log = Log
    validates = False
    saves_start = True  # pretraining and warm-up take long

    def __init__(
        self,
        run: Run,
        carry: Carry,
        *,
        programs: Callable[[int, OptimizerStage], Program],
        block: int,
        state: dict[str, Any] | None,
        host: Host,
        tell: Progress,
    ) -> None:
        """Start from a carry. state: that of the checkpoint it was restored from; None for a new run.

        tell: called when the first program starts; its results are read only when it has finished.
        """
        self.run, self.settings, self.carry = run, run.config.settings, carry
        self.programs, self.block = programs, block
        self.resumed, self.host, self.tell = state, host, tell
        self._has_started = False
        self._unread: deque[tuple[int, Stats]] = deque()  # first step of a program, and its results
        self._finite: list[bool] = []  # whether each of the rows read last is finite
        self._recent: deque[Row] = deque(maxlen=MEAN_STEPS)
        self._paces: deque[float] = deque(maxlen=20)
        self._read_at: float | None = None
        self._lowest_ha: float | None = None
        self._not_finite = 0

    def resume(self) -> dict[str, Any] | None:
        return self.resumed

    def start(self, step: int, seconds: float) -> int:
        if not self._has_started:
            self._has_started = True
            self.tell(EnergyReport(TRAIN, step, self.run.steps))
        count, stage = program_at(step, self.settings, block=self.block)
        self.carry, stats = self.programs(count, stage)(self.carry)
        self._unread.append((step, stats))
        return step + count

    def read(self, *, wait: bool, score: float | None, elapsed: Callable[[], float]) -> Iterator[list[Row]]:
        """Yield the rows of one program at a time.

        Without `wait`, the rows of the last program are left for later, since it may still be running.
        """
        while len(self._unread) > (0 if wait else 1):
            first, stats = self._unread.popleft()
            values = Stats(*(np.atleast_1d(value) for value in jax.device_get(stats)))
            now, count = elapsed(), len(values.energy)
            since = now if self._read_at is None else self._read_at
            if self._read_at is not None:
                self._paces.append((now - since) / count)
            self._read_at = now
            self._finite = [bool(finite) for finite in values.finite]
            yield [
                _row(first + at + 1, values, at, since + (now - since) * (at + 1) / count)
                for at in range(count)
            ]

    def check(self, rows: list[Row]) -> Fault | None:
        for row, finite in zip(rows, self._finite, strict=True):
            self._not_finite = 0 if finite else self._not_finite + 1
            if self._not_finite == MOST_NOT_FINITE:
                return self._fault(row, "the energy or the parameter update is not finite")
        sound = [row for row, finite in zip(rows, self._finite, strict=True) if finite]
        config = self.run.config
        wrong = find_fault(sound, lowest_ha=self._lowest_ha, system=config.system, states=config.net.states)
        if wrong is not None:
            return self._fault(next(row for row in sound if row.step == wrong[0]), wrong[1])
        if sound:
            energy = median(row.energy_ha for row in sound)
            self._lowest_ha = energy if self._lowest_ha is None else min(energy, self._lowest_ha)
        self._recent.extend(sound)
        return None

    def validate(self) -> float:
        raise NotImplementedError  # vmc holds no data back

    def state(self) -> dict[str, Any] | Fault:
        arrays = trees.to_arrays(self.carry._replace(inputs=None))
        bad = [
            name for name, array in arrays.items() if array.dtype.kind == "f" and not np.isfinite(array).all()
        ]
        if bad and self._recent:
            return self._fault(self._recent[-1], f"{bad[0]} is not finite")
        return {"arrays": arrays}

    def report(self, row: Row, *, total: int, eta_s: float) -> EnergyReport:
        energy, error = mean_energy(self._recent)
        last, pace = self._recent[-1] if self._recent else None, self.step_s()
        return EnergyReport(
            TRAIN,
            row.step,
            total,
            row,
            eta_s=eta_s if pace is None else pace * (total - row.step),
            energy_ha=energy,
            error_ha=error,
            variance=median(row.variance for row in self._recent) if last else None,
            acceptance=last.acceptance if last else None,
            step_s=pace,
        )

    def peak_bytes(self) -> int | None:
        return self.host.peak_bytes()

    def step_s(self) -> float | None:
        """Return the seconds per step of the last programs; None until two have finished."""
        return median(self._paces) if self._paces else None

    def _fault(self, row: Row, what: str) -> Fault:
        before = self._recent[-1] if self._recent else row  # the last good row is more informative
        cause, options = likely_cause(before, self.settings)
        return Fault(
            row.step, what, cause, options, f"--from {self.run.folder} starts from the last good checkpoint"
        )


def mean_energy(rows: Iterable[Row]) -> tuple[float | None, float | None]:
    """Return the mean energy of rows and its error bar; None if there are too few rows."""
    energies = [row.energy_ha for row in rows if np.isfinite(row.energy_ha)]
    if len(energies) < 2:
        return (energies[0] if energies else None), None
    estimate = block_estimate(energies)
    return estimate.mean, estimate.error


def floor_ha(system: System, *, states: int = 1) -> float:
    """Return a lower bound of the energy, or of the sum over several states.

    It is the energy of every electron alone with all nuclei in one place, plus the repulsion of the nuclei.
    """
    return states * (-system.electrons * sum(system.charges) ** 2 / 2 + system.repulsion)


def find_fault(
    rows: Sequence[Row], *, lowest_ha: float | None, system: System, states: int = 1
) -> tuple[int, str] | None:
    """Return the step and the problem, or None for good rows. lowest_ha: the lowest median so far."""
    for row in rows:
        for name, value in (
            ("energy", row.energy_ha),
            ("variance", row.variance),
            ("parameter update", row.norm),
        ):
            if not math.isfinite(value):
                return row.step, f"the {name} is not finite"
    if not rows:
        return None
    now = median(row.energy_ha for row in rows)
    if now < floor_ha(system, states=states) - _BELOW_HA:
        return rows[-1].step, f"the energy of {now:.6g} Ha is below any energy that {system.name} can have"
    if lowest_ha is not None and now > lowest_ha + max(_RISE_HA, _RISE * abs(lowest_ha)):
        return rows[-1].step, f"the energy exploded from {lowest_ha:.6g} to {now:.6g} Ha"
    return None


def likely_cause(row: Row, settings: Settings) -> tuple[str, str]:
    """Return the likely cause of a fault at a row, and the options to train again with."""
    # If the energy is not finite, no move is accepted.
    if math.isfinite(row.energy_ha) and not _STUCK <= row.acceptance <= _LOOSE:
        return (
            f"walkers that do not sample ({row.acceptance:.1%} of moves accepted, {row.width:.3g} bohr wide)",
            f"--set moves={2 * settings.moves} or --set burn={max(100, 4 * settings.burn)}",
        )
    rate = "adam_rate" if row.step <= settings.adam_until else "spring_rate"
    cause = f"{rate} being too high ({getattr(settings, rate):g})"
    options = f"--set {rate}={getattr(settings, rate) / 4:.2g}"
    if settings.walkers < 256:
        cause += f", or gradients of {settings.walkers:,} walkers being too noisy"
        options += f" --walkers {4 * settings.walkers}"
    elif settings.precision == "float32" and rate == "spring_rate":
        cause += ", or float32 being too coarse for SPRING"
        options += " --precision float64"
    return cause, options


def _row(step: int, stats: Stats, at: int, seconds: float) -> Row:
    energy, variance, acceptance, width, norm, clipped, _ = (float(value[at]) for value in stats)
    return Row(step, energy, variance, acceptance, width, norm, clipped, seconds)
