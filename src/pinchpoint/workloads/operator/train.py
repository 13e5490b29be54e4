"""Train an operator: AdamW, warm-up and cosine, one body a turn, resumable to the bit on a CPU.

What a step does follows from the settings, the weights and its number: the order of the bodies and
the learning rate are functions of the step, so a checkpoint holds weights, optimizer, averaged
weights, random state and the step, and nothing else is needed to go on as if never stopped.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.files import check_folder
from pinchpoint.workloads.operator import logs
from pinchpoint.workloads.operator.budget import Chosen, chunk_for
from pinchpoint.workloads.operator.dataset import open_dataset
from pinchpoint.workloads.operator.metrics import middle_of, relative_errors
from pinchpoint.workloads.operator.precision import check_precision, matmuls, peak_bytes
from pinchpoint.workloads.operator.records import Training
from pinchpoint.workloads.operator.runs import Run, begin
from pinchpoint.workloads.operator.stepper import Stepper
from pinchpoint.workloads.operator.stopping import Stop, stop_between_steps
from pinchpoint.workloads.operator.supply import Supply, at_turn

READ_EVERY = 10  # steps between two readings of the losses on CUDA: each waits for the device
SMOOTHED = 20  # steps the loss that is shown is the mean of


class Diverged(PinchpointError):
    """The loss is no number any more."""

    exit_code = 1


@dataclass(frozen=True)
class Report:
    """What a watcher is told: how far a stage is, and while training its last row."""

    stage: Literal["graphs", "budget", "train", "stopped"]
    done: int
    total: int
    row: logs.Row | None = None
    loss: float | None = None  # mean of the last steps
    eta_s: float | None = None
    note: str = ""


Progress = Callable[[Report], None]


def train(
    data: str | Path, output: str | Path, *, resume: bool = False, budget: str | int | None = None,
    progress: Progress | None = None, clock: Callable[[], float] = time.perf_counter, **choices: Any,
) -> Training:  # fmt: skip
    """Train on the data set in `data`; the run lies in `output`. choices: fields of `Settings`.

    budget: bytes, "8GiB" or a card's name; the largest chunk predicted to stay within it is taken.
    Ctrl-C and SIGTERM write a checkpoint after the step at hand and are then raised.
    """
    tell = progress or (lambda report: None)
    dataset = open_dataset(Path(data))
    run = begin(Path(output), dataset, resume=resume, choices=choices)
    device = resolve_device(run.settings.device, backend("torch"))
    check_precision(run.settings.precision, device)
    names, held = run.train_names(dataset), run.held_names(dataset)
    check_folder(run.folder)
    bodies = Supply(dataset, run.config, graphs=run.folder / "graphs")
    largest = _largest(bodies, [*names, *held], tell)
    chosen: Chosen | None = None
    if budget is not None:
        chosen = chunk_for(
            run.config, run.settings, bodies.get(largest)[1], budget=budget, device=device, mode="train",
            progress=lambda text: tell(Report("budget", 0, 0, note=text)),
        )  # fmt: skip
        run = replace(run, settings=replace(run.settings, chunk=chosen.chunk))
    with matmuls(run.settings.precision), stop_between_steps() as stop:
        trainer = _Trainer(run, bodies, names, held, device=device, clock=clock)
        trainer.train(stop, tell)
        sample, graph = bodies.get(largest)
        made = trainer.record(str(data), points=len(sample.points), edges=graph.edges, chosen=chosen)
        made.save(run.folder / "record.json")
        if stop.number is not None and not made.complete:
            tell(Report("stopped", made.step, run.settings.steps))
        stop.leave()
    return made


def _largest(bodies: Supply, names: list[str], tell: Progress) -> str:
    """Make every graph once; the body with the most edges."""
    edges = {}
    for number, name in enumerate(names):
        edges[name] = bodies.get(name)[1].edges
        tell(Report("graphs", number + 1, len(names)))
    return max(edges, key=lambda name: edges[name])


class _Trainer:
    """A run at some step: takes steps, reads losses, writes the log and checkpoints."""

    def __init__(
        self, run: Run, bodies: Supply, names: list[str], held: list[str], *, device: str, clock: Callable[[], float]
    ) -> None:
        self.run, self.told, self.bodies, self.names, self.held = run, run.settings, bodies, names, held
        self.device, self.clock = device, clock
        self.stepper = Stepper(run.config, run.settings, device)
        self.step, self.before_s = 0, 0.0
        self.best: float | None = None
        self.best_step: int | None = None
        state = run.resumed_state()
        if state is not None:
            self._restore(state)
        run.write()
        self.log = logs.Log(run.folder / "log.csv", keep_to=self.step)
        self._first, self._start = self.step, clock()
        self._unread: list[tuple[int, float, Tensor]] = []
        self._recent: deque[float] = deque(maxlen=SMOOTHED)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def train(self, stop: Stop, tell: Progress) -> None:
        """Steps up to the last, or until asked to stop; a checkpoint at the end of either."""
        told, saved = self.told, self.step
        while self.step < told.steps and stop.number is None:
            self._one_step()
            look = bool(self.held) and (self.step % told.eval_steps() == 0 or self.step == told.steps)
            due = self.step % told.checkpoint_steps() == 0 or self.step == told.steps
            if look or due or self.device != "cuda" or self.step % READ_EVERY == 0:
                score = self._validate() if look else None
                row = self._read(score)
                better = score is not None and (self.best is None or score < self.best)
                if better:
                    self.best, self.best_step = score, self.step
                if better or due:
                    self.run.checkpoints.save(self._state(), step=self.step, score=score)
                    saved = self.step
                tell(self._report(row))
        if self._unread:
            self._read(None)
        if saved < self.step:
            self.run.checkpoints.save(self._state(), step=self.step)

    def _one_step(self) -> None:
        turns = range(self.step * self.told.accumulate, (self.step + 1) * self.told.accumulate)
        taken = (self.bodies.get(at_turn(self.names, seed=self.told.seed, turn=turn)) for turn in turns)
        self.step += 1
        self._unread.append((self.step, self.elapsed(), self.stepper.step(taken, number=self.step)))

    def _validate(self) -> float:
        """Median relative L1 of the bodies held back."""
        found = []
        for name in self.held:
            sample, graph = self.bodies.get(name)
            found.append(relative_errors(self.stepper.predict(sample, graph).cpu(), sample.target, sample.areas).l1)
        return middle_of(found).median

    def _read(self, score: float | None) -> logs.Row:
        """Losses from the device into the log. One that is no number ends the run before a checkpoint is written."""
        values = torch.stack([found for _, _, found in self._unread]).tolist()
        memory = peak_bytes(self.device)
        rows = [
            logs.Row(step, loss, self.told.rate(step), seconds, memory, score if step == self.step else None)
            for (step, seconds, _), (loss, _) in zip(self._unread, values, strict=True)
        ]
        self._unread.clear()
        self.log.add(rows)
        for row, (loss, norm) in zip(rows, values, strict=True):
            if not math.isfinite(loss) or not math.isfinite(norm):
                raise self._diverged(row, "gradient" if math.isfinite(loss) else "loss")
        self._recent.extend(row.loss for row in rows)
        return rows[-1]

    def _diverged(self, row: logs.Row, what: str) -> Diverged:
        last = self.run.checkpoints.last()
        good = "no checkpoint was written before it" if last is None else f"the last good checkpoint is {last.file}"
        cause, mend = f"a learning rate that is too high ({row.lr:.3g} at that step)", f"--lr {self.told.lr / 4:.2g}"
        if self.told.precision == "bf16":
            cause, mend = cause + ", or bf16 being too coarse", mend + " or --precision fp32"
        return Diverged(
            f"the {what} is not finite at step {row.step:,}; {good}; the likely cause is {cause}",
            mend=f"train again with {mend} and another -o",
        )

    def _state(self) -> dict[str, Any]:
        return {
            **self.stepper.state(), "settings": self.told.to_dict(), "step": self.step, "seconds": self.elapsed(),
            "best": self.best, "best_step": self.best_step, "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state() if self.device == "cuda" else None,
        }  # fmt: skip

    def _restore(self, state: dict[str, Any]) -> None:
        self.stepper.restore(state)
        torch.set_rng_state(state["rng"])
        if self.device == "cuda" and state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"])
        self.step, self.before_s, self.best, self.best_step = (state[key] for key in ("step", "seconds", "best", "best_step"))

    def elapsed(self) -> float:
        """Seconds of training, those before a resumption too."""
        return self.before_s + self.clock() - self._start

    def _report(self, row: logs.Row) -> Report:
        each = (self.clock() - self._start) / (self.step - self._first)
        left = each * (self.told.steps - self.step)
        return Report("train", self.step, self.told.steps, row, sum(self._recent) / len(self._recent), left)

    def record(self, data: str, *, points: int, edges: int, chosen: Chosen | None) -> Training:
        tenth = [row.loss for row in logs.read(self.log.path) if row.step > 0.9 * self.step]
        return Training(
            target=str(self.run.folder), data=data, settings=self.told.to_dict(), step=self.step,
            loss=sum(tenth) / len(tenth) if tenth else None, validation=self.best, best_step=self.best_step,
            parameters=sum(p.numel() for p in self.stepper.model.parameters()), bodies=len(self.names), points=points,
            edges=edges, device=self.device, chunk=self.told.chunk, peak_bytes=peak_bytes(self.device),
            seconds=self.elapsed(), complete=self.step >= self.told.steps,
            predicted_bytes=chosen.predicted_bytes if chosen else None, budget_bytes=chosen.budget_bytes if chosen else None,
        )  # fmt: skip
