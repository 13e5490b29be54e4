"""Time and peak memory of a training step of the edge transform, for every variant."""

from __future__ import annotations

from pinchpoint.systems.common.variant_bench import variant_command
from pinchpoint.systems.operator import WORKLOAD

command = variant_command(
    WORKLOAD,
    """Time a training step of the edge transform, alternating each variant with the first one.

    eager stores the features of every edge; checkpoint and flat process the edges in chunks.
    """,
)
