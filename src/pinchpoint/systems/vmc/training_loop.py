"""The steps of a training: programs queued one ahead, the log read behind them, checkpoints, and a clean stop.

A program holds `BLOCK` steps, by Adam or by SPRING: where one follows the other in a block, its steps are taken one by one. While
the device is at a program, the numbers of the one before are read: nothing waits but for a checkpoint. Programs begin at
multiples of `BLOCK`, whatever step a run is taken up at, and what a step draws follows from the seed and its number: a run that
was stopped and resumed is the run that was not, to the bit on a CPU.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import jax
import numpy as np

from pinchpoint.core.errors import Diverged
from pinchpoint.systems.common.stopping import Stop
from pinchpoint.systems.vmc.divergence import fault, likely_cause
from pinchpoint.systems.vmc.logs import Log, Row
from pinchpoint.systems.vmc.optimization import trees
from pinchpoint.systems.vmc.optimization.training_step import Carry, Stats
from pinchpoint.systems.vmc.runs import LOG, Run
from pinchpoint.systems.vmc.settings import OptimizerStage, Settings
from pinchpoint.systems.vmc.statistics import blocked

BLOCK = {"cpu": 10, "cuda": 50}  # steps in one program: a launch is small beside them, and a stop is soon
SHOWN = 200  # steps that the energy shown is the mean of
LOST = 3  # steps in a row without a number: one may be a walker that met a nucleus, and changes nothing

Program = Callable[[Carry], tuple[Carry, Stats]]


@dataclass(frozen=True)
class Report:
    """What a watcher is told: how far a stage is, and while training how it stands."""

    stage: Literal["budget", "orbitals", "pretrain", "warm-up", "compile", "train", "evaluate", "stopped"]
    done: int
    total: int
    energy_ha: float | None = None  # mean of the last steps
    error_ha: float | None = None
    variance: float | None = None
    acceptance: float | None = None
    step_s: float | None = None
    eta_s: float | None = None
    note: str = ""


Tell = Callable[[Report], None]


class Loop:
    """A run at some step. programs: from a number of steps and what they are by to what takes so many, compiled by then."""

    def __init__(
        self,
        run: Run,
        carry: Carry,
        *,
        programs: Callable[[int, OptimizerStage], Program],
        block: int,
        every: int,
        before_s: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.run, self.told, self.carry = run, run.told, carry
        self.programs, self.block, self.every, self.clock = programs, block, every, clock
        self.step = int(carry.step)
        self.log = Log(run.folder / LOG, keep_to=self.step)
        self.before_s, self._start = before_s, clock()
        self._unread: tuple[int, Stats] | None = None  # the step before it, and its numbers
        self._recent: deque[Row] = deque(maxlen=SHOWN)
        self._paces: deque[float] = deque(maxlen=20)
        self._read_at: float | None = None
        self._lowest_ha: float | None = None
        self._lost = 0

    def train(self, stop: Stop, tell: Tell) -> None:
        """Steps up to the last, or until asked to stop; a checkpoint at the end of either."""
        steps, saved = self.told.settings.steps, self.step
        while self.step < steps and stop.number is None:
            count, stage = program_at(self.step, self.told.settings, block=self.block)
            self.carry, stats = self.programs(count, stage)(self.carry)
            self._read(tell)  # of the program before, while the device is at this one
            self._unread = self.step, stats
            self.step += count
            if self.step - saved >= self.every or self.step == steps:
                self._read(tell)
                self.save()
                saved = self.step
        self._read(tell)
        if saved < self.step:
            self.save()

    def save(self) -> None:
        """A checkpoint, unless a parameter is no number any more: `Diverged`."""
        arrays = trees.to_arrays(self.carry._replace(key=None))
        bad = [
            name for name, array in arrays.items() if array.dtype.kind == "f" and not np.isfinite(array).all()
        ]
        if bad and self._recent:
            raise self._diverged(self._recent[-1], f"{bad[0]} is not finite")
        self.run.checkpoints.save(self.step, arrays, {**self.told.to_dict(), "seconds": self.elapsed()})

    def elapsed(self) -> float:
        """Seconds of training, those before a resumption too."""
        return self.before_s + self.clock() - self._start

    def step_s(self) -> float | None:
        """Of the last programs; None before there were two."""
        return median(self._paces) if self._paces else None

    def _read(self, tell: Tell) -> None:
        """The numbers of the last program that is done into the log. What is wrong ends the run before a checkpoint is made."""
        if self._unread is None:
            return
        first, stats = self._unread
        self._unread = None
        found = Stats(*(np.atleast_1d(value) for value in jax.device_get(stats)))
        now, count = self.elapsed(), len(found.energy)
        since = now if self._read_at is None else self._read_at
        rows = [
            _row(first + at + 1, found, at, since + (now - since) * (at + 1) / count) for at in range(count)
        ]
        if self._read_at is not None:
            self._paces.append((now - since) / count)
        self._read_at = now
        self.log.add(rows)
        self._check(rows, found.finite)
        self._recent.extend(row for row, good in zip(rows, found.finite, strict=True) if good)
        tell(self._report(rows[-1].step))

    def _check(self, rows: list[Row], finite: Any) -> None:
        for row, good in zip(rows, finite, strict=True):
            self._lost = 0 if good else self._lost + 1
            if self._lost == LOST:
                raise self._diverged(row, "the energy or the change of the parameters is not finite")
        kept = [row for row, good in zip(rows, finite, strict=True) if good]
        wrong = fault(kept, lowest_ha=self._lowest_ha, system=self.told.system)
        if wrong is not None:
            raise self._diverged(next(row for row in kept if row.step == wrong[0]), wrong[1])
        if kept:
            energy = median(row.energy_ha for row in kept)
            self._lowest_ha = energy if self._lowest_ha is None else min(energy, self._lowest_ha)

    def _diverged(self, row: Row, what: str) -> Diverged:
        last = self.run.checkpoints.last()
        good = (
            "no checkpoint was written before it"
            if last is None
            else f"the last good checkpoint is {self._named(last)}"
        )
        before = self._recent[-1] if self._recent else row  # the last that was sound tells more
        cause, hint = likely_cause(before, self.told.settings)
        return Diverged(
            f"{what} at step {row.step:,}; {good}; the likely cause is {cause}",
            hint=f"train again with {hint} and another -o; --from {self.run.folder} begins with that checkpoint",
        )

    def _named(self, step: int) -> str:
        return str(self.run.checkpoints.folder / self.run.checkpoints.name(step))

    def _report(self, step: int) -> Report:
        total, pace = self.told.settings.steps, self.step_s()
        energy, error = summed(self._recent)
        last = self._recent[-1] if self._recent else None
        return Report(
            "train",
            step,
            total,
            energy,
            error,
            variance=median(row.variance for row in self._recent) if last else None,
            acceptance=last.acceptance if last else None,
            step_s=pace,
            eta_s=None if pace is None else pace * (total - step),
        )


def program_at(step: int, settings: Settings, *, block: int) -> tuple[int, OptimizerStage]:
    """How many steps the program at a step takes, and what by: a block where one begins and fits within its stage, else one."""
    end, stage = step + block, settings.stage_at(step)
    whole = step % block == 0 and end <= settings.steps and settings.stage_at(end - 1) == stage
    return block if whole else 1, stage


def programs_from(step: int, settings: Settings, *, block: int) -> list[tuple[int, OptimizerStage]]:
    """All programs that a run still needs from a step on, each once, in the order of their first use."""
    found: dict[tuple[int, OptimizerStage], None] = {}
    while step < settings.steps:
        found[program := program_at(step, settings, block=block)] = None
        step += program[0]
    return list(found)


def heaviest(programs: list[tuple[int, OptimizerStage]]) -> tuple[int, OptimizerStage]:
    """The one that takes most memory: SPRING's holds all that Adam's does, and its matrix."""
    return max(programs, key=lambda program: (program[1] == "spring", program[0]))


def _row(step: int, stats: Stats, at: int, seconds: float) -> Row:
    energy, variance, acceptance, width, norm, clipped, _ = (float(value[at]) for value in stats)
    return Row(step, energy, variance, acceptance, width, norm, clipped, seconds)


def summed(rows: Any) -> tuple[float | None, float | None]:
    """Mean energy of rows and its error bar; None where they are too few."""
    energies = [row.energy_ha for row in rows if np.isfinite(row.energy_ha)]
    if len(energies) < 2:
        return (energies[0] if energies else None), None
    found = blocked(energies)
    return found.mean, found.error
