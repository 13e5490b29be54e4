"""Precision of a run, set within a block and restored after it; and the peak memory of this process."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from pinchpoint.core.errors import BadInput


def check_precision(precision: str, device: str) -> None:
    """Refuse to train in tf32 where the device has none: the run would not be the requested one."""
    if precision == "tf32" and device != "cuda":
        raise BadInput(
            f"The precision tf32 is not available on {device}, only on CUDA devices.",
            hint="Train with --device cuda, or start a new run with --precision fp32.",
        )


def usable_precision(precision: str, device: str) -> str:
    """The precision to predict with: fp32 where tf32 is not available, which is never less exact."""
    return "fp32" if precision == "tf32" and device != "cuda" else precision


@contextmanager
def matmuls(precision: str) -> Iterator[None]:
    """Within the block fp32 products are exact or, for tf32, have 10 bits of mantissa."""
    before: list[tuple[Any, str]] = []
    try:
        legacy = torch.get_float32_matmul_precision()
    except RuntimeError:  # set through torch's newer interface, which this one does not report
        legacy = "highest"
        # pyright: ignore[reportAttributeAccessIssue]
        parts: Any = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]
        before = [(part, part.fp32_precision) for part in parts]
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(legacy)
        for part, value in before:
            part.fp32_precision = value


@contextmanager
def exact_convolutions() -> Iterator[None]:
    """Within the block fp32 convolutions keep all digits: on a GPU torch uses tf32 for them by default."""
    convolutions: Any = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue]
    before = convolutions.fp32_precision
    convolutions.fp32_precision = "ieee"
    try:
        yield
    finally:
        convolutions.fp32_precision = before


def autocast(precision: str, device: str) -> AbstractContextManager[object]:
    """Autocast to bf16 or fp16 for the forward pass, where torch considers it safe; weights stay fp32."""
    halves = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return torch.autocast(device, halves.get(precision, torch.bfloat16), enabled=precision in halves)


def peak_bytes(device: str) -> int:
    """Peak allocated bytes on CUDA; on a CPU the peak resident bytes of this process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def resident_bytes() -> int:
    """Resident bytes of this process now, or its peak where the system does not report them."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_bytes("cpu")
