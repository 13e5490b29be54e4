"""Target configurations with which XLA compiles for a CUDA card that is not installed.

XLA reads a GpuTargetConfigProto in protobuf text form (openxla.org, "XLA Tooling", deviceless
compilation). The numbers are CUDA's device properties of typical cards; the memory size is that of the
requested card. XLA fuses by cost, so bandwidth and cache decide which arrays exist at all: with the
properties of an H100, a program needed 21 % less than on an H200. A card that is not listed is compiled for
as the listed one of its capability, or of the nearest older one, that is nearest in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

Capability = tuple[int, int]


@dataclass(frozen=True)
class Chip:
    """Device properties of a typical card. memory_gb: its memory, by which cards of a capability differ."""

    name: str
    capability: Capability
    cores: int  # multiprocessors
    lanes: int  # 32-bit floating-point units per multiprocessor
    threads: int  # per multiprocessor
    shared: int  # bytes of shared memory per multiprocessor
    shared_optin: int  # the most that one block can request
    l2: int
    bandwidth: int  # bytes per second
    clock_ghz: float
    memory_gb: int


CHIPS: tuple[Chip, ...] = (
    Chip("V100", (7, 0), 80, 64, 2048, 98304, 98304, 6 << 20, 898_000_000_000, 1.53, 32),
    Chip("T4", (7, 5), 40, 64, 1024, 65536, 65536, 4 << 20, 320_000_000_000, 1.59, 16),
    Chip("A100 40 GB", (8, 0), 108, 64, 2048, 167936, 166912, 40 << 20, 1_555_000_000_000, 1.41, 40),
    Chip("A100", (8, 0), 108, 64, 2048, 167936, 166912, 40 << 20, 2_039_000_000_000, 1.41, 80),
    Chip("RTX 3060", (8, 6), 28, 128, 1536, 102400, 101376, 2_359_296, 360_000_000_000, 1.777, 12),
    Chip("RTX 3090", (8, 6), 82, 128, 1536, 102400, 101376, 6 << 20, 936_000_000_000, 1.695, 24),
    Chip("RTX 4060", (8, 9), 24, 128, 1536, 102400, 101376, 24 << 20, 272_000_000_000, 2.46, 8),
    Chip("RTX 4090", (8, 9), 128, 128, 1536, 102400, 101376, 72 << 20, 1_008_000_000_000, 2.52, 24),
    Chip("H100", (9, 0), 132, 128, 2048, 233472, 232448, 50 << 20, 3_352_000_000_000, 1.98, 80),
    Chip("H200", (9, 0), 132, 128, 2048, 233472, 232448, 60 << 20, 4_814_304_000_000, 1.98, 141),
    Chip("B200", (10, 0), 148, 128, 2048, 233472, 232448, 126 << 20, 8_000_000_000_000, 1.965, 180),
    Chip("RTX 5070", (12, 0), 48, 128, 1536, 102400, 101376, 48 << 20, 672_000_000_000, 2.512, 12),
    Chip("RTX 5090", (12, 0), 170, 128, 1536, 102400, 101376, 96 << 20, 1_792_000_000_000, 2.407, 32),
)


def chip_for(capability: Capability, memory_bytes: int) -> Chip:
    """The chip nearest in memory of this capability, or of the nearest older one, or of the oldest."""
    older = [chip.capability for chip in CHIPS if chip.capability <= capability]
    listed = max(older, default=CHIPS[0].capability)
    chips = [chip for chip in CHIPS if chip.capability == listed]
    return min(chips, key=lambda chip: abs(chip.memory_gb - memory_bytes / 1e9))


def target_config(capability: Capability, memory_bytes: int) -> str:
    """The GpuTargetConfigProto text of a card with this capability and memory."""
    chip = chip_for(capability, memory_bytes)
    major, minor = chip.capability
    return f"""gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {chip.shared}
  threads_per_core_limit: {chip.threads}
  core_count: {chip.cores}
  fpus_per_core: {chip.lanes}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {chip.bandwidth}
  l2_cache_size: {chip.l2}
  clock_rate_ghz: {chip.clock_ghz}
  device_memory_size: {memory_bytes}
  shared_memory_per_block_optin: {chip.shared_optin}
  cuda_compute_capability {{
    major: {major}
    minor: {minor}
  }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{
  major: 9
  minor: 10
  patch: 0
}}
runtime_version {{
  major: {13 if major >= 8 else 12}
  minor: {0 if major >= 8 else 8}
  patch: 0
}}
device_description_str: "NVIDIA {chip.name}"
"""


def matmul_workspace(capability: Capability) -> int:
    """Bytes of scratch memory that XLA gives a cuBLAS product: 32 MiB from Hopper on, 4 MiB before."""
    return (32 << 20) if capability >= (9, 0) else (4 << 20)
