"""What `pinchpoint demo` shows for the field workload."""

from __future__ import annotations

from pinchpoint.core.demo import Show

SHOW = Show(
    "field",
    needs=("torch",),
    order=10,
    verify_size=32_768,
    sizes=(4_000, 9_000, 20_000, 44_000, 96_000, 210_000, 460_000, 1_000_000),
    modes=("train", "infer"),
)
