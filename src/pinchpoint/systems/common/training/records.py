"""The record of a training run: the part that all systems share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pinchpoint.core import machine as _machine
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_bytes, show_seconds


@dataclass(frozen=True, kw_only=True)
class TrainingRecord(Record):
    """record.json of a run. A system adds what it trained on, and names its loss and error."""

    target: str  # the folder of the run
    data: str  # the folder of the data set
    settings: dict[str, Any]
    step: int
    loss: float | None  # mean of the last tenth of the steps
    validation: float | None  # error on the samples held back, at the best checkpoint
    best_step: int | None
    parameters: int
    device: str
    chunk: int | None  # points processed together
    peak_bytes: int  # peak allocated on CUDA, peak resident on CPU
    seconds: float
    complete: bool
    predicted_bytes: int | None = None  # by --budget
    budget_bytes: int | None = None
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def rows(
        self, trained_on: tuple[str, str], *, loss: str, error: str, points: str
    ) -> list[tuple[str, str]]:
        """The summary. loss: the text after its number; error: the name of the validation error; points: what
        a chunk holds.
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
        rows.append(
            ("peak", f"{show_bytes(self.peak_bytes)} {'allocated' if self.device == 'cuda' else 'resident'}")
        )
        if self.budget_bytes is not None:
            rows.append(
                ("budget", f"{show_bytes(self.budget_bytes)}; {show_bytes(self.predicted_bytes)} predicted")
            )
        if self.chunk is not None:
            rows.append(("chunk", f"{self.chunk:,} {points} per chunk"))
        return [*rows, ("time", f"{show_seconds(self.seconds)} on {self.device}")]
