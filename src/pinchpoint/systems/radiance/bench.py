"""Time and peak memory of the field in a GAN iteration, for every variant."""

from __future__ import annotations

from pinchpoint.systems.common.variant_bench import variant_command
from pinchpoint.systems.radiance import WORKLOAD

command = variant_command(
    WORKLOAD,
    """Time the field's share of a GAN iteration, alternating each variant with the first one.

    The share is a render for the discriminator, then a render for the generator with its backward pass.
    """,
)
