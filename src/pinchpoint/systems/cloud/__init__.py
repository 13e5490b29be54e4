"""cloud: density-invariant networks over point clouds; here the study of drawing some points of every cell
(torch).

Letters used in this folder: N points, C cells, V views, B scenes of a batch, M points drawn, F features, K
classes.
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
        Variant(
            "loop", "a permutation for every cell, one cell after another; three numbers of each are read"
        ),
        Variant(
            "grouped", "permutations for all cells of one count together; a number of every cell is read"
        ),
        Variant("sort", "one sort of (cell, random key), in plain torch"),
        Variant("exact", "the smallest keys of each cell by a kernel: Triton on a GPU, numba on a CPU"),
        Variant("nested", "the same, with draws of several views inside each other"),
    ),
    about="30 to 70 % of the points of every cell of a scan, each subset as likely as any other",
    modes=("infer",),
    random=True,
    default_size=20_000,
    settings=(Setting("occupancy", "20", "points of a cell, on average", pattern=r"[1-9]\d{0,5}"),),
)
