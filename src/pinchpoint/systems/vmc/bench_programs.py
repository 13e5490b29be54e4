"""Compiled programs as contenders of a bench: built and run on the device, with the peak that XLA assigns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax

from pinchpoint.backends.jax import xla
from pinchpoint.systems.common.bench.cases import Contender, Run, Setup


@dataclass
class Program:
    """A compiled program with its arguments.

    carries: whether the first result is the argument of the next call.
    """

    compiled: Any
    args: tuple[Any, ...]
    carries: bool = False

    @property
    def peak_bytes(self) -> int | None:
        return xla.compiled_bytes(self.compiled)

    @property
    def operations(self) -> float | None:
        costs = self.compiled.cost_analysis() or {}
        return costs.get("flops")

    def __call__(self) -> Any:
        result = self.compiled(*self.args)
        if self.carries:
            self.args = (result[0],)
        return result


def program(function: Any, *args: Any, carries: bool = False) -> Program:
    """Compile a jitted function for its arguments. carries: see `Program`."""
    return Program(function.lower(*args).compile(), args, carries)


def contender_of(
    setup: Setup,
    name: str,
    build: Callable[[], Run],
    role: Any = "variant",
    *,
    full_precision: bool = False,
    **options: Any,
) -> Contender:
    """Return a contender that is built, and runs, on the device; its peak is that of its program.

    full_precision: compute products in float32 instead of TF32, JAX's default on a GPU.
    """
    programs: list[Run] = []
    precision = "highest" if full_precision else "default"

    def make() -> Run:
        with on_device(setup), jax.default_matmul_precision(precision):
            programs[:] = [build()]
        if is_default(setup) and (isinstance(programs[0], Program) or not full_precision):
            return programs[0]

        def run() -> Any:
            with on_device(setup), jax.default_matmul_precision(precision):
                return programs[0]()

        return run

    def peak() -> int | None:
        return programs[0].peak_bytes if isinstance(programs[0], Program) else None

    return Contender(name, make, role, peak=peak, **options)


def is_default(setup: Setup) -> bool:
    """Return whether JAX uses the device of the setup without being asked."""
    return (jax.default_backend() == "cpu") == (setup.device == "cpu")


def on_device(setup: Setup) -> AbstractContextManager[Any]:
    """Return a context in which JAX computes on the device of the setup."""
    if is_default(setup):
        return nullcontext()
    return jax.default_device(jax.local_devices(backend="gpu" if setup.device == "cuda" else "cpu")[0])
