"""What a training run of a density model is told beyond what every run is: how much of the data a step sees.

No framework is imported here, so that the command line can read the defaults for its help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pinchpoint.systems.common.settings import Common, check_counts


@dataclass(frozen=True)
class Settings(Common):
    """Every choice of a run, as config.json holds it. `data`: see train.fingerprint."""

    FREE: ClassVar[frozenset[str]] = Common.FREE | {"chunk"}

    steps: int = 4000
    lr: float = 1e-2
    weight_decay: float = 0.0
    ema: float = 0.998
    molecules: int = 4  # structures a step
    probes: int = 512  # of each of them a step
    chunk: int | None = None  # probes at one time; None: all of a step

    def check(self) -> None:
        super().check()
        check_counts(self, "molecules", "probes", "chunk")
