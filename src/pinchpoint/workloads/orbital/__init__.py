"""orbital: the local energy of a small neural wave function over many walkers (JAX)."""

from __future__ import annotations

from pinchpoint.core.workload import Tolerance, Variant, Workload

WORKLOAD = Workload(
    name="orbital",
    axis="walkers",
    framework="jax",
    build="pinchpoint.workloads.orbital.model:build",
    variants=(
        Variant("hessian", note="takes the trace of a full Hessian per walker", chunked=False),
        Variant("loop", note="computes one second derivative at a time, forward over reverse", chunked=False),
        Variant(
            "chunked",
            note="runs the loop on one chunk of walkers at a time; gradients are summed over chunks",
        ),
    ),
    about=(
        "one step of variational Monte Carlo: the local energy of trapped, repelling electrons, from the"
        " Laplacian"
        " of an MLP's log|psi|"
    ),
    tolerance=Tolerance(outputs=1e-4, gradients=1e-3),
    chunked=True,
    default_size=4096,
)
