"""The `Backend` interface: what pinchpoint needs from PyTorch or JAX to measure a step.

A backend is chosen by name and imported on first use, so code that does not measure needs no
framework. `resolve_device` turns `auto` into a device for every command.
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
    """Peaks since `reset_peak`; None where the framework does not report them."""

    allocated_bytes: int | None
    reserved_bytes: int | None = None
    total_bytes: int | None = None  # as the driver shows it, context included


class Backend(Protocol):
    """What a framework must provide to be measured. It is implemented by modules, not by classes."""

    def has_cuda(self) -> bool: ...
    def seed(self, seed: int) -> None: ...
    def wait(self, device: str, result: Any = None) -> None:
        """Wait until the device has finished all work. result: what the step returned."""
        ...

    def reset_peak(self, device: str) -> None: ...
    def peaks(self, device: str) -> Peaks: ...
    def cap(self, budget_bytes: int) -> None:
        """Limit allocations on the GPU to the budget, not counting the CUDA context."""
        ...

    def is_oom(self, error: BaseException) -> bool: ...
    def to_numpy(self, value: Any) -> Any: ...
    def account(self, run: Callable[[], Any]) -> int | None:
        """Peak bytes of the framework's CPU tensors during `run()`, or None if unknown."""
        ...


_MODULES = {"torch": "pinchpoint.backends.torch.measurement", "jax": "pinchpoint.backends.jax.measurement"}


def backend(framework: str) -> Backend:
    """Import and return the backend of a framework; raises `Missing` if it is not installed."""
    try:
        return import_module(_MODULES[framework])  # type: ignore[return-value]
    except ModuleNotFoundError as error:
        raise Missing(
            f"The package {framework!r} is not installed.",
            hint=f"Run pip install 'pinchpoint[{framework}]'; a CPU build is enough to predict.",
        ) from error


def resolve_device(device: str, framework: Backend) -> str:
    """Turn `auto` into "cuda" if a CUDA device is available, else "cpu"; refuse "cuda" without a device."""
    if device not in DEVICES:
        raise BadInput(f"The device {device!r} is unknown.", hint=f"Use one of: {', '.join(DEVICES)}.")
    if device == "auto":
        return "cuda" if framework.has_cuda() else "cpu"
    if device == "cuda" and not framework.has_cuda():
        raise Missing(
            "No CUDA device is available on this machine.",
            hint="Use --device cpu, or run on a machine with a GPU. "
            "Forecasts (pinchpoint predict, study --on fake) need no GPU.",
        )
    return device
