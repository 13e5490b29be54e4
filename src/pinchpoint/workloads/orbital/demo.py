"""What `pinchpoint demo` shows for the orbital workload."""

from __future__ import annotations

from pinchpoint.core.demo import Show

SHOW = Show(
    "orbital",
    needs=("jax",),
    order=50,
    verify_size=4_096,
    sizes=(1_024, 4_096, 16_384, 65_536),
    modes=("train",),
)
