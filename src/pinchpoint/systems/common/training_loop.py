"""The training loop of every system: steps, looks at what is held back, checkpoints, log, and a clean stop.

What a step does must follow from the settings, the weights and its number. A checkpoint then holds
weights, optimizer, averaged weights, random state and the step, and nothing else is needed to go on as
if never stopped, to the bit on a CPU.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from pinchpoint.core.errors import Diverged
from pinchpoint.core.records import Record
from pinchpoint.systems.common import logs
from pinchpoint.systems.common.precision import matmuls, peak_bytes
from pinchpoint.systems.common.runs import Run
from pinchpoint.systems.common.stopping import Stop, stop_between_steps

READ_EVERY = 10  # steps between two readings of the losses on CUDA: each waits for the device
SMOOTHED = 20  # steps the loss that is shown is the mean of
Made = TypeVar("Made", bound=Record)


@dataclass(frozen=True)
class Report:
    """What a watcher is told: how far a stage is, and while training its last row."""

    stage: Literal["files", "data", "skipped", "graphs", "budget", "train", "stopped"]
    done: int
    total: int
    row: logs.Row | None = None
    loss: float | None = None  # mean of the last steps
    eta_s: float | None = None
    note: str = ""


Progress = Callable[[Report], None]


class Learner(Protocol):
    """What is trained. `validate` is asked only where something is held back."""

    holds_back: bool

    def step(self, number: int) -> Tensor:
        """Step 1, 2, ...: (2,) on the device, the loss and the norm of the gradient."""
        ...

    def validate(self) -> float:
        """The error on what is held back: the lower, the better."""
        ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Ended:
    """Where a run stands when its loop ends."""

    step: int
    loss: float | None  # mean of the last tenth of the steps
    validation: float | None  # at the best checkpoint
    best_step: int | None
    peak_bytes: int
    seconds: float
    complete: bool


def take_steps(
    run: Run[Any],
    learner: Learner,
    *,
    device: str,
    record: Callable[[Ended], Made],
    tell: Progress,
    clock: Callable[[], float] = time.perf_counter,
    log: type[logs.Log] = logs.Log,
    completed: Callable[[logs.Row], logs.Row] = lambda row: row,
) -> Made:
    """Train up to the last step; record.json is what `record` makes of the end.

    log: for a system whose rows have more columns, which `completed` adds to each.
    Ctrl-C and SIGTERM write a checkpoint and the record after the step at hand and are then raised.
    """
    with matmuls(run.settings.precision), stop_between_steps() as stop:
        loop = _Loop(run, learner, device=device, clock=clock, log=log, completed=completed)
        loop.train(stop, tell)
        ended = loop.ended()
        made = record(ended)
        made.save(run.folder / "record.json")
        if stop.number is not None and not ended.complete:
            tell(Report("stopped", ended.step, run.settings.steps))
        stop.leave()
    return made


@contextmanager
def preparing(run: Run[Any], tell: Progress) -> Iterator[None]:
    """Within, a stop leaves a run that can be resumed, at its first step or where it was. An error leaves no new one."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if not (run.folder / "config.json").exists():
            run.write()
        last = run.checkpoints.last()
        tell(Report("stopped", 0 if last is None else last.step, run.settings.steps))
        raise


class _Loop:
    """A run at some step: takes steps, reads losses, writes the log and checkpoints."""

    def __init__(
        self,
        run: Run[Any],
        learner: Learner,
        *,
        device: str,
        clock: Callable[[], float],
        log: type[logs.Log],
        completed: Callable[[logs.Row], logs.Row],
    ) -> None:
        self.run, self.told, self.learner = run, run.settings, learner
        self.device, self.clock, self.completed = device, clock, completed
        self.step, self.before_s = 0, 0.0
        self.best: float | None = None
        self.best_step: int | None = None
        state = run.resumed_state()
        if state is not None:
            self._restore(state)
        run.write()
        self.log = log(run.folder / "log.csv", keep_to=self.step)
        self._first, self._start = self.step, clock()
        self._unread: list[tuple[int, float, Tensor]] = []
        self._recent: deque[float] = deque(maxlen=SMOOTHED)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def train(self, stop: Stop, tell: Progress) -> None:
        """Steps up to the last, or until asked to stop; a checkpoint at the end of either."""
        told, saved = self.told, self.step
        while self.step < told.steps and stop.number is None:
            self.step += 1
            self._unread.append((self.step, self.elapsed(), self.learner.step(self.step)))
            look = self.learner.holds_back and (self.step % told.eval_steps() == 0 or self.step == told.steps)
            due = self.step % told.checkpoint_steps() == 0 or self.step == told.steps
            if look or due or self.device != "cuda" or self.step % READ_EVERY == 0:
                score = self.learner.validate() if look else None
                row = self._read(score)
                better = score is not None and (self.best is None or score < self.best)
                if better:
                    self.best, self.best_step = score, self.step
                if better or due:
                    self._save(score)
                    saved = self.step
                tell(self._report(row))
        if self._unread:
            self._read(None)
        if saved < self.step:
            self._save(None)

    def ended(self) -> Ended:
        tenth = [row.loss for row in logs.read(self.log.path) if row.step > 0.9 * self.step]
        return Ended(
            self.step,
            sum(tenth) / len(tenth) if tenth else None,
            self.best,
            self.best_step,
            peak_bytes(self.device),
            self.elapsed(),
            self.step >= self.told.steps,
        )

    def elapsed(self) -> float:
        """Seconds of training, those before a resumption too."""
        return self.before_s + self.clock() - self._start

    def _read(self, score: float | None) -> logs.Row:
        """Losses from the device into the log. One that is no number ends the run before a checkpoint is written."""
        values = torch.stack([found for _, _, found in self._unread]).tolist()
        memory = peak_bytes(self.device)
        rows = [
            self.completed(
                logs.Row(
                    step, loss, self.told.rate(step), seconds, memory, score if step == self.step else None
                )
            )
            for (step, seconds, _), (loss, _) in zip(self._unread, values, strict=True)
        ]
        self._unread.clear()
        self.log.add(rows)
        for row, (loss, norm) in zip(rows, values, strict=True):
            if not math.isfinite(loss) or not math.isfinite(norm):
                raise self._diverged(row.step, "gradient is" if math.isfinite(loss) else "loss is")
        if score is not None and not math.isfinite(score):
            raise self._diverged(self.step, "error on what is held back is")
        self._recent.extend(row.loss for row in rows)
        return rows[-1]

    def _save(self, score: float | None) -> None:
        """A checkpoint, unless the step whose loss was still a number has made weights that are none."""
        state = {
            **self.learner.state(),
            "settings": self.told.to_dict(),
            "step": self.step,
            "seconds": self.elapsed(),
            "best": self.best,
            "best_step": self.best_step,
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state() if self.device == "cuda" else None,
        }
        if not _finite(state):
            raise self._diverged(self.step, "weights are")
        self.run.checkpoints.save(state, step=self.step, score=score)

    def _diverged(self, step: int, what: str) -> Diverged:
        last = self.run.checkpoints.last()
        good = (
            "no checkpoint was written before it"
            if last is None
            else f"the last good checkpoint is {last.file}"
        )
        cause = f"a learning rate that is too high ({self.told.rate(step):.3g} at that step)"
        hint = f"--lr {self.told.lr / 4:.2g}"
        if self.told.precision == "bf16":
            cause, hint = cause + ", or bf16 being too coarse", hint + " or --precision fp32"
        return Diverged(
            f"the {what} not finite at step {step:,}; {good}; the likely cause is {cause}",
            hint=f"train again with {hint} and another -o",
        )

    def _restore(self, state: dict[str, Any]) -> None:
        self.learner.restore(state)
        torch.set_rng_state(state["rng"])
        if self.device == "cuda" and state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"])
        self.step, self.before_s, self.best, self.best_step = (
            state[key] for key in ("step", "seconds", "best", "best_step")
        )

    def _report(self, row: logs.Row) -> Report:
        each = (self.clock() - self._start) / (self.step - self._first)
        left = each * (self.told.steps - self.step)
        return Report("train", self.step, self.told.steps, row, sum(self._recent) / len(self._recent), left)


def _finite(value: Any) -> bool:
    """Whether every number of a state is one."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return all(_finite(part) for part in value.values())
    return all(_finite(part) for part in value) if isinstance(value, list | tuple) else True
