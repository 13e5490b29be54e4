"""What training and evaluating an operator leave behind: records that survive JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pinchpoint.core import machine as _machine
from pinchpoint.core.records import Record, now
from pinchpoint.systems.common.records import TrainingRecord


@dataclass(frozen=True, kw_only=True)
class Training(TrainingRecord):
    """loss: of normalised targets; validation: median relative L1 of the bodies held back; chunk: edges."""

    kind: ClassVar[str] = "operator-training"
    bodies: int  # trained on
    points: int  # of the largest body
    edges: int  # of the largest body, encoder and decoder together

    def summary(self) -> list[tuple[str, str]]:
        trained_on = (
            "bodies",
            f"{self.bodies:,}; the largest has {self.points:,} points and {self.edges:,} edges",
        )
        loss = "(mean of the last tenth; targets normalised)"
        return self.rows(trained_on, loss=loss, error="median relative L1", points="edges")


@dataclass(frozen=True)
class Evaluation(Record):
    """Errors of a run on the bodies of one split: evaluation.json of its folder."""

    kind: ClassVar[str] = "operator-evaluation"
    target: str  # the folder of the run
    data: str
    split: str
    step: int  # of the checkpoint
    bodies: tuple[dict[str, Any], ...]  # {"name", "points", "l1", "l2", "mean_l1", "mean_l2"}
    l1: dict[
        str, float
    ]  # {"median", "low", "high"}: relative L1 over the bodies, 95 % interval of the median
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
