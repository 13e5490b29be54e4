"""What training, evaluating and turning a radiance field leave behind: records that survive JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pinchpoint.core import machine as _machine
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_count, show_seconds
from pinchpoint.systems.common.records import TrainingRecord


@dataclass(frozen=True, kw_only=True)
class Training(TrainingRecord):
    """loss: the generator's; validation: kernel distance of made images to real ones; chunk: rays."""

    kind: ClassVar[str] = "radiance-training"
    images: int  # trained on
    skipped: tuple[str, ...] = ()  # files that could not be read
    critic_parameters: int = 0
    steps_per_s: float | None = None  # of this session
    samples: tuple[str, ...] = ()  # sheets of pictures, in RUN

    def summary(self) -> list[tuple[str, str]]:
        side = self.settings["size"] * self.settings["superres"]
        trained_on = (
            "images",
            f"{self.images:,} of {side} x {side}"
            + (f"; {len(self.skipped)} skipped" if self.skipped else ""),
        )
        made = self.rows(
            trained_on, loss="of the generator (mean of the last tenth)", error="", points="rays"
        )
        changed = {"parameters": f"{self.parameters:,}, and {self.critic_parameters:,} of the discriminator"}
        if self.validation is not None:
            changed["held back"] = f"KD-efflite0 {self.validation:.1f} at step {self.best_step:,}, the best"
        made = [
            ("distance" if label == "held back" else label, changed.get(label, value))
            for label, value in made
        ]
        if self.steps_per_s:
            made.append(("speed", f"{self.steps_per_s:.2f} steps a second"))
        if self.samples:
            made.append(("pictures", f"{self.target}/{self.samples[-1]}"))
        return made


@dataclass(frozen=True)
class Evaluation(Record):
    """Scores of a run against the images of a data set: evaluation.json of its folder."""

    kind: ClassVar[str] = "radiance-evaluation"
    target: str  # the folder of the run
    data: str
    step: int  # of the checkpoint
    images: int  # made
    real: int  # compared with
    size: int  # pixels a side
    features: str  # efflite0 or inception
    distances: dict[str, float]  # of made to real images: KD-efflite0, FD-efflite0; or KIDx1000, FID
    bicubic: (
        dict[str, float] | None
    )  # the same of the render enlarged smoothly, where there is a super-resolution
    hue_coverage: dict[str, float]  # made, real
    silhouette_area: dict[str, float]  # mean and spread: made, made_spread, real, real_spread
    consistency: dict[
        str, float | None
    ]  # mean over orbits: area_roughness, hue_spread, depth_error, colour_error
    orbits: int
    projection_residual: float | None  # most that averages of large images differ from the render
    seed: int
    seconds: float
    definition: str
    files: tuple[str, ...] = ()
    enlarged: int = 0  # images of the data set that were smaller
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        made = [
            ("run", f"{self.target}, step {self.step:,}"),
            (
                "images",
                f"{self.images:,} made against {self.real:,} of {self.data}, {self.size} x {self.size}",
            ),
        ]
        if self.real < self.images:
            made.append(
                (
                    "note",
                    f"only {self.real:,} real images against {self.images:,} made: the distances are less sure",
                )
            )
        if self.enlarged:
            made.append(
                (
                    "note",
                    f"{self.enlarged:,} of the images in {self.data} were smaller and are enlarged, so blurred",
                )
            )
        for name, value in self.distances.items():
            beside = (
                "" if self.bicubic is None else f"   (render enlarged smoothly: {self.bicubic[name]:.1f})"
            )
            made.append((name, f"{value:.1f}{beside}"))
        area = self.silhouette_area
        made += [
            ("hue coverage", f"{self.hue_coverage['made']:.2f}   (real {self.hue_coverage['real']:.2f})"),
            (
                "silhouette area",
                f"{area['made']:.1%} +- {area['made_spread']:.1%}   (real {area['real']:.1%} +- {area['real_spread']:.1%})",
            ),
        ]
        shown = ", ".join(
            f"{name.replace('_', ' ')} {_shown(value)}" for name, value in self.consistency.items()
        )
        made.append((show_count(self.orbits, "orbit"), shown))
        if self.projection_residual is not None:
            made.append(
                ("projection", f"averages differ from the render by at most {self.projection_residual:.1e}")
            )
        return [*made, ("time", show_seconds(self.seconds))]


@dataclass(frozen=True)
class Orbit(Record):
    """Things seen from all around: the files of `radiance orbit`."""

    kind: ClassVar[str] = "radiance-orbit"
    target: str
    step: int
    things: int
    frames: int
    size: int  # pixels a side of one
    files: tuple[str, ...]
    seconds: float
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        return [
            ("run", f"{self.target}, step {self.step:,}"),
            (
                "orbit",
                f"{show_count(self.things, 'thing')}, {show_count(self.frames, 'view')} each, {self.size} x {self.size}",
            ),
            ("written", ", ".join(self.files)),
            ("time", show_seconds(self.seconds)),
        ]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
