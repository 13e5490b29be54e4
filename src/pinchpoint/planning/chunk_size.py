"""The largest chunk for a budget when the bytes per point are known, without a forecast or a framework."""

from __future__ import annotations

from pinchpoint.core.errors import DoesNotFit
from pinchpoint.core.units import show_bytes


def largest_chunk(*, fixed_bytes: int, bytes_per_point: int, budget_bytes: int) -> int:
    """How many points fit into one chunk if each needs `bytes_per_point` in addition to the fixed bytes."""
    chunk = (budget_bytes - fixed_bytes) // max(bytes_per_point, 1)
    if chunk < 1:
        need = fixed_bytes + bytes_per_point
        raise DoesNotFit(
            f"One point needs {show_bytes(need)}, but the budget is {show_bytes(budget_bytes)}.",
            hint=f"Give a budget of at least {show_bytes(need)}.",
        )
    return chunk
