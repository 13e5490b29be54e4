"""What training and evaluating over point clouds leave behind: records that survive JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pinchpoint.core import machine as _machine
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_seconds, show_size
from pinchpoint.systems.common.training.records import TrainingRecord


@dataclass(frozen=True, kw_only=True)
class Training(TrainingRecord):
    """loss: cross-entropy and what consistency adds; validation: 1 - mIoU of the scenes held back, over
    100 % and 10 %.
    """

    kind: ClassVar[str] = "cloud-training"
    scenes: int  # trained on
    points: int  # of the largest, as it is stored
    # That passed the network in all steps, of all views; of several processes the first's times their number.
    points_seen: int
    views_mode: str  # batched or accumulate
    breakdown: dict[str, float] = field(
        default_factory=dict
    )  # mean seconds of a timed step: data, sampling, forward, ...

    def summary(self) -> list[tuple[str, str]]:
        trained_on = (
            "scenes",
            f"{self.scenes:,}; the largest has {self.points:,} points; {show_size(self.points_seen)} seen",
        )
        made = self.rows(trained_on, loss="(mean of the last tenth)", error="", points="points")
        views = ("views", f"{', '.join(self.settings['views'])}; {self.views_mode}")
        at = next(place for place, (label, _) in enumerate(made) if label == "scenes") + 1
        made = [*made[:at], views, *made[at:]]
        if self.validation is not None:
            held = f"mIoU {1 - self.validation:.1%} at step {self.best_step:,}, the best"
            made = [(label, held if label == "held back" else value) for label, value in made]
        if self.breakdown:
            whole = sum(self.breakdown.values()) or 1.0
            parts = ", ".join(f"{name} {seconds / whole:.1%}" for name, seconds in self.breakdown.items())
            made.insert(-1, ("a step", f"{show_seconds(whole)}: {parts}"))
        return made


@dataclass(frozen=True)
class Evaluation(Record):
    """Scores of a run on the scenes of one split at several densities: evaluation.json of its folder."""

    kind: ClassVar[str] = "cloud-evaluation"
    target: str  # the folder of the run
    data: str
    split: str
    step: int  # of the checkpoint
    scenes: int
    classes: tuple[str, ...]
    rows: tuple[
        dict[str, Any], ...
    ]  # {"thinning", "density", "kept", "points", "miou", "accuracy", "iou", "majority_..."}
    majority: str  # the most frequent class of training: what one would answer without a model
    cell: float  # of one-per-cell
    seed: int
    seconds: float
    definition: str
    files: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def row(self, thinning: str, density: float | None = None) -> dict[str, Any]:
        """The scores of one way to thin; density: what was asked for, where that has one."""
        return next(
            row for row in self.rows if row["thinning"] == thinning and row["density"] in (None, density)
        )

    def summary(self) -> list[tuple[str, str]]:
        made = [
            ("run", f"{self.target}, step {self.step:,}"),
            ("scenes", f"{self.scenes:,} of {self.data}, {self.split}"),
        ]
        for row in self.rows:
            made.append(
                (
                    name_of(row),
                    f"mIoU {row['miou']:.1%}  accuracy {row['accuracy']:.1%}   ({self.majority} everywhere: "
                    f"{row['majority_miou']:.1%}, {row['majority_accuracy']:.1%})",
                )
            )
        return made


def name_of(row: dict[str, Any]) -> str:
    """`uniform 10%`, `one-per-cell`."""
    return row["thinning"] if row["density"] is None else f"{row['thinning']} {row['density']:.0%}"
