"""The largest chunk of walkers whose step stays within a budget, by XLA's own account of the compiled step.

The step is the trainer's own, compiled for the device that is here and not run: arguments, outputs and temporaries as XLA
assigned them. On CUDA the context is added, on a CPU what this process is resident with already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pinchpoint.backends.jax import xla
from pinchpoint.core.errors import DoesNotFit, Missing
from pinchpoint.core.units import show_bytes
from pinchpoint.workloads.training.budgets import Chosen, budget_of
from pinchpoint.workloads.vmc.hosts import Host, resident_bytes
from pinchpoint.workloads.vmc.settings import Settings

Need = Callable[[int | None], int]  # from a chunk (None: all walkers) to the bytes a step takes in all


def chunk_for(
    settings: Settings, *, budget: str | int, host: Host, compiled: Callable[[Settings], Any],
    progress: Callable[[str], None] | None = None,
) -> Chosen:  # fmt: skip
    """The largest chunk for a step, None where none is wanted; `DoesNotFit` with the numbers where one walker is too much.

    compiled: the program of a step with such settings, compiled.
    """
    card = budget_of(budget)

    def need(chunk: int | None) -> int:
        if progress is not None:
            progress("all walkers at once" if chunk is None else f"chunks of {chunk:,} walkers")
        step = xla.compiled_bytes(compiled(replace(settings, chunk=chunk)))
        if step is None:
            raise Missing("XLA gives no memory analysis on this device", mend="choose a chunk yourself: --chunk 64")
        # Read after compiling: what that took stays resident while training.
        return step + (card.context_bytes if host.name == "cuda" else resident_bytes())

    return largest_chunk(need, walkers=settings.walkers, budget_bytes=card.memory_bytes, device=host.name)


def largest_chunk(need: Need, *, walkers: int, budget_bytes: int, device: str) -> Chosen:
    """Among the numbers that divide the walkers; needs grow with the chunk, so half of those left are tried no more."""
    whole = need(None)
    if whole <= budget_bytes:
        return Chosen(None, whole, budget_bytes)
    parts = [part for part in range(1, walkers) if walkers % part == 0]
    least = need(1) if parts else whole
    if least > budget_bytes:
        what = "its context included" if device == "cuda" else "with what this process holds already"
        raise DoesNotFit(
            f"a step needs {show_bytes(least)} with one walker at a time, {what}; the budget is {show_bytes(budget_bytes)}",
            mend=f"raise --budget by at least {show_bytes(least - budget_bytes)}, or give fewer --walkers or a smaller --net",
            need_bytes=least,
        )
    found = Chosen(1, least, budget_bytes)
    low, high = 1, len(parts)  # parts[low - 1] fits; those from `high` on do not
    while low < high:
        middle = (low + high) // 2
        needed = need(parts[middle])
        if needed <= budget_bytes:
            found, low = Chosen(parts[middle], needed, budget_bytes), middle + 1
        else:
            high = middle
    return found
