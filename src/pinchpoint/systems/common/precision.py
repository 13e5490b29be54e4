"""Precision of a run, set inside a block and put back after it; and the peak of this process."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from pinchpoint.core.errors import BadInput


def check_precision(precision: str, device: str) -> None:
    """Refuse to train in tf32 where there is none: the run would not be the one that was asked for."""
    if precision == "tf32" and device != "cuda":
        raise BadInput(
            f"tf32 on {device}",
            hint="tf32 is a mode of CUDA cards: train with --device cuda, or a new run with --precision fp32",
        )


def usable(precision: str, device: str) -> str:
    """The precision to predict with: where there is no tf32, fp32, which is never less exact."""
    return "fp32" if precision == "tf32" and device != "cuda" else precision


@contextmanager
def matmuls(precision: str) -> Iterator[None]:
    """fp32 products exact or, for tf32, with 10 bits of mantissa."""
    before: list[tuple[Any, str]] = []
    try:
        legacy = torch.get_float32_matmul_precision()
    except RuntimeError:  # set through torch's newer interface, of which this one does not tell
        legacy = "highest"
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
    """Those of fp32 with all its digits: on a GPU torch allows them tf32 unless it is told otherwise."""
    convolutions: Any = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue]
    before = convolutions.fp32_precision
    convolutions.fp32_precision = "ieee"
    try:
        yield
    finally:
        convolutions.fp32_precision = before


def autocast(precision: str, device: str) -> AbstractContextManager[object]:
    """bf16 or fp16 where torch deems it safe, for the forward pass; weights stay fp32."""
    halves = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return torch.autocast(device, halves.get(precision, torch.bfloat16), enabled=precision in halves)


def peak_bytes(device: str) -> int:
    """Peak allocated on CUDA; on a CPU the most this process was ever resident with."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def resident_bytes() -> int:
    """What this process is resident with now, or where the system does not say, its most."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_bytes("cpu")
