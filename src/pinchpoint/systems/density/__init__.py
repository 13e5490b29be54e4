"""density: the electron density of a crystal on a grid; here its study, how memory and time grow with the probes (torch)."""

from __future__ import annotations

from pinchpoint.core.settings import Setting
from pinchpoint.core.workload import Tolerance, Variant, Workload

CHUNK = 2_048  # probes of the scalar form at one time: 32 bricks of 64
FULL_CHUNK = 3_000  # probes the original sends through at one time
HELD = 32  # bytes a probe beside a chunk: its density, and where it lies in the answer

WORKLOAD = Workload(
    name="density",
    axis="probes",
    framework="torch",
    build="pinchpoint.systems.density.workload:build",
    variants=(
        Variant(
            "original",
            "all couplings of every pair in chunks of 3,000 probes; the atoms are computed again for each",
            flat=True,
            held_bytes=HELD,
            chunk=FULL_CHUNK,
        ),
        Variant("full", "the same, the atoms computed once", flat=True, held_bytes=HELD, chunk=FULL_CHUNK),
        Variant(
            "scalar",
            "only what reaches the density, all interactions in one pass over the pairs",
            flat=True,
            held_bytes=HELD,
            chunk=CHUNK,
        ),
    ),
    about="the electron density of HfO2 by an equivariant network, at probes of an 80 x 80 x 80 grid",
    tolerance=Tolerance(outputs=1e-5, gradients=1e-4),
    chunked=True,
    default_size=512,  # all couplings of so many take 2 GiB in inference and 5 GiB in training
    settings=(
        Setting("mul", "500", "width of the network", pattern=r"[1-9]\d{0,3}"),
        Setting("lmax", "4", "largest degree of the harmonics", choices=("0", "1", "2", "3", "4")),
    ),
)
