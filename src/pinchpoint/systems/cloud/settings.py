"""What a training run over point clouds is told beyond what every run is: its scenes, its views and their losses.

No framework is imported here, so that the command line can read the defaults for its help.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.settings import Common, check_among, check_counts

CONSISTENCIES = ("none", "cos", "mse", "kl")
MODES = ("auto", "batched", "accumulate")
# One view of each scene at a density drawn anew: at equal points it was the best of the recipes tried, at every density.
VIEWS = ("log-uniform:0.05:1",)


@dataclass(frozen=True)
class Settings(Common):
    """Every choice of a run, as config.json holds it. `data`: see runs.fingerprint."""

    FREE: ClassVar[frozenset[str]] = Common.FREE | {"views_mode"}

    features: list[str] = field(default_factory=list)  # the columns read at a point, in their order
    classes: list[str] = field(default_factory=list)
    frequency: list[float] = field(
        default_factory=list
    )  # share of each class among the labelled points of training
    ignore: list[int] = field(
        default_factory=list
    )  # labels that mean "no class" in one's own files, beside -1
    scenes: int = 2  # of a step, for each process
    points: int = 20_000  # of a scene at most: those nearest to a random one of it
    views: list[str] = field(default_factory=lambda: list(VIEWS))
    cell: float | None = (
        None  # edge of the cells that views and consistency go by; None: the network's voxels
    )
    consistency: str = "none"
    consistency_weight: float = 0.1
    views_mode: str = "auto"
    augment: bool = True  # turned about z, mirrored, scaled, jittered
    ranks: int = 1  # processes

    def check(self) -> None:
        super().check()
        check_among(self, consistency=CONSISTENCIES, views_mode=MODES)
        check_counts(self, "scenes", "points", "ranks")
        if not self.views:
            raise BadInput("no views", hint="give --views some, such as dense,log-uniform:0.05:1")
        if self.views.count("dense") > 1:
            raise BadInput("the view dense twice", hint="leave one out: both would show the same points")
        if self.cell is not None and not 0 < self.cell < math.inf:
            raise BadInput(
                f"--cell {self.cell:g}", hint="give an edge above 0, in the units of the coordinates"
            )
        if not 0 < self.consistency_weight < math.inf:
            raise BadInput(
                f"--consistency-weight {self.consistency_weight:g}",
                hint="give a number above 0, or --consistency none",
            )
        if self.consistency != "none" and ("dense" not in self.views or len(self.views) < 2):
            raise BadInput(
                f"--consistency {self.consistency} with the views {','.join(self.views)}",
                hint="it compares other views with the dense one: give --views dense,log-uniform:0.05:1, or --consistency none",
            )
