"""The seam between pinchpoint and a framework: what measuring needs of torch or JAX.

A backend is chosen by name and imported late, so that no framework is needed by code that does
not measure. `auto` is resolved here, once, for all verbs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from pinchpoint.core.errors import BadInput, Missing

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Peaks:
    """Most bytes alive since `reset_peak`; None where the framework cannot know."""

    allocated_bytes: int | None
    reserved_bytes: int | None = None
    total_bytes: int | None = None  # as the driver shows it, context included


class Backend(Protocol):
    """What a framework must offer to be measured. Modules, not classes, implement it."""

    def has_cuda(self) -> bool: ...
    def seed(self, seed: int) -> None: ...
    def wait(self, device: str, result: Any = None) -> None:
        """Return only when the device has finished all work (`result`: what the step returned)."""
        ...

    def reset_peak(self, device: str) -> None: ...
    def peaks(self, device: str) -> Peaks: ...
    def cap(self, budget_bytes: int) -> None:
        """Refuse allocations beyond the budget on the GPU, context excluded."""
        ...

    def is_oom(self, error: BaseException) -> bool: ...
    def to_numpy(self, value: Any) -> Any: ...
    def account(self, run: Callable[[], Any]) -> int | None:
        """Peak bytes of the framework's CPU tensors while `run` runs, or None if unknown."""
        ...


_MODULES = {"torch": "pinchpoint.backends.torch.measurement", "jax": "pinchpoint.backends.jax.measurement"}


def backend(framework: str) -> Backend:
    """The backend for a framework, or an error that says how to install it."""
    try:
        return import_module(_MODULES[framework])  # type: ignore[return-value]
    except ModuleNotFoundError as error:
        raise Missing(
            f"{framework} is not installed",
            hint=f"pip install 'pinchpoint[{framework}]' (CPU builds are enough to predict)",
        ) from error


def resolve_device(asked: str, used: Backend) -> str:
    """`auto` becomes cuda when there is one; `cuda` without one is an error."""
    if asked not in DEVICES:
        raise BadInput(f"unknown device {asked!r}", hint=f"use one of: {', '.join(DEVICES)}")
    if asked == "auto":
        return "cuda" if used.has_cuda() else "cpu"
    if asked == "cuda" and not used.has_cuda():
        raise Missing(
            "no CUDA device is visible here",
            hint="use --device cpu, or run where there is a GPU; forecasts (pinchpoint predict, study --on fake) need none",
        )
    return asked
