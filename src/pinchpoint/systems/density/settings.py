"""Settings of a training run of a density model: the shared ones, and how much data a step uses.

No framework is imported here, so that the command line can read defaults and help texts.
"""

from __future__ import annotations

from dataclasses import dataclass

from pinchpoint.systems.common.settings import PRECISIONS, TrainSettings, option


@dataclass(frozen=True)
class Settings(TrainSettings):
    """The settings of a run, as stored in config.json. `data`: see `training.runs.fingerprint`."""

    preset: str = option("small", "Preset of the model: small or original.", main=True)
    steps: int = option(4000, "Total number of training steps.", main=True, at_least=1)
    lr: float = option(1e-2, "Highest learning rate.", main=True, above=0)
    weight_decay: float = option(0.0, "Weight decay, applied to weight matrices only.", at_least=0)
    ema: float = option(
        0.998, "Decay of the moving average of the weights; 0 disables it.", at_least=0, below=1
    )
    precision: str = option(
        "fp32", "Precision of matrix products (geometry is always fp32)", main=True, choices=PRECISIONS
    )
    validation: int | None = option(
        None,
        "Number of training geometries held back to choose the best checkpoint.",
        at_least=0,
        default_text="an eighth of them, at most 4",
    )
    first: str = option(
        "",
        "Trained run or file whose network is kept as it is; a second, local network learns to correct it.",
        main=True,
        metavar="RUN|FILE",
        default_text="one network",
    )
    molecules: int = option(4, "Structures per step.", main=True, at_least=1)
    probes: int = option(512, "Probes per structure and step.", main=True, at_least=1)
    chunk: int | None = option(
        None,
        "Probes processed together; does not change the gradient of a step.",
        main=True,
        at_least=1,
        default_text="all probes of a step, or chosen by --budget",
        may_change=True,
    )
    record_steps: bool = option(
        False,
        "Pad all steps to one size and, on a GPU, record one as a CUDA graph that the others replay.",
        may_change=True,
    )
