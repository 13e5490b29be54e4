"""The records of training and evaluation on point clouds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pinchpoint.core import machine as _machine
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_bytes, show_count, show_seconds, show_size
from pinchpoint.systems.common.training.records import TrainingRecord

MIOU, COSINE = "mIoU", "cosine"  # the scores of validation scenes


@dataclass(frozen=True, kw_only=True)
class Training(TrainingRecord):
    """The record of a run.

    loss: the cross-entropy plus the consistency loss and that of a target; validation: 1 - mIoU of the
    validation scenes, averaged over densities of 100 % and 10 %; if none of these has labels, 1 - the cosine
    of a target.
    """

    kind: ClassVar[str] = "cloud-training"
    scenes: int  # in the training data
    points: int  # of the largest scene, as stored
    # Points of all views in all steps. With several processes: those of the first times their number.
    points_seen: int
    views_mode: str  # batched or accumulate
    # The score that `validation` is 1 minus: mIoU or cosine. Records made before this field existed, and runs
    # without validation scenes, have none.
    score: str = ""
    # Mean seconds of the parts of a timed step: data, sampling, forward, ...
    breakdown: dict[str, float] = field(default_factory=dict)
    recorded_sizes: int | None = None  # of steps that were replayed at the end; None without recorded steps
    recorded_bytes: int | None = None  # that their recordings took then, with the draws that these read

    def summary(self) -> list[tuple[str, str]]:
        trained_on = (
            "scenes",
            f"{self.scenes:,}; the largest has {self.points:,} points; {show_size(self.points_seen)} seen",
        )
        rows = self.rows(trained_on, loss="(mean of the last tenth)", error="", points="points")
        how = "one per step, in turn" if self.settings.get("schedule") == "alternate" else self.views_mode
        views = ("views", f"{', '.join(self.settings['views'])}; {how}")
        inputs = ("inputs", ", ".join(["coordinates", *self.settings["features"]]))
        rows[rows.index(trained_on) + 1 : rows.index(trained_on) + 1] = [inputs, views]
        if self.validation is not None:
            score = self.score or (MIOU if self.settings["classes"] else COSINE)
            text = f"{score_text(score, 1 - self.validation)} at step {self.best_step:,}, the best"
            rows = [(label, text if label == "held back" else value) for label, value in rows]
        if self.breakdown:
            whole = sum(self.breakdown.values()) or 1.0
            parts = ", ".join(f"{name} {seconds / whole:.1%}" for name, seconds in self.breakdown.items())
            rows.insert(-1, ("a step", f"{show_seconds(whole)}: {parts}"))
        if self.recorded_sizes is not None:
            taken = "" if self.recorded_bytes is None else f", {show_bytes(self.recorded_bytes)}"
            rows.insert(-1, ("recorded steps", f"{show_count(self.recorded_sizes, 'size')}{taken}"))
        return rows


def score_text(name: str, score: float) -> str:
    """Return a score in words: `mIoU 71.2%` or `cosine 0.931`."""
    return f"{name} {score:.3f}" if name == COSINE else f"{name} {score:.1%}"


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
    # Keys: "thinning", "density", "kept", "points"; with classes "miou", "accuracy", "iou", "majority_...";
    # with a target "cosine", the mean cosine of predicted and true targets, None if no point has one
    rows: tuple[dict[str, Any], ...]
    majority: str  # the most frequent class of the training data, the answer without a model; empty without
    cell: float | tuple[float, float, float]  # edge or edges of the cells of the thinning `one-per-cell`
    seed: int
    seconds: float
    definition: str
    files: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def row(self, thinning: str, density: float | None = None) -> dict[str, Any]:
        """Return the scores of one thinning. density: the requested one; ignored for `one-per-cell`."""
        return next(
            row for row in self.rows if row["thinning"] == thinning and row["density"] in (None, density)
        )

    def summary(self) -> list[tuple[str, str]]:
        summary = [
            ("run", f"{self.target}, step {self.step:,}"),
            ("scenes", f"{self.scenes:,} of {self.data}, {self.split}"),
        ]
        for row in self.rows:
            texts = [f"cosine {row['cosine']:.3f}"] if row.get("cosine") is not None else []
            if "miou" in row:
                texts.append(
                    f"mIoU {row['miou']:.1%}  accuracy {row['accuracy']:.1%}   ({self.majority} everywhere: "
                    f"{row['majority_miou']:.1%}, {row['majority_accuracy']:.1%})"
                )
            summary.append((name_of(row), "  ".join(texts)))
        return summary


def name_of(row: dict[str, Any]) -> str:
    """Return the name of a row, such as `uniform 10%` or `one-per-cell`."""
    return row["thinning"] if row["density"] is None else f"{row['thinning']} {row['density']:.0%}"
