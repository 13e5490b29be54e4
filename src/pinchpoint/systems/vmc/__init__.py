"""vmc: neural wave functions by variational Monte Carlo (JAX).

Defines the workload of the system, whose axis is the number of walkers.

Letters used in this folder: B walkers, n electrons (up first, then down), M nuclei, D determinants, P
parameters. Lengths are in bohr, energies in hartree. A walker is an array (n, 3).
"""

from __future__ import annotations

from pinchpoint.core.settings import Setting
from pinchpoint.core.workload import Tolerance, Variant, Workload

CHUNK = 256  # walkers processed together
# Bytes per walker outside a chunk: its position, energy and weight, with one or two copies, for up to 14
# electrons.
BYTES_PER_WALKER = 512

WORKLOAD = Workload(
    name="vmc",
    axis="walkers",
    framework="jax",
    build="pinchpoint.systems.vmc.workload:build",
    variants=(
        Variant("hessian", "compute the full Hessian of every walker and take its trace", chunked=False),
        Variant(
            "loop",
            "linearise the gradient once and apply it to one coordinate after another",
            chunked=False,
        ),
        Variant(
            "forward",
            "propagate value, gradient and Laplacian through the network together (folx)",
            chunked=False,
        ),
        Variant(
            "chunked",
            "use the fastest of these methods on chunks of walkers; gradients are summed over chunks",
            flat=True,
            held_bytes=BYTES_PER_WALKER,
            chunk=CHUNK,
        ),
    ),
    about="local energies of a neural wave function, and an Adam step along the energy gradient",
    tolerance=Tolerance(outputs=1e-4, gradients=1e-3),
    chunked=True,
    default_size=1024,
    settings=(
        Setting(
            "system",
            "H2",
            "an atom, a molecule or a chain of hydrogens, such as LiH, N2, H10",
            pattern=r"[A-Z][A-Za-z0-9]{0,7}",
        ),
        Setting(
            "net",
            "report",
            "small, medium, ferminet, psiformer, report or report-cpu",
            pattern=r"[a-z-]{1,20}",
        ),
    ),
)
