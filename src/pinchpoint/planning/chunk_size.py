"""The largest chunk for a budget, where the bytes of a point are known: no forecast, no framework."""

from __future__ import annotations

from pinchpoint.core.errors import DoesNotFit
from pinchpoint.core.units import show_bytes


def largest_chunk(*, fixed_bytes: int, bytes_per_point: int, budget_bytes: int) -> int:
    """How many points go through at one time, when each takes `bytes_per_point` beside what is fixed."""
    chunk = (budget_bytes - fixed_bytes) // max(bytes_per_point, 1)
    if chunk < 1:
        need = fixed_bytes + bytes_per_point
        raise DoesNotFit(
            f"one point needs {show_bytes(need)}; the budget is {show_bytes(budget_bytes)}",
            hint=f"give a budget of at least {show_bytes(need)}",
        )
    return chunk
