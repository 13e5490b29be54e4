"""Records of training and evaluating an operator, which survive JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pinchpoint.core import machine as _machine
from pinchpoint.core.records import Record, now
from pinchpoint.systems.common.training.records import TrainingRecord


@dataclass(frozen=True, kw_only=True)
class Training(TrainingRecord):
    """A training run.

    loss: of normalised targets; validation: median relative L1 of held-back bodies; chunk: edges.
    """

    kind: ClassVar[str] = "operator-training"
    bodies: int  # used for training
    points: int  # of the largest body
    edges: int  # of the largest body, encoder and decoder together
    recorded_bodies: int | None = None  # whose steps were replayed at the end; None without recorded steps

    def summary(self) -> list[tuple[str, str]]:
        trained_on = (
            "bodies",
            f"{self.bodies:,}; the largest has {self.points:,} points and {self.edges:,} edges",
        )
        loss = "(mean of the last tenth; targets normalised)"
        rows = self.rows(trained_on, loss=loss, error="median relative L1", points="edges")
        if self.recorded_bodies is None:
            return rows
        return [*rows, ("recorded steps", f"of {self.recorded_bodies:,} of {self.bodies:,} bodies")]


@dataclass(frozen=True)
class Evaluation(Record):
    """Errors of a run on the bodies of one split: evaluation.json of its folder."""

    kind: ClassVar[str] = "operator-evaluation"
    target: str  # the folder of the run
    data: str
    split: str
    step: int  # of the checkpoint
    bodies: tuple[dict[str, Any], ...]  # {"name", "points", "l1", "l2", "mean_l1", "mean_l2"}
    # {"median", "low", "high"}: relative L1 over the bodies, with the 95 % interval of the median.
    l1: dict[str, float]
    l2: dict[str, float]
    mean_l1: dict[str, float]  # the same for the mean of the training bodies everywhere
    mean_l2: dict[str, float]
    factor: float  # median relative L1 of the mean field divided by that of the model
    seconds: float
    definition: str
    files: tuple[str, ...] = ()
    # By field of a user's own data: l1, l2, mean_l1 and mean_l2 as above.
    fields: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        def show(error: dict[str, float]) -> str:
            return f"{error['median']:.2%} [{error['low']:.2%}, {error['high']:.2%}]"

        return [
            ("run", f"{self.target}, step {self.step:,}"),
            ("bodies", f"{len(self.bodies):,} of {self.data}, {self.split}"),
            ("relative L1", f"{show(self.l1)}   mean field {show(self.mean_l1)}"),
            ("relative L2", f"{show(self.l2)}   mean field {show(self.mean_l2)}"),
            *(
                (
                    f"of {name}",
                    f"L1 {show(errors['l1'])}, L2 {show(errors['l2'])}   "
                    f"mean field L1 {show(errors['mean_l1'])}",
                )
                for name, errors in self.fields.items()
            ),
            ("better than the mean", f"{self.factor:.2f} times, in relative L1"),
        ]
