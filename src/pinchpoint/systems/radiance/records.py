"""Records of training, evaluation and orbits; all survive a JSON round trip."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pinchpoint.core import machine as _machine
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_count, show_seconds
from pinchpoint.systems.common.records import TrainingRecord


@dataclass(frozen=True, kw_only=True)
class Training(TrainingRecord):
    """Result of `radiance train`.

    loss: the generator's; validation: kernel distance between generated and real images; chunk: rays.
    """

    kind: ClassVar[str] = "radiance-training"
    images: int  # training images
    skipped: tuple[str, ...] = ()  # files that could not be read
    critic_parameters: int = 0
    steps_per_s: float | None = None  # in this session
    samples: tuple[str, ...] = ()  # image sheets, relative to RUN

    def summary(self) -> list[tuple[str, str]]:
        side = self.settings["size"] * self.settings["superres"]
        trained_on = (
            "images",
            f"{self.images:,} of {side} x {side}"
            + (f"; {len(self.skipped)} skipped" if self.skipped else ""),
        )
        rows = self.rows(
            trained_on, loss="of the generator (mean of the last tenth)", error="", points="rays"
        )
        replacements = {
            "parameters": f"{self.parameters:,}, and {self.critic_parameters:,} in the discriminator"
        }
        if self.validation is not None:
            replacements["held back"] = (
                f"KD-efflite0 {self.validation:.1f} at step {self.best_step:,}, the best"
            )
        rows = [
            ("distance" if label == "held back" else label, replacements.get(label, value))
            for label, value in rows
        ]
        if self.steps_per_s:
            rows.append(("speed", f"{self.steps_per_s:.2f} steps per second"))
        if self.samples:
            rows.append(("pictures", f"{self.target}/{self.samples[-1]}"))
        return rows


@dataclass(frozen=True)
class Evaluation(Record):
    """Scores of a run against a set of real images, stored as evaluation.json."""

    kind: ClassVar[str] = "radiance-evaluation"
    target: str  # folder of the run
    data: str
    step: int  # step of the checkpoint
    images: int  # made
    real: int  # real images compared with
    size: int  # pixels a side
    features: str  # efflite0 or inception
    distances: dict[str, float]  # generated to real images: KD-efflite0 and FD-efflite0, or KIDx1000 and FID
    # The same distances for the bicubically enlarged render, if there is a super-resolution.
    bicubic: dict[str, float] | None
    hue_coverage: dict[str, float]  # keys: made (generated), real
    silhouette_area: dict[str, float]  # mean and standard deviation: made, made_spread, real, real_spread
    consistency: dict[
        str, float | None
    ]  # Means over the orbits: area_roughness, hue_spread, depth_error, colour_error.
    orbits: int
    projection_residual: float | None  # largest difference between the averaged large images and the render
    seed: int
    seconds: float
    definition: str
    files: tuple[str, ...] = ()
    enlarged: int = 0  # images of the data set that had to be enlarged
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        rows = [
            ("run", f"{self.target}, step {self.step:,}"),
            (
                "images",
                f"{self.images:,} generated against {self.real:,} of {self.data}, {self.size} x {self.size}",
            ),
        ]
        if self.real < self.images:
            rows.append(
                (
                    "note",
                    f"only {self.real:,} real images against {self.images:,} generated ones: "
                    "the distances are less certain",
                )
            )
        if self.enlarged:
            rows.append(
                (
                    "note",
                    f"{self.enlarged:,} of the images in {self.data} were smaller, "
                    "so they were enlarged and are blurred",
                )
            )
        for name, value in self.distances.items():
            beside = (
                "" if self.bicubic is None else f"   (bicubically enlarged render: {self.bicubic[name]:.1f})"
            )
            rows.append((name, f"{value:.1f}{beside}"))
        area = self.silhouette_area
        rows += [
            ("hue coverage", f"{self.hue_coverage['made']:.2f}   (real {self.hue_coverage['real']:.2f})"),
            (
                "silhouette area",
                f"{area['made']:.1%} +- {area['made_spread']:.1%}   "
                f"(real {area['real']:.1%} +- {area['real_spread']:.1%})",
            ),
        ]
        agreement = ", ".join(
            f"{name.replace('_', ' ')} {_show_number(value)}" for name, value in self.consistency.items()
        )
        rows.append((show_count(self.orbits, "orbit"), agreement))
        if self.projection_residual is not None:
            rows.append(
                ("projection", f"averages differ from the render by at most {self.projection_residual:.1e}")
            )
        return [*rows, ("time", show_seconds(self.seconds))]


@dataclass(frozen=True)
class Orbit(Record):
    """Objects rendered from all around; the files `radiance orbit` wrote."""

    kind: ClassVar[str] = "radiance-orbit"
    target: str
    step: int
    things: int
    frames: int
    size: int  # side of one image in pixels
    files: tuple[str, ...]
    seconds: float
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        return [
            ("run", f"{self.target}, step {self.step:,}"),
            (
                "orbit",
                f"{show_count(self.things, 'object')}, {show_count(self.frames, 'view')} each, "
                f"{self.size} x {self.size}",
            ),
            ("written", ", ".join(self.files)),
            ("time", show_seconds(self.seconds)),
        ]


def _show_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
