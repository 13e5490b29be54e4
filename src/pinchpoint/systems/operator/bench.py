"""Times and peaks of a training step of the edge transform, by all variants."""

from __future__ import annotations

from pinchpoint.systems.common.variant_bench import variant_command
from pinchpoint.systems.operator import WORKLOAD

command = variant_command(
    WORKLOAD,
    """Time a training step of the edge transform: every variant in turn with the first.

    eager holds the features of every edge; checkpoint and flat process the edges in chunks.
    """,
)
