"""Settings of a training run of an operator, in addition to those that all systems share.

No framework is imported here, so that the command line can read defaults and help texts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pinchpoint.systems.common.settings import TrainSettings, option

MEMORIES = ("flat", "eager", "checkpoint")
LOSSES = ("l1", "l2")
WEIGHTINGS = ("areas", "points")


@dataclass(frozen=True)
class Settings(TrainSettings):
    """The settings of a run, as stored in config.json. data: see `data.loading.fingerprint`."""

    preset: str = option("small", "Preset of the model: small, base or compat.", main=True)
    validation: int | None = option(
        None,
        "Number of training bodies set aside to choose the best checkpoint.",
        at_least=0,
        default_text="an eighth, at most 4",
    )
    kind: str = "flow"  # of the data
    ranges: dict[str, list[float]] = field(
        default_factory=dict
    )  # lowest and highest value of each feature in training
    layout: dict[str, Any] = field(
        default_factory=dict
    )  # of a user's own files: see `data.own.layout.Layout`
    accumulate: int = option(1, "Bodies per step.", main=True, at_least=1)
    loss: str = option("l1", "Loss", choices=LOSSES)
    weighting: str = option(
        "areas",
        "What a point counts in the loss: its area (of a cell: its area or volume), or all points alike",
        choices=WEIGHTINGS,
    )
    memory: str = option(
        "flat", "How the edges are stored for the backward pass", main=True, choices=MEMORIES, may_change=True
    )
    chunk: int | None = option(
        None,
        "Edges per chunk.",
        main=True,
        at_least=1,
        default_text="the transform's own, or chosen by --budget",
        may_change=True,
    )
    record_steps: bool | None = option(
        None,
        "Record the step of each body as a CUDA graph and replay it.",
        default_text="on a GPU, without --accumulate and --memory checkpoint",
        may_change=True,
    )
