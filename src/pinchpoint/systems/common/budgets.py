"""Memory budgets of a training step: parse them, count what a step needs, and refuse what does not fit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pinchpoint.core.errors import BadInput, DoesNotFit
from pinchpoint.core.host_memory import resident_bytes, return_freed_memory
from pinchpoint.core.records import Forecast
from pinchpoint.core.units import show_bytes
from pinchpoint.forecasting.cards import Card, budget_card, nameless, of_capability

RESERVED = 1.1  # what CUDA's caching allocator reserves, relative to the tensors
# By how much a process grows in training on a CPU, relative to the tensors: where malloc returns large blocks
# to the system, and where it keeps them. The first step also loads libraries, and each further thread needs a
# stack and buffers.
KEPT, KEPT_BY_DEFAULT = 1.15, 2.7
FIRST_STEP_BYTES = 24 * 2**20
THREAD_BYTES = 4 * 2**20
_NOT_ABOVE_0 = re.compile(r"-\s*\.?[0-9].*|0*\.?0+\s*[a-z]*", re.IGNORECASE)


@dataclass(frozen=True)
class BudgetChoice:
    """What a budget allows. chunk: points processed together; None if a step is not split into chunks."""

    chunk: int | None
    predicted_bytes: int
    budget_bytes: int
    live_bytes: int = 0  # of the tensors at the predicted peak, if known


def budget_of(budget: str | int) -> Card:
    """Return the card of that name; for a number of bytes, a nameless card with that much memory."""
    if _NOT_ABOVE_0.fullmatch(str(budget).strip()):
        raise BadInput(
            f"--budget {budget} is not possible: a budget must be above 0.",
            hint="Give bytes, such as 8GiB, or the name of a card.",
        )
    return budget_card(budget)


def as_installed(within: Card) -> Card:
    """Return a card with the memory of this one and the kernels of the installed GPU, if there is one.

    Some kernels that save memory run on some compute capabilities only.
    """
    import torch

    if not torch.cuda.is_available():
        return within
    installed = of_capability(torch.cuda.get_device_capability())
    if installed.capability == within.capability:
        return within
    memory_bytes = within.memory_bytes
    return nameless(f"{memory_bytes}B like {installed.name}", memory_bytes, like=installed)


def refuse_both(budget: str | int | None, chunk: int | None) -> None:
    """Refuse a chunk beside a budget, which chooses the chunk: neither may be dropped silently."""
    if budget is not None and chunk is not None:
        raise BadInput(
            f"--budget {budget} cannot be combined with a chunk of {chunk}: a budget chooses the chunk.",
            hint="Give only one of them.",
        )


def begin_budget(budget: str | int | None, device: str, *, resume: bool) -> None:
    """Refuse a budget below what is in use before the first step, without predicting a step.

    That is the memory of this process on a CPU, and the context of CUDA on a GPU. A resumed run may have no
    steps left, which any budget allows. On a CPU, memory that is freed is given back from now on.
    """
    if budget is None:
        return
    if device == "cpu":
        return_freed_memory()
    if resume:
        return
    within = budget_of(budget)
    in_use_bytes = resident_bytes() if device == "cpu" else within.context_bytes
    if within.memory_bytes < in_use_bytes:
        user = "This process already uses" if device == "cpu" else "The CUDA context alone takes"
        in_use = show_bytes(in_use_bytes)
        raise DoesNotFit(
            f"{user} {in_use} before the first step, but the budget is {show_bytes(within.memory_bytes)}.",
            hint=f"Raise --budget well above {in_use}, or leave it out: the summary of a run has its peak.",
            need_bytes=in_use_bytes,
        )


def cpu_bytes(tensor_bytes: float, resident_bytes: int) -> int:
    """Return what a process will hold that takes PyTorch steps with these tensors on a CPU.

    resident_bytes: of this process before its first step. What malloc keeps and what the first step loads are
    added, so that the peak stays below the result.
    """
    import torch

    threads = THREAD_BYTES * (torch.get_num_threads() - 1)
    kept = KEPT if return_freed_memory() else KEPT_BY_DEFAULT
    return resident_bytes + FIRST_STEP_BYTES + threads + round(kept * tensor_bytes)


def cuda_bytes(tensor_bytes: float, card: Card, *, reserved: float = RESERVED) -> int:
    """Return what a step with these tensors needs on a card, with the allocator's reserve and the context.

    reserved: what the caching allocator reserves, relative to the tensors.
    """
    return round(tensor_bytes * reserved) + card.cublas_workspace_bytes + card.context_high_bytes


def forecast_bytes(forecast: Forecast) -> int:
    """Return the upper end of a forecast in all: with the allocator's reserve, the context and the margin."""
    return forecast.total_bytes + uncertain_bytes(forecast) + forecast.margin_bytes


def uncertain_bytes(forecast: Forecast) -> int:
    """Return how far the upper end of a forecast is above its peak."""
    return max(0, (forecast.high_bytes or 0) - forecast.peak_allocated_bytes)


def does_not_fit(
    need_bytes: int, budget_bytes: int, *, how: str, otherwise: str = "", hint: str = ""
) -> DoesNotFit:
    """Return the error for a smallest step that exceeds the budget.

    how: what needs that much, such as " in chunks of 64 edges"; otherwise: what to do instead of raising the
    budget; hint: for another hint than to raise it.
    """
    short = show_bytes(need_bytes - budget_bytes)
    return DoesNotFit(
        f"A step needs {show_bytes(need_bytes)}{how}, but the budget is {show_bytes(budget_bytes)}.",
        hint=hint or f"Raise --budget by at least {short}, or {otherwise}.",
        need_bytes=need_bytes,
    )
