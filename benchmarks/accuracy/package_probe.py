"""Memory of kernels that packages bring along, on a GPU: torch's flash attention, Liger, autotuned Triton.

    PYTHONPATH=src python benchmarks/accuracy/package_probe.py -o packages.json

Each call is a forward and a backward pass; its peak is what it adds to the memory allocated before. torch's
own flash attention allocates what flash-attn 2 does, which need not be installed. Liger and Triton must be.
The tests run the same cases on the simulated device (tests/backends/torch/packages/test_record.py).
"""

from __future__ import annotations

import argparse
import gc
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

Run = Callable[[], Any]
HALF = torch.bfloat16


def leaf(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_()


# --- flash attention


def attention(
    batch: int, rows: int, heads: int, width: int, *, dropout: float = 0.0, attend: Any = None
) -> Run:
    """attend: flash_attn_func; by default torch's own kernel."""
    q, k, v = (leaf(batch, rows, heads, width) for _ in range(3))
    if attend is not None:
        return lambda: attend(q, k, v, dropout_p=dropout, causal=True).backward(torch.empty_like(q))

    def run() -> Any:
        out, sums, seed, offset, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, None, None, rows, rows, dropout, True, False
        )
        return torch.ops.aten._flash_attention_backward(
            torch.empty_like(out), q, k, v, out, sums, None, None, rows, rows, dropout, True, seed, offset
        )

    return run


def packed_attention(lengths: list[int], heads: int, width: int, *, attend: Any = None) -> Run:
    q, k, v = (leaf(sum(lengths), heads, width) for _ in range(3))
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    cu, longest = torch.tensor(starts, dtype=torch.int32, device="cuda"), max(lengths)
    if attend is not None:
        return lambda: attend(q, k, v, cu, cu, longest, longest, causal=True).backward(torch.empty_like(q))

    def run() -> Any:
        out, sums, seed, offset, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, cu, cu, longest, longest, 0.0, True, False
        )
        return torch.ops.aten._flash_attention_backward(
            torch.empty_like(out), q, k, v, out, sums, cu, cu, longest, longest, 0.0, True, seed, offset
        )

    return run


# --- Liger


def _backward(layer: nn.Module, x: torch.Tensor) -> Run:
    gradient = torch.randn_like(x)
    return lambda: layer(x).backward(gradient)


def rms_norm(rows: int, width: int, dtype: torch.dtype = HALF) -> Run:
    from liger_kernel.transformers import LigerRMSNorm

    return _backward(LigerRMSNorm(width).to("cuda", dtype), leaf(8, rows // 8, width, dtype=dtype))


def swiglu(rows: int, width: int, inner: int) -> Run:
    from liger_kernel.transformers import LigerSwiGLUMLP

    config = types.SimpleNamespace(hidden_size=width, intermediate_size=inner, hidden_act="silu")
    return _backward(LigerSwiGLUMLP(config).to("cuda", HALF), leaf(1, rows, width))


def rope(batch: int, rows: int, heads: int, key_heads: int, width: int) -> Run:
    from liger_kernel.transformers import liger_rotary_pos_emb

    q, k = (leaf(batch, rows, n, width).transpose(1, 2) for n in (heads, key_heads))
    cos, sin = (torch.randn(1, rows, width, device="cuda", dtype=HALF) for _ in range(2))

    def run() -> None:
        rotated = liger_rotary_pos_emb(q, k, cos, sin)
        torch.autograd.backward(list(rotated), [torch.empty_like(t) for t in rotated])

    return run


def cross_entropy(rows: int, vocabulary: int, dtype: torch.dtype = HALF) -> Run:
    from liger_kernel.transformers import LigerCrossEntropyLoss

    weight, x = leaf(64, vocabulary, dtype=dtype), leaf(rows, 64, dtype=dtype)
    target = torch.randint(0, vocabulary, (rows,), device="cuda")
    return lambda: LigerCrossEntropyLoss()(x @ weight, target).backward()


def fused_cross_entropy(rows: int, width: int, vocabulary: int, dtype: torch.dtype = HALF) -> Run:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    weight, x = leaf(vocabulary, width, dtype=dtype), leaf(rows, width, dtype=dtype)
    target = torch.randint(0, vocabulary, (rows,), device="cuda")
    return lambda: LigerFusedLinearCrossEntropyLoss()(weight, x * 1, target).backward()


F32 = torch.float32
CASES: dict[str, Callable[..., Run]] = {
    "flash 2x1024x16x64": lambda **how: attention(2, 1024, 16, 64, **how),
    "flash 8x4096x32x128": lambda **how: attention(8, 4096, 32, 128, **how),
    "flash 1x4096x4x64": lambda **how: attention(1, 4096, 4, 64, **how),
    "flash 1x300x2x96": lambda **how: attention(1, 300, 2, 96, **how),
    "flash dropout 4x2048x16x64": lambda **how: attention(4, 2048, 16, 64, dropout=0.1, **how),
    "flash packed 4": lambda **how: packed_attention([1000, 700, 333, 2000], 16, 64, **how),
    "flash packed 62": lambda **how: packed_attention([128] * 60 + [77, 201], 32, 128, **how),
    "liger rms_norm 4096x2048": lambda: rms_norm(4096, 2048),
    "liger rms_norm 32768x4096": lambda: rms_norm(32768, 4096),
    "liger rms_norm fp32 8192x1024": lambda: rms_norm(8192, 1024, F32),
    "liger swiglu 2048x1024x2816": lambda: swiglu(2048, 1024, 2816),
    "liger swiglu 16384x2048x5632": lambda: swiglu(16384, 2048, 5632),
    "liger rope 4x2048x16x64": lambda: rope(4, 2048, 16, 4, 64),
    "liger cross_entropy 2048x32000": lambda: cross_entropy(2048, 32000),
    "liger cross_entropy fp32 4096x50257": lambda: cross_entropy(4096, 50257, F32),
    "liger fused 4096x1024x32000": lambda: fused_cross_entropy(4096, 1024, 32000),
    "liger fused 16384x2048x50257": lambda: fused_cross_entropy(16384, 2048, 50257),
    "liger fused fp32 2048x512x32000": lambda: fused_cross_entropy(2048, 512, 32000, F32),
}


def measure(build: Callable[[], Run]) -> int:
    run = build()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def main() -> None:
    from pinchpoint.core import machine
    from pinchpoint.core.records import now

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", type=Path, required=True, help="The record to write.")
    options = parser.parse_args()
    for dtype in (F32, HALF):  # cuBLAS's workspaces are allocated once and are not part of a call
        a = leaf(256, 256, dtype=dtype)
        nn.functional.linear(a, a, a[0]).sum().backward()
    peaks: dict[str, int | str] = {}
    for name, build in CASES.items():
        try:
            peaks[name] = measure(build)
        except (ImportError, RuntimeError) as error:
            peaks[name] = f"{type(error).__name__}: {error}"
        gc.collect()
        torch.cuda.empty_cache()
    record = {
        "what": "peak that one forward and backward pass adds, in bytes",
        "command": "PYTHONPATH=src python benchmarks/accuracy/package_probe.py -o packages.json",
        "created": now(),
        "machine": machine.describe(),
        "peaks": peaks,
    }
    options.o.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
