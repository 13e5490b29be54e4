"""XLA's own memory analysis of a step, compiled for a CUDA card that need not be installed.

It needs JAX's CUDA plugin (jax-cuda12-plugin or jax-cuda13-plugin) but no GPU. The peak is arguments
+ outputs + temporaries - aliases: XLA's GPU runtime allocates its temporaries as one block, so that is
what the allocator sees. `peak_memory_in_bytes`, where XLA reports it, is the live part of that block
and can miss what loop bodies use; it is recorded but not used.

Kernels are not autotuned, which needs the card; a tuned library call may need more or less scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.captured_arrays import HoistedStep
from pinchpoint.backends.jax.compile_targets import Capability, chip_for, target_config
from pinchpoint.core.errors import first_line

# These options are tried in order; the second set switches off a kernel generator that requires tuning.
OPTIONS: tuple[dict[str, bool | int], ...] = (
    {"xla_gpu_autotune_level": 0},
    {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False},
)


class NoAnalysis(Exception):
    """XLA cannot analyse this step for a CUDA card on this machine; the message says why."""


@dataclass(frozen=True)
class Analysis:
    """XLA's buffer assignment, in bytes."""

    arguments: int
    outputs: int
    temporaries: int
    aliases: int
    live_peak: int | None  # peak_memory_in_bytes, where XLA reports it
    target: str  # what it was compiled for
    options: dict[str, bool | int]

    @property
    def added_bytes(self) -> int:
        """What the program needs beside its arguments."""
        return self.outputs + self.temporaries - self.aliases

    @property
    def peak_bytes(self) -> int:
        return self.arguments + self.added_bytes


def is_available() -> bool:
    """Whether JAX's CUDA plugin is installed."""
    return compat.cuda_plugin() is not None


def analyse(
    step: HoistedStep,
    *,
    capability: Capability,
    memory_bytes: int,
    devices: Callable[[str], Sequence[Any]] | None = None,
) -> Analysis:
    """Compile for the card and read XLA's count, with the first of OPTIONS that compiles.

    devices: returns compile-only devices for a target config; by default those of JAX's CUDA plugin
    """
    analyses = analyse_choices(
        step, capability=capability, memory_bytes=memory_bytes, devices=devices, most=1
    )
    return analyses[0]


def analyse_choices(
    step: HoistedStep,
    *,
    capability: Capability,
    memory_bytes: int,
    devices: Callable[[str], Sequence[Any]] | None = None,
    most: int = len(OPTIONS),
) -> list[Analysis]:
    """XLA's count for each of OPTIONS that compiles, up to `most`.

    On a card, XLA times its own kernels and those of cuBLAS for every matrix product. Which are faster is not
    known here, but the two sets of options choose all of one kind.
    """
    plugin = compat.cuda_plugin()
    if plugin is None:
        raise NoAnalysis("JAX's CUDA plugin is not installed")
    config = target_config(capability, memory_bytes)
    try:
        device = (devices or compat.topology_devices)(config)[0]
    except (NotImplementedError, RuntimeError) as error:  # JaxRuntimeError is a RuntimeError
        raise NoAnalysis(f"{plugin} created no compile-only device: {first_line(error)}") from error
    try:
        lowered = step.lower(jax.sharding.SingleDeviceSharding(device))
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise NoAnalysis(f"{plugin} did not lower the step: {first_line(error)}") from error
    reason = ""
    analyses: list[Analysis] = []
    for options in OPTIONS:
        if len(analyses) == most:
            break
        try:
            compiled = lowered.compile(compiler_options=dict(options))
        except (NotImplementedError, RuntimeError) as error:
            reason = first_line(error)
            continue
        target = f"{chip_for(capability).name} by {plugin}"
        analyses.append(_read(compiled.memory_analysis(), target=target, options=options))
    if analyses:
        return analyses
    raise NoAnalysis(f"{plugin} did not compile the step: {reason}")


def compiled_bytes(compiled: Any) -> int | None:
    """Peak bytes that XLA assigned to a compiled program, or None if XLA does not report them."""
    stats = compiled.memory_analysis()
    return None if stats is None else _read(stats, target="", options={}).peak_bytes


def _read(stats: Any, *, target: str, options: dict[str, bool | int]) -> Analysis:
    if stats is None:
        raise NoAnalysis("XLA returned no memory analysis")
    return Analysis(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        aliases=stats.alias_size_in_bytes,
        live_peak=getattr(stats, "peak_memory_in_bytes", None),
        target=target,
        options=options,
    )
