"""Driver of compiled programs for the training loop: one program is queued ahead, and the log is read behind.

A program holds a block of steps. While the device works on one, the numbers of the program before are read:
nothing waits except for a checkpoint. What a step draws follows from the seed and its number, and programs
start at multiples of a block: a run that was stopped and resumed equals one that was not, bit for bit on a
CPU. A run that went wrong is stopped. The median over a program's steps is judged, since a single step may
lie far off: a local energy has no bound near a node.
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

from pinchpoint.systems.common.training.training_loop import Fault, Report
from pinchpoint.systems.vmc.analysis.statistics import block_estimate
from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.optimization import trees
from pinchpoint.systems.vmc.optimization.devices import Host
from pinchpoint.systems.vmc.optimization.programs import Program, program_at
from pinchpoint.systems.vmc.optimization.training_step import Carry, Stats
from pinchpoint.systems.vmc.settings import OptimizerStage, Settings
from pinchpoint.systems.vmc.training.runs import Log, Row, Run

SMOOTHED = 200  # steps that the energy in a report is the mean of
LOST = 3  # steps in a row that are not finite; one may be a walker that met a nucleus, and changes nothing
_RISE = 0.2  # part of the lowest energy that the energy may rise by,
_RISE_HA = 0.5  # and at least this much: a training may climb for a while, but not by more
_BELOW_HA = 2.0  # how far noise may go below the lowest energy possible
_STUCK, _LOOSE = 0.02, 0.98  # acceptance below and above which walkers do not sample


@dataclass(frozen=True)
class EnergyReport(Report):
    """Progress of the training steps. The energy is the mean of the last steps."""

    energy_ha: float | None = None
    error_ha: float | None = None
    variance: float | None = None
    acceptance: float | None = None
    step_s: float | None = None


class ProgramDriver:
    """Queues programs from a carry. programs: gives the compiled program of so many steps by an optimizer."""

    log = Log
    holds_back = False
    saves_start = True  # pretraining and warming up take long

    def __init__(
        self,
        run: Run,
        carry: Carry,
        *,
        programs: Callable[[int, OptimizerStage], Program],
        block: int,
        state: dict[str, Any] | None,
        host: Host,
    ) -> None:
        """state: of the checkpoint that the carry was restored from; None for a new run."""
        self.run, self.settings, self.carry = run, run.config.settings, carry
        self.programs, self.block = programs, block
        self.resumed, self.host = state, host
        self._unread: deque[tuple[int, Stats]] = deque()  # the step before a program, and its numbers
        self._finite: list[bool] = []  # of the rows read last
        self._recent: deque[Row] = deque(maxlen=SMOOTHED)
        self._paces: deque[float] = deque(maxlen=20)
        self._read_at: float | None = None
        self._lowest_ha: float | None = None
        self._lost = 0

    def resume(self) -> dict[str, Any] | None:
        return self.resumed

    def start(self, step: int, seconds: float) -> int:
        count, stage = program_at(step, self.settings, block=self.block)
        self.carry, stats = self.programs(count, stage)(self.carry)
        self._unread.append((step, stats))
        return step + count

    def read(self, *, wait: bool, score: float | None, elapsed: Callable[[], float]) -> Iterator[list[Row]]:
        """Rows of one program at a time; without `wait`, of all but the last, which may still be running."""
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
            self._lost = 0 if finite else self._lost + 1
            if self._lost == LOST:
                return self._fault(row, "the energy or the change of the parameters is not finite")
        sound = [row for row, finite in zip(rows, self._finite, strict=True) if finite]
        wrong = find_fault(sound, lowest_ha=self._lowest_ha, system=self.run.config.system)
        if wrong is not None:
            return self._fault(next(row for row in sound if row.step == wrong[0]), wrong[1])
        if sound:
            energy = median(row.energy_ha for row in sound)
            self._lowest_ha = energy if self._lowest_ha is None else min(energy, self._lowest_ha)
        self._recent.extend(sound)
        return None

    def validate(self) -> float:
        raise NotImplementedError  # nothing is held back

    def state(self) -> dict[str, Any] | Fault:
        arrays = trees.to_arrays(self.carry._replace(key=None))
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
            "train",
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

    def peak_bytes(self) -> int:
        return self.host.peak_bytes() or 0

    def step_s(self) -> float | None:
        """Seconds of a step, by the last programs; None before there were two."""
        return median(self._paces) if self._paces else None

    def _fault(self, row: Row, what: str) -> Fault:
        before = self._recent[-1] if self._recent else row  # the last sound row tells more
        cause, options = likely_cause(before, self.settings)
        return Fault(
            row.step, what, cause, options, f"--from {self.run.folder} starts from the last good checkpoint"
        )


def mean_energy(rows: Iterable[Row]) -> tuple[float | None, float | None]:
    """The mean energy of rows and its error bar; None where they are too few."""
    energies = [row.energy_ha for row in rows if np.isfinite(row.energy_ha)]
    if len(energies) < 2:
        return (energies[0] if energies else None), None
    estimate = block_estimate(energies)
    return estimate.mean, estimate.error


def floor_ha(system: System) -> float:
    """A lower bound of the energy: every electron alone with all nuclei in one place, and the nuclei's
    repulsion.
    """
    return -system.electrons * sum(system.charges) ** 2 / 2 + system.repulsion


def find_fault(rows: Sequence[Row], *, lowest_ha: float | None, system: System) -> tuple[int, str] | None:
    """The step and what is wrong there; None for sound rows. lowest_ha: the lowest median before."""
    for row in rows:
        for name, value in (
            ("energy", row.energy_ha),
            ("variance", row.variance),
            ("change of the parameters", row.norm),
        ):
            if not math.isfinite(value):
                return row.step, f"the {name} is not finite"
    if not rows:
        return None
    now = median(row.energy_ha for row in rows)
    if now < floor_ha(system) - _BELOW_HA:
        return rows[-1].step, f"the energy of {now:.6g} Ha is lower than any that {system.name} can have"
    if lowest_ha is not None and now > lowest_ha + max(_RISE_HA, _RISE * abs(lowest_ha)):
        return rows[-1].step, f"the energy exploded from {lowest_ha:.6g} to {now:.6g} Ha"
    return None


def likely_cause(row: Row, settings: Settings) -> tuple[str, str]:
    """The likely cause of a fault at a row, and the options to train again with."""
    # Where the energy is not finite, no move is accepted.
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
        options += " --set precision=float64"
    return cause, options


def _row(step: int, stats: Stats, at: int, seconds: float) -> Row:
    energy, variance, acceptance, width, norm, clipped, _ = (float(value[at]) for value in stats)
    return Row(step, energy, variance, acceptance, width, norm, clipped, seconds)
