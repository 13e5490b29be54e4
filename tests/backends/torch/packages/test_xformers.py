"""xformers' attention: which kernel runs, what it keeps, and gradients that stay packed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

HALF, F32 = 2, 4
B, S, H, D = 8, 1024, 16, 64
ONE = B * S * H * D * HALF


@pytest.fixture
def ops(observer: Any) -> Any:
    observer.stand_ins.serve(["xformers"])
    import xformers.ops  # type: ignore[import-not-found]

    return xformers.ops


def leaf(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_()


def test_16_bit_types_run_flash_attention(ops: Any, take: Any) -> None:
    q, k, v = (leaf(B, S, H, D) for _ in range(3))
    allocated = take(lambda: ops.memory_efficient_attention(q, k, v, ops.LowerTriangularMask()))
    assert allocated.kept_bytes == ONE + B * H * S * F32
    assert take(lambda: ops.memory_efficient_attention(q[:, :, 0], k[:, :, 0], v[:, :, 0])).kept_bytes == (
        ONE // H + B * S * F32
    )


def test_gradients_of_packed_inputs_are_packed(ops: Any, take: Any) -> None:
    qkv = leaf(B, S, H, 3, D)
    q, k, v = ops.unbind(qkv, 3)
    out = ops.memory_efficient_attention(q, k, v)
    gradient = torch.empty_like(out)
    backward = take(lambda: torch.autograd.grad(out, qkv, gradient))
    # Sums of flash attention 2 and 3, the query gradient in fp32, and no second copy of the gradients.
    assert backward.peak == 3 * ONE + 2 * B * H * S * F32 + 2 * ONE


def test_a_dense_bias_runs_the_memory_efficient_kernel(ops: Any, observer: Any) -> None:
    q, k, v = (leaf(2, 64, 4, 32) for _ in range(3))
    out = ops.memory_efficient_attention(q, k, v, torch.zeros(2, 4, 64, 64, device="cuda", dtype=q.dtype))
    out.sum().backward()
    assert out.shape == (2, 64, 4, 32) and q.grad is not None
    names = {block.op for block in observer.ledger.observation.blocks}
    assert any("efficient_attention" in name for name in names)


def test_packed_sequences_have_no_batch(ops: Any) -> None:
    mask = ops.fmha.BlockDiagonalMask.from_seqlens([100, 28])
    x = leaf(1, 128, H, D)
    out = ops.memory_efficient_attention(x, x, x, mask.make_causal())
    out.sum().backward()
    assert out.shape == x.shape and [part.shape[1] for part in mask.split(out)] == [100, 28]
    mask, joined = ops.fmha.BlockDiagonalMask.from_tensor_list([leaf(2, 3, 4), leaf(1, 5, 4)])
    assert joined.shape == (1, 11, 4) and [p.shape for p in mask.split(joined)] == [(2, 3, 4), (1, 5, 4)]


def test_swiglu_has_the_weights_of_the_package(ops: Any) -> None:
    layer = ops.SwiGLU(16, 32).cuda()
    assert sorted(name for name, _ in layer.named_parameters()) == [
        "w12.bias",
        "w12.weight",
        "w3.bias",
        "w3.weight",
    ]
    layer(leaf(3, 16, dtype=torch.float32)).sum().backward()
    assert layer.w12.weight.grad.shape == (64, 16)
