"""A demonstration: train a tiny GAN on a few cars and check its losses and gradients."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinchpoint.core.demo import Show

if TYPE_CHECKING:
    from pinchpoint.systems.common.training.training_loop import Report
    from pinchpoint.systems.radiance.train import Row, Training

SHOW = Show(
    "radiance",
    needs=("torch", "PIL"),
    order=40,
    verify_size=1_024,
    verify_s=2.0,
    settings={"field": "tiny", "samples": "16"},
)
CARS, SIDE, STEPS = 16, 32, 40
FIRST = 5  # steps whose mean loss is the discriminator's initial loss
SETTINGS: dict[str, Any] = {"preset": "tiny", "samples": 12, "eval_images": 0}


@dataclass(frozen=True)
class Example:
    """Result of a short run.

    Training itself stops with an error if a loss becomes NaN or infinite, or if a parameter gets no gradient.
    """

    training: Training
    before: float  # mean loss of the discriminator over the first steps
    after: float  # its mean over the last quarter
    norms: tuple[float, float]  # smallest and largest gradient norm of both networks
    picture: Path

    @property
    def passed(self) -> bool:
        """Whether all steps ran with finite gradients and the discriminator learned."""
        small, large = self.norms
        return self.training.complete and 0 < small <= large < math.inf and self.after < self.before


def example(
    folder: str | Path,
    *,
    device: str = "auto",
    steps: int = STEPS,
    progress: Callable[[str, int, int], None] | None = None,
) -> Example:
    """Train on a few cars, and write their pictures, the run and a sheet of generated images to `folder`."""
    from pinchpoint.core.files import make_folder
    from pinchpoint.systems.common.training.runs import CONFIG
    from pinchpoint.systems.radiance.data.sheets import make_sheet
    from pinchpoint.systems.radiance.orbit import save_sheet
    from pinchpoint.systems.radiance.train import SAMPLES, Log, Row, train

    place = make_folder(folder)
    tell = progress or (lambda stage, done, total: None)
    tell("cars", 0, CARS)
    cars = make_folder(place / "cars")
    for number, pixels in enumerate(make_sheet(seed=0, first=0, count=CARS, size=SIDE).pixels):
        save_sheet(cars / f"{number:02d}.png", pixels)
    run = place / "run"
    if (run / CONFIG).exists():  # left by an earlier call
        shutil.rmtree(run)

    def watch(report: Report) -> None:
        if report.row is not None:
            tell("steps", report.done, report.total)

    settings = {
        **SETTINGS,
        "steps": steps,
        "sample_every": steps,
        "checkpoint_every": steps,
        "device": device,
    }
    training = train(cars, run, progress=watch, **settings)
    rows = [row for row in Log.read(run / "log.csv") if isinstance(row, Row)]
    last = rows[-max(1, steps // 4) :]
    norms = [row.norm for row in rows]
    return Example(
        training,
        _mean(rows[:FIRST]),
        _mean(last),
        (min(norms), max(norms)),
        run / SAMPLES / f"step-{steps:08d}.png",
    )


def _mean(rows: list[Row]) -> float:
    return sum(row.loss_d for row in rows) / len(rows)


def show(output: Path, *, device: str, tell: Callable[[str], None]) -> bool:
    """Train on a few cars for `pinchpoint demo`; return whether the losses and gradients are as expected."""
    from pinchpoint.console import printing

    def progress(stage: str, done: int, total: int) -> None:
        if done % 10 == 0:
            tell(f"radiance: training on a few cars, {stage} {done}/{total}")

    result = example(output / "radiance-cars", device=device, progress=progress)
    run = result.training
    verdict = "pass" if result.passed else "FAIL: the discriminator did not learn, or a step had no gradient"
    printing.show("\nradiance: a tiny GAN, trained for a few steps", style="bold")
    printing.show_pairs(
        [
            ("run", f"{run.step} steps on {run.images} cars in {run.seconds:.0f} s on {run.device}"),
            ("discriminator", f"loss {result.before:.2f} at first, {result.after:.2f} at the end"),
            ("gradients", f"of every parameter; norms from {result.norms[0]:.2g} to {result.norms[1]:.2g}"),
            ("checked", verdict),
            ("written", str(result.picture)),
        ]
    )
    return result.passed
