"""`fake_cuda`: let a target request CUDA devices from JAX on a machine that has none.

`jax.devices("cuda")` returns the CPU's devices, so that a factory which places its arrays on the
requested device can be built. On a machine with a GPU nothing changes.

`trace_for` names the card that a target is traced for; `traced_capability` tells it to code that has kernels
for some cards only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.compile_targets import Capability, chip_for

_capability: ContextVar[Capability | None] = ContextVar("capability", default=None)
_FUNCTIONS = ("devices", "local_devices", "device_count", "local_device_count")
_CUDA = ("cuda", "gpu")


@contextmanager
def fake_cuda() -> Iterator[None]:
    originals = {name: getattr(jax, name) for name in _FUNCTIONS}
    for name, function in originals.items():
        setattr(jax, name, _with_cpu_fallback(function, position=1 if name == "local_devices" else 0))
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(jax, name, function)


def _with_cpu_fallback(function: Callable[..., Any], *, position: int) -> Callable[..., Any]:
    """Make a function return the CPU's answer for CUDA. position: the positional index of `backend`."""

    def query(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except RuntimeError:
            backend = args[position] if len(args) > position else options.get("backend")
            if backend not in _CUDA:
                raise
            args, options = args[:position], {**options, "backend": "cpu"}
            return function(*args, **options)

    return query


@contextmanager
def trace_for(capability: Capability, memory_bytes: int) -> Iterator[None]:
    """Trace for this card, also kernels of Pallas, which depend on it."""
    token = _capability.set(capability)
    chip = chip_for(capability, memory_bytes)
    try:
        with compat.abstract_card(f"NVIDIA {chip.name}", chip.cores):
            yield
    finally:
        _capability.reset(token)


def traced_capability() -> Capability | None:
    """The compute capability of the card that a forecast is made for; None outside of forecasts."""
    return _capability.get()
