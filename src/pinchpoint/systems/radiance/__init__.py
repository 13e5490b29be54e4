"""radiance: a radiance-field GAN with super-resolution (torch).

The workload here studies how the memory and time of its field grow with the number of rays.
"""

from __future__ import annotations

from pinchpoint.core.settings import Setting
from pinchpoint.core.workload import Tolerance, Variant, Workload

# Bytes per ray outside a chunk: with 64 points per ray the random draws take 512, twice where two renders
# coexist; pixels and rays take the rest.
HELD_BYTES_PER_RAY = 2048
# Rays per chunk: a sixteenth of GRAF's 8 images of 32 x 32. `plan` finds the chunk that suits a budget.
CHUNK = 512

WORKLOAD = Workload(
    name="radiance",
    axis="rays",
    framework="torch",
    build="pinchpoint.systems.radiance.workload:build",
    variants=(
        Variant(
            "eager",
            "GRAF's field as published; every layer of every point is stored for the backward pass",
            chunked=False,
        ),
        Variant(
            "folded",
            "codes and directions become biases, and layers are merged: the same image with fewer operations",
            chunked=False,
        ),
        Variant(
            "checkpoint",
            "rays are processed in chunks, which autograd renders again in the backward pass",
            flat=True,
            held_bytes=HELD_BYTES_PER_RAY,
        ),
        Variant(
            "deferred",
            "renders without a graph, and again in chunks in the backward pass",
            flat=True,
            held_bytes=HELD_BYTES_PER_RAY,
        ),
        Variant(
            "folded+checkpoint",
            "the folded field, with rays processed in chunks",
            flat=True,
            held_bytes=HELD_BYTES_PER_RAY,
        ),
    ),
    about="the field's share of a GAN iteration: a render for the discriminator, then a render for the "
    "generator with its backward pass",
    tolerance=Tolerance(outputs=1e-5, gradients=1e-5),
    chunked=True,
    default_size=2048,  # GRAF's own 8,192 rays take a minute per step on one core, and 8 GiB.
    settings=(
        Setting("batch", "8", "largest number of images that share the rays", pattern=r"[1-9]\d{0,3}"),
        Setting("samples", "64", "points per ray", pattern=r"[1-9]\d{0,3}"),
        Setting(
            "precision",
            "fp32",
            "precision of the field; bf16 and fp16 use autocast",
            choices=("fp32", "bf16", "fp16"),
        ),
        Setting("field", "graf", "preset of the field", choices=("graf", "tuned", "small", "tiny")),
    ),
)
