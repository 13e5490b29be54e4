"""The density system (torch): electron densities of molecules and crystals. Defines its workload."""

from __future__ import annotations

from pinchpoint.core.settings import Setting
from pinchpoint.core.workload import Tolerance, Variant, Workload

CHUNK = 2_048  # probes per chunk in the scalar form: 32 bricks of 64
FULL_CHUNK = 3_000  # probes per chunk in the ChargE3Net-style density report
BYTES_PER_PROBE = 32  # outside the chunks: the density of a probe and its index in the result

WORKLOAD = Workload(
    name="density",
    axis="probes",
    framework="torch",
    build="pinchpoint.systems.density.workload:build",
    variants=(
        Variant(
            "original",
            "computes all couplings of every pair in chunks of 3,000 probes, and recomputes the atoms for "
            "each chunk",
            flat=True,
            held_bytes=BYTES_PER_PROBE,
            chunk=FULL_CHUNK,
        ),
        Variant(
            "full",
            "computes all couplings of every pair, but the atoms only once",
            flat=True,
            held_bytes=BYTES_PER_PROBE,
            chunk=FULL_CHUNK,
        ),
        Variant(
            "scalar",
            "computes only what affects the density, all interactions in one pass over the pairs",
            flat=True,
            held_bytes=BYTES_PER_PROBE,
            chunk=CHUNK,
        ),
    ),
    about="the electron density of HfO2 by an equivariant network, at probes of an 80 x 80 x 80 grid",
    tolerance=Tolerance(outputs=1e-5, gradients=1e-4),
    chunked=True,
    default_size=512,  # with all couplings this takes 2 GiB in inference and 5 GiB in training
    settings=(
        Setting("mul", "500", "Width of the network.", pattern=r"[1-9]\d{0,3}"),
        Setting("lmax", "4", "Largest degree of the spherical harmonics.", choices=("0", "1", "2", "3", "4")),
    ),
)
