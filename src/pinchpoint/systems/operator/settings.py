"""What a training run of an operator is told beyond what every run is: its data, its loss, and how edges are held.

No framework is imported here, so that the command line can read the defaults for its help.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.settings import Common, check_among, check_counts

MEMORIES = ("flat", "eager", "checkpoint")
LOSSES = ("l1", "l2")


@dataclass(frozen=True)
class Settings(Common):
    """Every choice of a run, as config.json holds it. `data`: see supply.fingerprint."""

    FREE: ClassVar[frozenset[str]] = Common.FREE | {"memory", "chunk"}

    kind: str = "flow"  # of the data
    ranges: dict[str, list[float]] = field(
        default_factory=dict
    )  # lowest and highest of each feature in training
    accumulate: int = 1  # bodies a step
    loss: str = "l1"
    memory: str = "flat"
    chunk: int | None = None  # edges at one time; None: the transform's own default

    def check(self) -> None:
        super().check()
        check_among(self, memory=MEMORIES, loss=LOSSES)
        check_counts(self, "accumulate")
        if self.chunk is not None and self.chunk < 1:
            raise BadInput(f"a chunk of {self.chunk} edges", hint="give a chunk of at least 1 edge")
