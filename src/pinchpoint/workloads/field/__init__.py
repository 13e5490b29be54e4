"""field: a small network over coordinates, the simplest workload that grows with its points (torch)."""

from __future__ import annotations

from pinchpoint.core.workload import Tolerance, Variant, Workload

WORKLOAD = Workload(
    name="field",
    axis="points",
    framework="torch",
    build="pinchpoint.workloads.field.model:build",
    variants=(
        Variant("eager", "processes all points at once, as a first version would", chunked=False),
        Variant(
            "checkpoint",
            "processes all points at once and recomputes each layer's activations in the backward pass",
            chunked=False,
        ),
        Variant(
            "chunked",
            "generates, processes and frees the points one chunk at a time; gradients are summed over chunks",
            flat=True,
        ),
    ),
    about="fits a scalar field of 3-D coordinates with a network of 5 layers of 256 (torch)",
    tolerance=Tolerance(outputs=1e-5, gradients=1e-4),
    chunked=True,
    default_size=65_536,
)
