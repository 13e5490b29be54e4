"""vmc: neural wave functions by variational Monte Carlo; here its study, how memory and time grow with the walkers (JAX).

Letters used in this folder: B walkers, n electrons (up first, then down), M nuclei, D determinants, P parameters. Lengths are
in bohr, energies in hartree. A walker is an array (n, 3).
"""

from __future__ import annotations

from pinchpoint.core.settings import Setting
from pinchpoint.core.workload import Tolerance, Variant, Workload

CHUNK = 256  # walkers at one time
HELD = 512  # bytes a walker beside a chunk: its place, energy and weight, a copy or two of each, up to 14 electrons

WORKLOAD = Workload(
    name="vmc",
    axis="walkers",
    framework="jax",
    build="pinchpoint.systems.vmc.workload:build",
    variants=(
        Variant(
            "hessian", "all second derivatives of every walker, of which the trace is used", chunked=False
        ),
        Variant(
            "loop", "the gradient linearised once, pushed along one coordinate after another", chunked=False
        ),
        Variant(
            "forward", "value, gradient and Laplacian go through the network together (folx)", chunked=False
        ),
        Variant(
            "chunked",
            "the quickest of these, a chunk of walkers at a time; gradients are summed over chunks",
            flat=True,
            held_bytes=HELD,
            chunk=CHUNK,
        ),
    ),
    about="local energies of a molecule's neural wave function, and a step of Adam along the energy's gradient",
    tolerance=Tolerance(outputs=1e-4, gradients=1e-3),
    chunked=True,
    default_size=1024,
    settings=(
        Setting(
            "system",
            "H2",
            "an atom, a molecule, or a chain of hydrogens: LiH, N2, H10",
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
