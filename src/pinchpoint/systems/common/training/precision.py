"""Precision of a run, set within a block and restored after it."""

from __future__ import annotations

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
        backends: Any = torch.backends  # the stubs lack `mkldnn`
        before = [(part, part.fp32_precision) for part in (backends.cuda.matmul, backends.mkldnn.matmul)]
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
    backends: Any = torch.backends  # the stubs lack `cudnn.conv`
    convolutions = backends.cudnn.conv
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
