"""The neural operator in `pinchpoint demo`."""

from __future__ import annotations

from pinchpoint.core.demo import Show

SHOW = Show(
    "operator",
    needs=("torch",),
    order=20,
    verify_size=32_768,
    sizes=(125_000, 250_000, 500_000, 1_000_000, 2_000_000),
    modes=("train",),
)
