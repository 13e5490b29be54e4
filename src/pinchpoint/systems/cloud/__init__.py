"""cloud: density-invariant networks over point clouds (torch).

The workload defined here draws a random subset of the points of every cell. Letters used in this folder: N
points, C cells, V views, B scenes of a batch, M drawn points, F features, K classes.
"""

from __future__ import annotations

from pinchpoint.core.settings import Setting
from pinchpoint.core.workload import Variant, Workload

WORKLOAD = Workload(
    name="cloud",
    axis="points",
    framework="torch",
    build="pinchpoint.systems.cloud.workload:build",
    variants=(
        Variant("loop", "one permutation per cell, one cell after another; reads three numbers per cell"),
        Variant(
            "grouped", "permutations generated together for all cells of one count; reads a number per cell"
        ),
        Variant("sort", "one sort of (cell, random key), in plain torch"),
        Variant("exact", "the smallest keys of each cell by a kernel: Triton on a GPU, numba on a CPU"),
        Variant("nested", "like exact, but the draws of several views are subsets of one another"),
    ),
    about="draws 30 to 70 % of the points of every cell of a scan; all subsets are equally likely",
    modes=("infer",),
    random=True,
    default_size=20_000,
    settings=(Setting("occupancy", "20", "average number of points per cell", pattern=r"[1-9]\d{0,5}"),),
)
