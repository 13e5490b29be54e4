"""What differs between versions of torch: the choice of an attention kernel, and the workspaces of cuBLAS.

Read from the source of each release. Attention: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and
sdp_utils_cpp.h beside its folder; workspaces: aten/src/ATen/cuda/CublasHandlePool.cpp and CUDABlas.cpp; the
variables of the allocator: c10/cuda/CUDAAllocatorConfig.h. For 2.13 to 2.15 the headers and the messages in
the libraries of the wheels were compared with a later state of the source.

The rules and constants of the allocator itself are the same in all of these versions and are in
forecasting/allocator.py (c10/cuda/CUDACachingAllocator.cpp; since 2.10 in c10/core/AllocatorConfig.h).
Optimizers are torch's own Python, which runs as it is installed. This module does not import torch.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from importlib import metadata


@dataclass(frozen=True)
class Rules:
    """The rules of one version of torch. Numbers of cuDNN are those of `torch.backends.cudnn.version()`."""

    cudnn: int  # the one that the wheel on PyPI for Linux (x86-64) requires
    newest_fused: tuple[int, int]  # fused attention kernels refuse GPUs with a higher capability
    cudnn_first: int | None = None  # the least cuDNN whose attention is tried first; None: it is tried last
    cudnn_first_minors: tuple[int, ...] | None = (0,)  # on GPUs 9.x and 10.x with these minors; None: all
    cudnn_wide: int | None = None  # the least cuDNN with heads up to 256 wide on Hopper; before: up to 128
    cudnn_wide_majors: tuple[int, ...] = (9,)
    cudnn_192_majors: tuple[int, ...] = ()  # where keys of 192 and values of 128 are accepted as well
    cudnn_backward_widths: bool = False  # training only with heads of at most 128, 192/128, or 256
    cudnn_single_query: bool = True  # accepts one query without dropout
    cudnn_dropout_steps: bool = False  # refuses a dropout that is not a multiple of 1/16
    cudnn_most_heads: int | None = None  # the most batches and the most heads
    flash_most_heads: int | None = None
    groups_in_efficient: bool = (
        False  # fused kernels take one head of keys for all; the efficient one, groups
    )
    unbatched: bool = False  # fused kernels take inputs of three dimensions
    large_workspace_majors: tuple[int, ...] = (9,)  # GPUs with 32 MiB of cuBLAS workspace instead of 8.1 MiB
    # cuBLASLt has 1 MiB of its own, until 2.8 in each call (it is assumed to stay, at most 2 MiB more), or
    # shares the workspace of cuBLAS.
    shares_workspace: bool = False
    reads_alloc_conf: bool = False  # PYTORCH_ALLOC_CONF, if PYTORCH_CUDA_ALLOC_CONF is not set


_2_6 = Rules(cudnn=90100, newest_fused=(9, 0), cudnn_single_query=False)
_2_7 = replace(_2_6, cudnn=90501, newest_fused=(12, 0))
_2_8 = replace(_2_7, cudnn=91002, newest_fused=(12, 1), cudnn_wide=90501)
_2_9 = replace(_2_8, cudnn_first=90900, cudnn_wide=91000, cudnn_single_query=True)
_2_10 = replace(_2_9, cudnn_first=91501, cudnn_first_minors=(0, 3), reads_alloc_conf=True)
_2_11 = replace(_2_10, cudnn=91900, cudnn_192_majors=(10,))
_2_12 = replace(
    _2_11,
    cudnn=92000,
    cudnn_dropout_steps=True,
    large_workspace_majors=(9, 10, 12),
    shares_workspace=True,
)
_2_13 = replace(_2_12, cudnn_first_minors=None, cudnn_most_heads=65535)
_2_14 = replace(
    _2_13,
    cudnn=92400,
    cudnn_wide=92201,
    cudnn_wide_majors=(9, 10),
    cudnn_192_majors=(9, 10),
    cudnn_backward_widths=True,
    groups_in_efficient=True,
    unbatched=True,
)
_2_15 = replace(_2_14, cudnn=92600, flash_most_heads=65535)

TABLE: dict[tuple[int, int], Rules] = {
    (2, 6): _2_6,
    (2, 7): _2_7,
    (2, 8): _2_8,
    (2, 9): _2_9,
    (2, 10): _2_10,
    (2, 11): _2_11,
    (2, 12): _2_12,
    (2, 13): _2_13,
    (2, 14): _2_14,
    (2, 15): _2_15,
}
OLDEST, NEWEST = min(TABLE), max(TABLE)


def installed() -> str:
    """The version of torch in this environment; the newest known one if there is none."""
    module = sys.modules.get("torch")
    if module is not None and hasattr(module, "__version__"):
        return str(module.__version__)
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ".".join(map(str, NEWEST))


def number(version: str) -> tuple[int, int]:
    """The first two numbers of a version, such as (2, 13) of 2.13.0+cpu."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else NEWEST


def rules(version: str | None = None) -> Rules:
    """The rules of a version, by default of the installed one; those of the nearest one if it is unknown."""
    return TABLE[min(max(number(version or installed()), OLDEST), NEWEST)]


def is_too_old(version: str) -> bool:
    return number(version) < OLDEST


def notes(version: str | None = None) -> tuple[str, ...]:
    """A note if the version is newer than all known ones."""
    version = version or installed()
    if number(version) <= NEWEST:
        return ()
    oldest, newest = (".".join(map(str, pair)) for pair in (OLDEST, NEWEST))
    return (
        f"torch {version} is newer than the versions that are known ({oldest} to {newest}): its choice of"
        f" attention kernels and its workspaces are assumed to be those of {newest}",
    )
