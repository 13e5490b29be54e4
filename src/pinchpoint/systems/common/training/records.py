"""The record of a training run: the part that all torch systems share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pinchpoint.core import machine as _machine
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.systems.common.training.logs import Row
from pinchpoint.systems.common.training.runs import Run
from pinchpoint.systems.common.training.training_loop import Outcome


@dataclass(frozen=True, kw_only=True)
class TrainingRecord(Record):
    """The record of a run. A system adds what it trained on, and names its loss and its error."""

    target: str  # the folder of the run
    data: str  # the folder of the dataset
    settings: dict[str, Any]
    step: int
    loss: float | None  # mean of the last tenth of the steps
    validation: float | None  # validation error of the best checkpoint
    best_step: int | None
    parameters: int
    device: str
    chunk: int | None  # points processed together
    peak_bytes: int  # peak allocated on CUDA, peak resident on CPU
    seconds: float
    complete: bool
    predicted_bytes: int | None = None  # with --budget
    budget_bytes: int | None = None
    peak_reserved_bytes: int | None = None  # by the caching allocator on CUDA, where it is recorded
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def rows(
        self, trained_on: tuple[str, str], *, loss: str, error: str, points: str
    ) -> list[tuple[str, str]]:
        """Return the rows of the summary.

        loss: the text after its number; error: the name of the validation error; points: what a chunk holds.
        """
        rows = [
            ("run", self.target),
            ("steps", f"{self.step:,} of {self.settings['steps']:,}"),
            trained_on,
            ("parameters", f"{self.parameters:,}"),
        ]
        if self.loss is not None:
            rows.append(("loss", f"{self.loss:.4f} {loss}"))
        if self.validation is not None:
            rows.append(("held back", f"{self.validation:.2%} {error} at step {self.best_step:,}, the best"))
        peak = f"{show_bytes(self.peak_bytes)} {'allocated' if self.device == 'cuda' else 'resident'}"
        if self.peak_reserved_bytes is not None:
            peak += f", {show_bytes(self.peak_reserved_bytes)} reserved"
        rows.append(("peak", peak))
        if self.budget_bytes is not None:
            rows.append(
                ("budget", f"{show_bytes(self.budget_bytes)}; {show_bytes(self.predicted_bytes)} predicted")
            )
        if self.chunk is not None:
            rows.append(("chunk", f"{self.chunk:,} {points} per chunk"))
        return [*rows, ("time", f"{show_seconds(self.seconds)} on {self.device}")]


class Prediction(Protocol):
    """What was predicted for a budget."""

    @property
    def predicted_bytes(self) -> int: ...

    @property
    def budget_bytes(self) -> int: ...


def shared_fields(
    run: Run[Any],
    outcome: Outcome[Row],
    *,
    data: Path,
    device: str,
    chunk: int | None,
    prediction: Prediction | None,
) -> dict[str, Any]:
    """Return the fields of a `TrainingRecord` that every system fills in the same way."""
    return {
        "target": str(run.folder),
        "data": str(data),
        "settings": run.settings.to_dict(),
        "step": outcome.step,
        "loss": mean_loss(outcome.late),
        "validation": outcome.validation,
        "best_step": outcome.best_step,
        "device": device,
        "chunk": chunk,
        "peak_bytes": outcome.peak_bytes,
        "seconds": outcome.seconds,
        "complete": outcome.complete,
        "predicted_bytes": None if prediction is None else prediction.predicted_bytes,
        "budget_bytes": None if prediction is None else prediction.budget_bytes,
    }


def mean_loss(rows: Sequence[Row]) -> float | None:
    """Return the mean loss of some steps; None without any."""
    return sum(row.loss for row in rows) / len(rows) if rows else None
