"""operator: a geometry-aware neural operator; here its study, how memory and time grow with the edges (torch)."""

from __future__ import annotations

from pinchpoint.core.settings import Setting
from pinchpoint.core.workload import Tolerance, Variant, Workload

WORKLOAD = Workload(
    name="operator",
    axis="edges",
    framework="torch",
    build="pinchpoint.workloads.operator.scaling:build",
    variants=(
        Variant("eager", "every edge at once, its features kept for the backward pass"),
        Variant("checkpoint", "chunks of whole rows, each computed again in the backward pass by autograd"),
        # 4 bytes an edge of the graph, and with 32 edges a point some 9 of points, their values and gradients.
        Variant("flat", "chunks, backward by hand; holds the graph and the points alone", flat=True, held_bytes=16),
    ),
    about="edge transforms between the points of a surface and tokens on a lattice, alone or in the whole operator",
    tolerance=Tolerance(outputs=1e-5, gradients=1e-5),
    chunked=True,
    default_size=65_536,
    settings=(
        Setting("part", "encoder", "what is run", choices=("encoder", "decoder", "full")),
        Setting(
            "mlp", "128,128,128", "hidden widths of the edge MLP with commas between", pattern=r"[1-9]\d{0,4}(,[1-9]\d{0,4})*"
        ),
        Setting("precision", "fp32", "of the forward pass: bf16 by autocast", choices=("fp32", "bf16")),
    ),
)
