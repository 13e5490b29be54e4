"""operator: a geometry-aware neural operator (torch), and the workload that studies its cost per edge."""

from __future__ import annotations

from pinchpoint.core.settings import Setting
from pinchpoint.core.workload import Tolerance, Variant, Workload

# Bytes per edge outside a chunk. The graph takes 4, and points with 32 edges each about 5 more; the whole
# model stores 2 kB per point for its backward pass, with 64 edges each.
HELD_BYTES_PER_EDGE = 48
# Edges per chunk: small rather than fast, so that half a million edges show how little memory they add.
CHUNK = 131_072

WORKLOAD = Workload(
    name="operator",
    axis="edges",
    framework="torch",
    build="pinchpoint.systems.operator.workload:build",
    variants=(
        Variant("eager", "all edges at once, with features saved for the backward pass", chunked=False),
        Variant(
            "checkpoint",
            "chunks of whole rows, recomputed in the backward pass by autograd",
            flat=True,
            held_bytes=HELD_BYTES_PER_EDGE,
        ),
        Variant(
            "flat",
            "chunks, with long rows split, and a handwritten backward pass",
            flat=True,
            held_bytes=HELD_BYTES_PER_EDGE,
            chunk=CHUNK,
        ),
    ),
    about="edge transforms between surface points and lattice tokens, alone or in the whole operator",
    tolerance=Tolerance(outputs=1e-5, gradients=1e-5),
    chunked=True,
    default_size=65_536,
    settings=(
        Setting("part", "encoder", "part of the model to run", choices=("encoder", "decoder", "full")),
        Setting(
            "mlp",
            "128,128,128",
            "hidden widths of the edge MLP, separated by commas",
            pattern=r"[1-9]\d{0,4}(,[1-9]\d{0,4})*",
        ),
        Setting("channels", "16", "features of a point and of a token", pattern=r"[1-9]\d{0,3}"),
        Setting("dimension", "3", "coordinates of a point that the edge MLPs read", choices=("2", "3")),
        Setting(
            "precision", "fp32", "precision of the forward pass; bf16 uses autocast", choices=("fp32", "bf16")
        ),
    ),
)
