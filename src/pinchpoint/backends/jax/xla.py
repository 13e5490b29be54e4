"""XLA's own memory analysis of a step, compiled for a CUDA card that need not be installed.

It needs JAX's CUDA plugin (jax-cuda12-plugin or jax-cuda13-plugin) but no GPU. The peak is arguments
+ outputs + temporaries - aliases: XLA's GPU runtime allocates its temporaries as one block, so that is
what the allocator sees. `peak_memory_in_bytes`, where XLA reports it, is the live part of that block
and can miss what loop bodies use; it is recorded but not used.

Kernels are not timed, which needs the card. From JAX 0.11 on XLA compiles with the kernels that the card is
expected to choose; see `autotuning`. Before, all matrix products are compiled for XLA's own kernels and once
more for cuBLAS.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from pinchpoint.backends.jax import autotuning, compat
from pinchpoint.backends.jax.captured_arrays import HoistedStep
from pinchpoint.backends.jax.compile_targets import (
    Capability,
    Chip,
    chip_for,
    matmul_workspace,
    target_config,
)
from pinchpoint.backends.jax.sharded.partitioning import GpuLowering
from pinchpoint.core.errors import first_line

Options = dict[str, bool | int | str]

# Where the tuned products are not known, both sets of options are tried; the second set switches off a kernel
# generator that requires tuning.
OPTIONS: tuple[Options, ...] = (
    {"xla_gpu_autotune_level": 0},
    {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False},
)
# Compilations, with cuBLAS for more and more products that have no kernel of XLA's own; in the last, for all.
_ATTEMPTS = 8


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
    options: Options

    @property
    def added_bytes(self) -> int:
        """What the program needs beside its arguments."""
        return self.outputs + self.temporaries - self.aliases

    @property
    def peak_bytes(self) -> int:
        return self.arguments + self.added_bytes


@dataclass(frozen=True)
class Analyses:
    """XLA's count with the kernels to expect, and with others if these are not known.

    tuning: memory for tuning its kernels, usual and most; None if they are not known.
    """

    expected: Analysis
    others: tuple[Analysis, ...] = ()
    tuning: tuple[int, int] | None = None

    @property
    def added_bytes(self) -> tuple[int, ...]:
        """What the program needs beside its arguments, the expected first."""
        return tuple(analysis.added_bytes for analysis in (self.expected, *self.others))


def is_available() -> bool:
    """Whether JAX's CUDA plugin is installed."""
    return compat.cuda_plugin() is not None


def analyse(
    step: HoistedStep,
    *,
    capability: Capability,
    memory_bytes: int,
    devices: Callable[[str], Sequence[Any]] | None = None,
) -> Analyses:
    """Compile for the card and read XLA's count.

    devices: returns compile-only devices for a target config; by default those of JAX's CUDA plugin
    """

    def lower(targets: Sequence[Any]) -> Any:
        return step.lower(jax.sharding.SingleDeviceSharding(targets[0]))

    return _analyse(lower, capability, memory_bytes, devices or compat.topology_devices)


def analyse_partition(lowering: GpuLowering, *, capability: Capability, memory_bytes: int) -> Analyses:
    """The same for a program over several cards: XLA's count for each of them."""

    def devices(config: str) -> Sequence[Any]:
        return compat.topology_devices(config, lowering.count)

    return _analyse(lowering.for_devices, capability, memory_bytes, devices)


def _analyse(
    lower: Callable[[Sequence[Any]], Any],
    capability: Capability,
    memory_bytes: int,
    devices: Callable[[str], Sequence[Any]],
) -> Analyses:
    plugin = compat.cuda_plugin()
    if plugin is None:
        raise NoAnalysis("JAX's CUDA plugin is not installed")
    config = target_config(capability, memory_bytes)
    try:
        targets = devices(config)
    except (NotImplementedError, RuntimeError) as error:  # JaxRuntimeError is a RuntimeError
        raise NoAnalysis(f"{plugin} created no compile-only device: {first_line(error)}") from error
    try:
        lowered = lower(targets)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise NoAnalysis(f"{plugin} did not lower the step: {first_line(error)}") from error
    chip = chip_for(capability, memory_bytes)
    target = f"{chip.name} by {plugin}"
    with compat.silent_compiler():
        return _with_expected_kernels(lowered, chip, target) or _with_either_kernels(lowered, plugin, target)


def _with_expected_kernels(lowered: Any, chip: Chip, target: str) -> Analyses | None:
    """Compile with the kernels that the card is expected to choose; None if XLA shows no products."""
    workspace = matmul_workspace(chip.capability)
    with tempfile.TemporaryDirectory(prefix="pinchpoint-xla-") as path:
        folder = Path(path)
        options = autotuning.asking_options(folder)
        analysis = None
        with contextlib.suppress(NotImplementedError, RuntimeError):  # if there are products to tune
            analysis = _compile(lowered, options, target)
        fusions = autotuning.read_fusions(folder)
    if fusions is None:
        return None
    tuning = fusions.tuning_bytes(workspace)
    if analysis is not None:
        return Analyses(analysis, tuning=tuning)
    chosen = [product for product in fusions.products if product.prefers_cublas]
    for attempt in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix="pinchpoint-xla-") as path:
            autotuning.write_choices(Path(path), chosen, chip, workspace_bytes=workspace)
            try:
                analysis = _compile(lowered, autotuning.choice_options(Path(path)), target)
                return Analyses(analysis, tuning=tuning)
            except (NotImplementedError, RuntimeError) as error:
                named = autotuning.without_kernel(fusions.products, str(error))
        rest = [product for product in fusions.products if product not in chosen]
        if not rest:
            break
        missing = [product for product in named if product not in chosen]
        chosen += missing if missing and attempt < _ATTEMPTS - 2 else rest
    return None


def _with_either_kernels(lowered: Any, plugin: str, target: str) -> Analyses:
    """Compile with XLA's own kernels and with cuBLAS's; the one that needs more is expected."""
    analyses: list[Analysis] = []
    reason = ""
    for options in OPTIONS:
        try:
            analyses.append(_compile(lowered, options, target))
        except (NotImplementedError, RuntimeError) as error:
            reason = first_line(error)
    if not analyses:
        raise NoAnalysis(f"{plugin} did not compile the step: {reason}")
    largest, *others = sorted(analyses, key=lambda analysis: -analysis.added_bytes)
    return Analyses(largest, tuple(others))


def _compile(lowered: Any, options: Options, target: str) -> Analysis:
    compiled = lowered.compile(compiler_options=dict(options))
    settings: Options = {name: value for name, value in options.items() if not isinstance(value, str)}
    return _read(compiled.memory_analysis(), target=target, options=settings)


def compiled_bytes(compiled: Any) -> int | None:
    """Peak bytes that XLA assigned to a compiled program, or None if XLA does not report them."""
    stats = compiled.memory_analysis()
    return None if stats is None else _read(stats, target="", options={}).peak_bytes


def _read(stats: Any, *, target: str, options: Options) -> Analysis:
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
