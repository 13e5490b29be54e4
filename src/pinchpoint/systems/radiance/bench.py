"""Times and peaks of the field in a GAN iteration, by all variants."""

from __future__ import annotations

from pinchpoint.systems.common.variant_bench import variant_command
from pinchpoint.systems.radiance import WORKLOAD

command = variant_command(
    WORKLOAD,
    """Time the field's share of a GAN iteration: every variant in turn with the first.

    A render for the discriminator, then a render for the generator with its backward pass.
    """,
)
