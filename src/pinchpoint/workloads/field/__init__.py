"""A field over space: coordinates through a small network, the least thing that grows with its points."""

from __future__ import annotations

from pinchpoint.core.workload import Tolerance, Variant, Workload

WORKLOAD = Workload(
    name="field",
    axis="points",
    framework="torch",
    build="pinchpoint.workloads.field.model:build",
    variants=(
        Variant("eager", "all points at once, as one would write it first", chunked=False),
        Variant(
            "checkpoint",
            "all points at once; each layer's activations are computed again in the backward pass",
            chunked=False,
        ),
        Variant(
            "chunked",
            "points made, sent through and forgotten a chunk at a time; gradients add up",
            flat=True,
        ),
    ),
    about="a scalar field of 3-D coordinates fitted by a network of 5 layers of 256 (torch)",
    tolerance=Tolerance(outputs=1e-5, gradients=1e-4),
    chunked=True,
    default_size=65_536,
)
