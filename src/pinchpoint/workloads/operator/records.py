"""What training and evaluating an operator leave behind: records that survive JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pinchpoint.core import machine as _machine
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_bytes, show_seconds


@dataclass(frozen=True)
class Training(Record):
    """A training run: record.json of its folder."""

    kind: ClassVar[str] = "operator-training"
    target: str  # the folder of the run
    data: str  # the folder of the data set
    settings: dict[str, Any]
    step: int
    loss: float | None  # mean of the last tenth of the steps, targets normalised
    validation: float | None  # median relative L1 of the bodies held back, at the best checkpoint
    best_step: int | None
    parameters: int
    bodies: int  # trained on
    points: int  # of the largest body
    edges: int  # of the largest body, encoder and decoder together
    device: str
    chunk: int | None
    peak_bytes: int  # peak allocated on CUDA, peak resident on CPU
    seconds: float
    complete: bool
    predicted_bytes: int | None = None  # by --budget
    budget_bytes: int | None = None
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        rows = [
            ("run", self.target),
            ("steps", f"{self.step:,} of {self.settings['steps']:,}"),
            ("bodies", f"{self.bodies:,}; the largest has {self.points:,} points and {self.edges:,} edges"),
            ("parameters", f"{self.parameters:,}"),
        ]
        if self.loss is not None:
            rows.append(("loss", f"{self.loss:.4f} (mean of the last tenth; targets normalised)"))
        if self.validation is not None:
            rows.append(("held back", f"{self.validation:.2%} median relative L1 at step {self.best_step:,}, the best"))
        what = "allocated" if self.device == "cuda" else "resident"
        rows.append(("peak", f"{show_bytes(self.peak_bytes)} {what}"))
        if self.budget_bytes is not None:
            rows.append(("budget", f"{show_bytes(self.budget_bytes)}; {show_bytes(self.predicted_bytes)} predicted"))
        if self.chunk is not None:
            rows.append(("chunk", f"{self.chunk:,} edges at one time"))
        rows.append(("time", f"{show_seconds(self.seconds)} on {self.device}"))
        return rows


@dataclass(frozen=True)
class Evaluation(Record):
    """Errors of a run on the bodies of one split: evaluation.json of its folder."""

    kind: ClassVar[str] = "operator-evaluation"
    target: str  # the folder of the run
    data: str
    split: str
    step: int  # of the checkpoint
    bodies: tuple[dict[str, Any], ...]  # {"name", "points", "l1", "l2", "mean_l1", "mean_l2"}
    l1: dict[str, float]  # {"median", "low", "high"}: relative L1 over the bodies, 95 % interval of the median
    l2: dict[str, float]
    mean_l1: dict[str, float]  # the same of predicting the training bodies' mean everywhere
    mean_l2: dict[str, float]
    factor: float  # median relative L1 of the mean over the model's
    seconds: float
    definition: str
    files: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        def shown(of: dict[str, float]) -> str:
            return f"{of['median']:.2%} [{of['low']:.2%}, {of['high']:.2%}]"

        return [
            ("run", f"{self.target}, step {self.step:,}"),
            ("bodies", f"{len(self.bodies):,} of {self.data}, {self.split}"),
            ("relative L1", f"{shown(self.l1)}   mean field {shown(self.mean_l1)}"),
            ("relative L2", f"{shown(self.l2)}   mean field {shown(self.mean_l2)}"),
            ("better than the mean", f"{self.factor:.2f} times, in relative L1"),
        ]
