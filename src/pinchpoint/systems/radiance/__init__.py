"""radiance: a radiance-field GAN with super-resolution; here its study, how memory and time grow with the rays (torch)."""

from __future__ import annotations

from pinchpoint.core.settings import Setting
from pinchpoint.core.workload import Tolerance, Variant, Workload

# Bytes a ray beside a chunk: with 64 samples its draws take 512, twice where two renders meet, pixels and rays the rest.
HELD = 2048
CHUNK = 512  # rays at one time: a sixteenth of GRAF's 8 images of 32 x 32; `plan` finds what suits a budget

WORKLOAD = Workload(
    name="radiance",
    axis="rays",
    framework="torch",
    build="pinchpoint.systems.radiance.workload:build",
    variants=(
        Variant(
            "eager",
            "GRAF's field as published, every layer of every point kept for the backward pass",
            chunked=False,
        ),
        Variant(
            "folded",
            "codes and directions as biases, layers merged: fewer operations, the same image",
            chunked=False,
        ),
        Variant(
            "checkpoint",
            "chunks of rays, each rendered again in backward by autograd",
            flat=True,
            held_bytes=HELD,
        ),
        Variant(
            "deferred",
            "rendered without a graph, again chunk by chunk in backward",
            flat=True,
            held_bytes=HELD,
        ),
        Variant("folded+checkpoint", "both: the folded field in chunks of rays", flat=True, held_bytes=HELD),
    ),
    about="the field's part of a GAN's iteration: a render for the discriminator, one for the generator, and its backward pass",
    tolerance=Tolerance(outputs=1e-5, gradients=1e-5),
    chunked=True,
    default_size=2048,  # a step of GRAF's own 8,192 takes a minute on a core, and 8 GiB
    settings=(
        Setting("batch", "8", "images the rays are of, at most", pattern=r"[1-9]\d{0,3}"),
        Setting("samples", "64", "points of a ray", pattern=r"[1-9]\d{0,3}"),
        Setting(
            "precision", "fp32", "of the field: bf16 and fp16 by autocast", choices=("fp32", "bf16", "fp16")
        ),
        Setting("field", "graf", "its preset", choices=("graf", "tuned", "small", "tiny")),
    ),
)
