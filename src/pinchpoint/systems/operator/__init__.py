"""operator: a geometry-aware neural operator; here its study, how memory and time grow with the edges (torch)."""

from __future__ import annotations

from pinchpoint.core.settings import Setting
from pinchpoint.core.workload import Tolerance, Variant, Workload

# Bytes an edge beside a chunk. The graph takes 4, points with 32 edges each some 5 more; the whole model keeps 2 kB of
# every point for its backward pass, with 64 edges each.
HELD = 48
CHUNK = 131_072  # edges: small, not the fastest, so that half a million edges show how little more they take

WORKLOAD = Workload(
    name="operator",
    axis="edges",
    framework="torch",
    build="pinchpoint.systems.operator.workload:build",
    variants=(
        Variant("eager", "every edge at once, its features kept for the backward pass", chunked=False),
        Variant(
            "checkpoint",
            "chunks of whole rows, each computed again in backward by autograd",
            flat=True,
            held_bytes=HELD,
        ),
        Variant(
            "flat",
            "chunks, rows cut where they are long, backward by hand",
            flat=True,
            held_bytes=HELD,
            chunk=CHUNK,
        ),
    ),
    about="edge transforms between the points of a surface and tokens on a lattice, alone or in the whole operator",
    tolerance=Tolerance(outputs=1e-5, gradients=1e-5),
    chunked=True,
    default_size=65_536,
    settings=(
        Setting("part", "encoder", "what is run", choices=("encoder", "decoder", "full")),
        Setting(
            "mlp",
            "128,128,128",
            "hidden widths of the edge MLP with commas between",
            pattern=r"[1-9]\d{0,4}(,[1-9]\d{0,4})*",
        ),
        Setting("precision", "fp32", "of the forward pass: bf16 by autocast", choices=("fp32", "bf16")),
    ),
)
