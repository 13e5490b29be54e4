"""Where Triton kernels can run: on a GPU, or on the CPU by Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pinchpoint.kit.edges import edge_ops, weight_ops

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
WHERE = [
    pytest.param(
        "interpreted",
        marks=pytest.mark.skipif(not INTERPRETED, reason="needs Triton with TRITON_INTERPRET=1"),
    ),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


def use_kernels(monkeypatch: pytest.MonkeyPatch, where: str, *, capability: tuple[int, int] = (9, 0)) -> str:
    """The device on which the kernels run: a GPU, or the CPU, whose tensors they then take too.

    capability: the compute capability whose plans they take on the CPU.
    """
    if where == "cuda":
        return "cuda"
    for module in (edge_ops, weight_ops):
        monkeypatch.setattr(module, "own_kernels", lambda _: True)
    properties = SimpleNamespace(multi_processor_count=2, total_memory=2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    _multiply_bf16(monkeypatch)
    return "cpu"


def _multiply_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter multiply bf16 numbers, which are integers of their bits to it."""
    import triton.language as tl  # pyright: ignore[reportMissingImports]  # ty: ignore
    from triton.runtime import interpreter  # pyright: ignore[reportMissingImports]  # ty: ignore

    def numbers(handle: Any) -> Any:
        is_bf16 = handle.dtype.scalar == tl.bfloat16
        return (handle.data.astype(np.uint32) << 16).view(np.float32) if is_bf16 else handle.data

    def dot(_: Any, a: Any, b: Any, total: Any, *_others: Any) -> Any:
        product = np.matmul(numbers(a), numbers(b), dtype=total.data.dtype) + total.data
        return interpreter.TensorHandle(product, total.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
