"""The training loop of every system: steps, validation, checkpoints, log, progress reports and a clean stop.

`run_loop` drives a `Driver`, which starts steps and reads back what they measured; `torch_loop` has the
driver of torch learners. What a step does must follow from the settings, the weights and its number alone: a
checkpoint then holds everything that is needed to resume as if the run had never stopped, bit for bit on a
CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from pinchpoint.core.errors import Diverged
from pinchpoint.core.files import parse_json
from pinchpoint.core.records import Record
from pinchpoint.systems.common.training import logs
from pinchpoint.systems.common.training.runs import RECORD, RunFolder
from pinchpoint.systems.common.training.stopping import Stop, stop_between_steps

LATE = 0.9  # rows after this part of the steps are the last tenth
R = TypeVar("R", bound=logs.Stepped)
Result = TypeVar("Result", bound=Record)

TRAIN, STOPPED, FINISHED = "train", "stopped", "finished"  # the stages that every run reports
NOTE = "note"  # the stage of a report whose note is printed as a line of its own


@dataclass(frozen=True)
class Report:
    """Progress of a run: how far a stage is, and while training the last row."""

    stage: str  # TRAIN, STOPPED, FINISHED, or a name that the system chooses, such as "data"
    done: int
    total: int
    row: Any = None
    loss: float | None = None  # mean of the last steps
    eta_s: float | None = None
    note: str = ""


Progress = Callable[[Report], None]


@dataclass(frozen=True)
class Fault:
    """Why a run cannot continue."""

    step: int
    what: str  # a clause, such as "the loss is not finite"
    cause: str  # the likely cause
    options: str  # options to train again with
    advice: str = ""  # a further clause of the hint


class Driver(Protocol[R]):
    """Starts the steps of a run and reads back what they measured; the loop decides when."""

    @property
    def log(self) -> type[logs.RowLog[R]]: ...

    @property
    def validates(self) -> bool:
        """Whether there is anything to validate with."""
        ...

    @property
    def saves_start(self) -> bool:
        """Whether a new run has a checkpoint before its first step."""
        ...

    def resume(self) -> dict[str, Any] | None:
        """Restore the last checkpoint and return its state; None for a new run."""
        ...

    def start(self, step: int, seconds: float) -> int:
        """Start what follows `step` without waiting for it; returns the number of the last step started."""
        ...

    def read(self, *, wait: bool, score: float | None, elapsed: Callable[[], float]) -> Iterator[list[R]]:
        """Rows of the steps that were started, in batches; of all of them with `wait`.

        score: of the last step.
        """
        ...

    def check(self, rows: list[R]) -> Fault | None:
        """Return what is wrong with new rows, if anything. Sound rows count in reports from now on."""
        ...

    def validate(self) -> float:
        """The validation error: the lower, the better."""
        ...

    def state(self) -> dict[str, Any] | Fault:
        """What a checkpoint holds of the last step started; a fault where it must not be kept."""
        ...

    def report(self, row: R, *, total: int, eta_s: float) -> Report: ...

    def peak_bytes(self) -> int | None: ...


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """A run at the end of its loop."""

    step: int
    validation: float | None  # of the best checkpoint
    best_step: int | None
    peak_bytes: int | None  # as the driver measured it
    seconds: float
    complete: bool
    rows: list[R] = field(default_factory=list, repr=False)  # all rows of the log

    @property
    def late(self) -> list[R]:
        """Rows of the last tenth of the steps."""
        return [row for row in self.rows if row.step > LATE * self.step]


def run_loop(
    run: RunFolder,
    driver: Driver[R],
    *,
    checkpoint_every: int,
    eval_every: int,
    record: Callable[[Outcome[R]], Result],
    tell: Progress,
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    """Train up to the last step and write record.json, which is what `record` returns for the end of the run.

    A run that was already at its last step keeps its record, whose time and peak are those of the training.
    Ctrl-C and SIGTERM write a checkpoint and the record after the step in progress and are then raised.
    """
    with stop_between_steps() as stop:
        loop = _Loop(run, driver, checkpoint_every=checkpoint_every, eval_every=eval_every, clock=clock)
        loop.train(stop, tell)
        outcome = loop.outcome()
        result = record(outcome)
        stored = None if loop.trains else _finished_record(run, type(result), outcome.step)
        if stored is None:
            result.save(run.folder / RECORD)
        else:
            result = stored
            tell(Report(FINISHED, outcome.step, run.steps))
        if stop.number is not None and not outcome.complete:
            tell(Report(STOPPED, outcome.step, run.steps))
        stop.leave()
    return result


def _finished_record(run: RunFolder, kind: type[Result], step: int) -> Result | None:
    """Return the record of the run if it was written when the run finished at `step`."""
    try:
        data = parse_json((run.folder / RECORD).read_text(encoding="utf-8"))
        if (data["kind"], data["complete"], data["step"]) == (kind.kind, True, step):
            return kind.from_dict(data)
    except (OSError, ValueError, TypeError, KeyError):
        pass  # missing or damaged: written again
    return None


@contextmanager
def keep_run_on_stop(run: RunFolder, tell: Progress) -> Iterator[None]:
    """Within the block, a stop leaves a run that can be resumed; an error leaves no new run."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if not run.exists():
            run.write()
        tell(Report(STOPPED, run.checkpoints.last_step(), run.steps))
        raise


class _Loop(Generic[R]):
    """A run at some step: starts steps, reads their rows, writes the log and checkpoints."""

    def __init__(
        self,
        run: RunFolder,
        driver: Driver[R],
        *,
        checkpoint_every: int,
        eval_every: int,
        clock: Callable[[], float],
    ) -> None:
        self.run, self.driver, self.clock = run, driver, clock
        self.checkpoint_every, self.eval_every = checkpoint_every, eval_every
        self.step, self.before_s = 0, 0.0
        self.best: float | None = None
        self.best_step: int | None = None
        state = driver.resume()
        if state is not None:
            self.step, self.before_s, self.best, self.best_step = (
                state[key] for key in ("step", "seconds", "best", "best_step")
            )
        self.is_new = state is None
        self.trains = self.step < run.steps  # False for a run that was already finished
        run.write()
        self.log = driver.log(run.log_path, keep_to=self.step)
        self._first, self._start = self.step, clock()

    def train(self, stop: Stop, tell: Progress) -> None:
        """Take steps up to the last, or until asked to stop; either ends with a checkpoint."""
        steps, saved = self.run.steps, self.step
        if self.is_new and self.driver.saves_start:
            self._save(None)
        while self.step < steps and stop.number is None:
            before, self.step = self.step, self.driver.start(self.step, self.elapsed())
            look = self.driver.validates and self._is_due(self.eval_every, before)
            due = self._is_due(self.checkpoint_every, before)
            score = self.driver.validate() if look else None
            batches = self._read(score, wait=look or due)
            better = score is not None and (self.best is None or score < self.best)
            if better:
                self.best, self.best_step = score, self.step
            if better or due:
                self._save(score)
                saved = self.step
            self._tell(batches, tell)
        batches = self._read(None, wait=True)
        if saved < self.step:
            self._save(None)
        self._tell(batches, tell)

    def outcome(self) -> Outcome[R]:
        return Outcome(
            self.step,
            self.best,
            self.best_step,
            self.driver.peak_bytes(),
            self.elapsed(),
            self.step >= self.run.steps,
            self.driver.log.read(self.log.path),
        )

    def elapsed(self) -> float:
        """Seconds of training, including those before the run was resumed."""
        return self.before_s + self.clock() - self._start

    def _is_due(self, every: int, before: int) -> bool:
        """Whether a multiple of `every` lies in the steps after `before`, or the run is at its end."""
        return self.step // every > before // every or self.step >= self.run.steps

    def _read(self, score: float | None, *, wait: bool) -> list[list[R]]:
        """New rows in the log. A fault ends the run before a checkpoint is written."""
        batches = []
        for rows in self.driver.read(wait=wait, score=score, elapsed=self.elapsed):
            self.log.add(rows)
            fault = self.driver.check(rows)
            if fault is not None:
                raise self._diverged(fault)
            batches.append(rows)
        return batches

    def _save(self, score: float | None) -> None:
        state = self.driver.state()
        if isinstance(state, Fault):
            raise self._diverged(state)
        state = {
            **state,
            "settings": self.run.to_dict(),
            "step": self.step,
            "seconds": self.elapsed(),
            "best": self.best,
            "best_step": self.best_step,
        }
        self.run.checkpoints.save(state, step=self.step, score=score)

    def _diverged(self, fault: Fault) -> Diverged:
        """Return the error of a fault, which names the last good checkpoint."""
        last = self.run.checkpoints.last()
        good = (
            "No checkpoint was written before it."
            if last is None
            else f"The last good checkpoint is {last.file}."
        )
        return Diverged(
            f"{fault.what[0].upper()}{fault.what[1:]} at step {fault.step:,}. {good} "
            f"The likely cause is {fault.cause}.",
            hint=f"Train again with {fault.options} and another -o{'; ' * bool(fault.advice)}{fault.advice}.",
        )

    def _tell(self, batches: list[list[R]], tell: Progress) -> None:
        for rows in batches:
            step, total = rows[-1].step, self.run.steps
            each = (self.clock() - self._start) / (step - self._first)
            tell(self.driver.report(rows[-1], total=total, eta_s=each * (total - step)))
