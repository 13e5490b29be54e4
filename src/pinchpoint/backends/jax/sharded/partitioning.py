"""`partition`: let XLA partition a program over N devices, and read what one device runs.

The program is compiled for N devices of the CPU, which nothing runs on. XLA propagates shardings and inserts
collectives before it does anything that depends on the platform, so the partitioned program and the shardings
of its outputs are those of N GPUs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.sharded.hlo_program import PartitionedProgram, read_hlo
from pinchpoint.backends.recording.source_lines import is_user_file

# The passes before machine code are all that is needed.
_OPTIONS: dict[str, bool | int | str] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_dump_hlo_as_text": True,
    "xla_dump_hlo_pass_re": "spmd-partitioning",
}
_FASTER: dict[str, bool | int | str] = {"xla_cpu_use_fusion_emitters": False}  # until JAX 0.10
Argument = tuple[Any, Any, bool, bool]  # abstract value, sharding, is committed, is a numpy array


@dataclass(frozen=True)
class Partition:
    """A program over several devices. hlo: what each of them runs; in_shardings: of the arguments it uses."""

    devices: tuple[int, ...]
    in_shardings: dict[int, Any]
    out_shardings: tuple[Any, ...]
    hlo: PartitionedProgram
    lowering: GpuLowering


class GpuLowering:
    """A program over several GPUs that need not be installed; compiled like `jax.stages.Lowered`."""

    def __init__(self, args: Sequence[Argument], params: dict[str, Any], count: int) -> None:
        self._args, self._params, self.count = args, params, count
        self._devices: Sequence[Any] = ()

    def for_devices(self, devices: Sequence[Any]) -> GpuLowering:
        """Choose the compile-only devices that it is compiled for."""
        self._devices = devices
        return self

    def compile(self, compiler_options: dict[str, Any]) -> Any:
        computation = compat.lower_program(self._args, self._params, platform="cuda")
        return compat.compile_for(computation, self._devices, compiler_options)


def partition(args: Sequence[Argument], params: dict[str, Any]) -> Partition:
    """Partition a call of a compiled function. params: those of its `jit` primitive."""
    computation = compat.lower_program(args, params)
    with tempfile.TemporaryDirectory(prefix="pinchpoint-xla-") as folder, compat.silent_compiler():
        executable = _compile(computation, folder)
        files = sorted(Path(folder).glob("*.after_spmd-partitioning.*"))
        text = files[-1].read_text(encoding="utf-8")
    devices = tuple(device.id for device in compat.program_devices(computation))
    return Partition(
        devices,
        compat.input_shardings(computation, executable),
        compat.output_shardings(executable),
        read_hlo(text, is_user_file=is_user_file),
        GpuLowering(args, params, max(devices) + 1),
    )


def _compile(computation: Any, folder: str) -> Any:
    options = {**_OPTIONS, "xla_dump_to": folder}
    try:
        return computation.compile(compiler_options={**options, **_FASTER})
    except RuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return computation.compile(compiler_options=options)
