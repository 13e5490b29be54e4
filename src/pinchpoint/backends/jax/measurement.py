"""Measurement of JAX steps on this machine's device: implements `backends.base.Backend`.

Values that JAX does not report are None. JAX has no peak for CPU arrays, and it cannot reset the GPU's
peak, so a measured point needs a fresh process and includes what compiling and autotuning used.
`reserved` is meaningful only if JAX does not allocate 75 % of the card at the start.
"""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pinchpoint.backends.base import Peaks
from pinchpoint.backends.jax import compat, xla
from pinchpoint.backends.jax.captured_arrays import hoist
from pinchpoint.backends.jax.tracing import trace
from pinchpoint.core.errors import BadInput, CannotFake, Missing

_FRACTION = "XLA_CLIENT_MEM_FRACTION"
_OLD_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"


def has_cuda() -> bool:
    return _gpu() is not None


def seed(seed: int) -> None:
    """Seed the generators that a factory may use besides JAX's explicit random keys."""
    random.seed(seed)
    np.random.seed(seed)


def wait(device: str, result: Any = None) -> None:
    """Wait for `result`; without one, wait for a small computation queued behind all other work."""
    if result is None:
        result = jax.device_put(np.zeros(1, np.float32), jax.devices(device)[0]) + 1
    jax.block_until_ready(result)
    jax.effects_barrier()


def reset_peak(device: str) -> None:
    """Does nothing: JAX cannot reset its peak, and `peaks` counts from the start of the process."""


def peaks(device: str) -> Peaks:
    """Peak bytes since the process started, from JAX's allocator; None on a CPU."""
    gpu = _gpu() if device == "cuda" else None
    stats = (gpu.memory_stats() if gpu is not None else None) or {}
    pool = (
        stats.get("peak_pool_bytes") if os.environ.get(_PREALLOCATE, "").lower() in ("false", "0") else None
    )
    return Peaks(stats.get("peak_bytes_in_use"), pool)


def cap(budget_bytes: int) -> None:
    """Limit JAX to this many bytes of the card. Call it before JAX first uses the card."""
    if compat.backends_are_initialized():
        raise BadInput(
            "The budget cannot be set because JAX has already allocated its memory.",
            hint="Set the budget in a fresh process, before the target is built.",
        )
    total = _card_bytes()
    os.environ.pop(_OLD_FRACTION, None)
    os.environ[_FRACTION] = f"{min(1.0, budget_bytes / total):.6f}"
    os.environ[_PREALLOCATE] = "false"


def is_oom(error: BaseException) -> bool:
    return isinstance(error, MemoryError | RuntimeError) and any(
        sign in str(error) for sign in ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory")
    )


def to_numpy(value: Any) -> Any:
    return np.asarray(jax.device_get(value))


def account(run: Callable[[], Any]) -> int | None:
    """Peak bytes of the arrays of `run` on the CPU: arguments, outputs and temporaries as XLA assigned them.

    None for a run that cannot be traced as one program, for which JAX reports nothing.
    """
    try:
        traced_step = trace(run)
    except CannotFake:
        return None
    cpu = jax.devices("cpu")[0]
    return xla.compiled_bytes(hoist(traced_step).lower(jax.sharding.SingleDeviceSharding(cpu)).compile())


def _gpu() -> Any:
    try:
        return jax.local_devices(backend="cuda")[0]
    except RuntimeError:  # there is no plugin or no card, or JAX_PLATFORMS excludes it
        return None


def _card_bytes() -> int:
    """Total bytes of the first card, read from the driver so that JAX need not start."""
    total = ctypes.c_size_t()
    device = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Missing(
            "The CUDA driver library libcuda.so.1 is not installed.",
            hint="Measure on a machine with a GPU, or use --on fake.",
        ) from error
    for status in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), 0),
        driver.cuDeviceTotalMem_v2(ctypes.byref(total), device),
    ):
        if status != 0:
            raise Missing(
                f"The CUDA driver returned error {status}.", hint="Check nvidia-smi, or use --on fake."
            )
    return total.value
