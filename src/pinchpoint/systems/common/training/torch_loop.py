"""The training loop of torch learners: losses are read in batches, and checkpoints hold the random state."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from pinchpoint.core.host_memory import peak_resident_bytes
from pinchpoint.core.records import Record
from pinchpoint.systems.common.settings import flag
from pinchpoint.systems.common.training import logs
from pinchpoint.systems.common.training.precision import matmuls
from pinchpoint.systems.common.training.runs import Run
from pinchpoint.systems.common.training.training_loop import TRAIN, Fault, Outcome, Progress, Report, run_loop

READ_EVERY = 10  # steps between two readings of the losses on CUDA: each waits for the device
SMOOTHED = 20  # steps that the loss in a report is the mean of
Result = TypeVar("Result", bound=Record)


class Learner(Protocol):
    """A torch model in training. `validate` is called only where something is held back."""

    validates: bool

    def step(self, number: int) -> Tensor:
        """Step 1, 2, ...: (2,) on the device, the loss and the norm of the gradient."""
        ...

    def validate(self) -> float:
        """The validation error: the lower, the better."""
        ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


def take_steps(
    run: Run[Any],
    learner: Learner,
    *,
    device: str,
    record: Callable[[Outcome[logs.Row]], Result],
    tell: Progress,
    clock: Callable[[], float] = time.perf_counter,
    log: type[logs.Log] = logs.Log,
    complete_row: Callable[[logs.Row], logs.Row] = lambda row: row,
) -> Result:
    """Train a torch learner up to the last step; record.json is what `record` returns for the end of the run.

    log: for a system whose rows have more columns, which `complete_row` adds to each.
    Ctrl-C and SIGTERM write a checkpoint and the record after the step in progress and are then raised.
    """
    settings = run.settings
    with matmuls(settings.precision):
        return run_loop(
            run,
            _TorchDriver(run, learner, device=device, log=log, complete_row=complete_row),
            checkpoint_every=settings.checkpoint_steps(),
            eval_every=settings.eval_steps(),
            record=record,
            tell=tell,
            clock=clock,
        )


class _TorchDriver:
    """Takes one step at a time.

    On CUDA losses are read every few steps, since a reading waits for the device.
    """

    saves_start = False

    def __init__(
        self,
        run: Run[Any],
        learner: Learner,
        *,
        device: str,
        log: type[logs.Log],
        complete_row: Callable[[logs.Row], logs.Row],
    ) -> None:
        self.run, self.settings, self.learner, self.device = run, run.settings, learner, device
        self.log, self.complete_row = log, complete_row
        self.validates = learner.validates
        self.step = 0
        self._unread: list[tuple[int, float, Tensor]] = []
        self._norms: list[float] = []  # of the gradients of the rows read last
        self._recent: deque[float] = deque(maxlen=SMOOTHED)

    def resume(self) -> dict[str, Any] | None:
        state = self.run.resumed_state()
        if state is not None:
            self.learner.restore(state)
            torch.set_rng_state(state["rng"])
            if self.device == "cuda" and state["cuda_rng"] is not None:
                torch.cuda.set_rng_state(state["cuda_rng"])
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        return state

    def start(self, step: int, seconds: float) -> int:
        self.step = step + 1
        self._unread.append((self.step, seconds, self.learner.step(self.step)))
        return self.step

    def read(
        self, *, wait: bool, score: float | None, elapsed: Callable[[], float]
    ) -> Iterator[list[logs.Row]]:
        if not self._unread or not (wait or self.device != "cuda" or self.step % READ_EVERY == 0):
            return
        values = torch.stack([measured for _, _, measured in self._unread]).tolist()
        memory = peak_bytes(self.device)
        rows = [
            self.complete_row(
                logs.Row(
                    step,
                    loss,
                    self.settings.rate(step),
                    seconds,
                    memory,
                    score if step == self.step else None,
                )
            )
            for (step, seconds, _), (loss, _) in zip(self._unread, values, strict=True)
        ]
        self._unread.clear()
        self._norms = [norm for _, norm in values]
        yield rows

    def check(self, rows: list[logs.Row]) -> Fault | None:
        for row, norm in zip(rows, self._norms, strict=True):
            if not math.isfinite(row.loss):
                return self._fault(row.step, "the loss is not finite")
            if not math.isfinite(norm):
                return self._fault(row.step, "the gradient is not finite")
        score = rows[-1].validation
        if score is not None and not math.isfinite(score):
            return self._fault(self.step, "the validation error is not finite")
        self._recent.extend(row.loss for row in rows)
        return None

    def validate(self) -> float:
        return self.learner.validate()

    def state(self) -> dict[str, Any] | Fault:
        """The learner's state and the random state; a fault where a step with a finite loss spoilt the
        weights.
        """
        state = {
            **self.learner.state(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state() if self.device == "cuda" else None,
        }
        return state if _is_finite(state) else self._fault(self.step, "the weights are not finite")

    def report(self, row: logs.Row, *, total: int, eta_s: float) -> Report:
        return Report(TRAIN, row.step, total, row, sum(self._recent) / len(self._recent), eta_s)

    def peak_bytes(self) -> int:
        return peak_bytes(self.device)

    def _fault(self, step: int, what: str) -> Fault:
        cause = f"a learning rate that is too high ({self.settings.rate(step):.3g} at that step)"
        options = flag(self.settings, "lr", f"{self.settings.lr / 4:.2g}")
        if self.settings.precision == "bf16":
            cause, options = cause + ", or bf16 being too coarse", options + " or --precision fp32"
        return Fault(step, what, cause, options)


def peak_bytes(device: str) -> int:
    """Return the peak allocated bytes on CUDA; on a CPU the peak resident bytes of this process."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else peak_resident_bytes()


def peak_reserved_bytes(device: str) -> int | None:
    """Return the peak bytes that the caching allocator reserved on CUDA; None on a CPU.

    Memory in which recorded steps compute is reserved and mostly not allocated.
    """
    return torch.cuda.max_memory_reserved() if device == "cuda" else None


def _is_finite(value: Any) -> bool:
    """Whether every number of a state is finite."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return all(_is_finite(part) for part in value.values())
    return all(_is_finite(part) for part in value) if isinstance(value, list | tuple) else True
