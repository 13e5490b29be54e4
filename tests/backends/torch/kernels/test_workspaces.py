"""Workspaces of kernels: what they allocate beside their results, and in which order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pinchpoint.backends.torch import versions
from pinchpoint.backends.torch.kernels import temporaries


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (1, 3, 5, 4), (2, 1, 5, 4), (2, 3, 1, 4)])
def test_the_order_of_heads_and_rows_in_memory_is_what_a_view_would_say(
    shape: tuple[int, int, int, int],
) -> None:
    batch, heads, rows, width = shape
    for tensor in (
        torch.zeros(shape),
        torch.zeros(batch, rows, heads, width).transpose(1, 2),
        torch.zeros(*shape[:3], 8)[..., ::2],
    ):
        assert temporaries._rows_before_heads(tensor) == tensor.transpose(1, 2).is_contiguous()


def test_norms_of_permuted_tensors_copy_them(take: Any) -> None:
    x = torch.rand(8, 32, 32, 96, device="cuda").permute(0, 3, 1, 2)  # channels last
    size = 4 * x.numel()
    by_rows, by_channels = x.permute(0, 2, 3, 1), x.contiguous().permute(0, 2, 3, 1)
    assert by_rows.is_contiguous() and not by_channels.is_contiguous()
    for source, copies in ((by_rows, 0), (by_channels, 1)):
        forward = take(lambda source=source: F.layer_norm(source, (96,)))
        assert size * (1 + copies) <= forward.peak < size * (1 + copies) + size // 4
        assert forward.kept_bytes < size + size // 4
    grouped = take(lambda: F.group_norm(x, 8))
    assert grouped.peak >= 2 * size
    with torch.autocast("cuda", torch.bfloat16):
        half = x.bfloat16()
        out = F.group_norm(half, 8)
    assert out.is_contiguous() and out.dtype is torch.float32


def test_gradients_of_a_tall_layer_norm_are_summed_in_parts(take: Any) -> None:
    """Measured on an H200 in timm's ConvNeXt: 200,704 rows of 96 in parts of 32 rows."""
    rows, width = 200_704, 96
    norm = torch.nn.LayerNorm(width).cuda()
    x = torch.rand(rows, width, device="cuda", requires_grad=True)
    out = norm(x)
    backward = take(lambda: out.backward(torch.ones_like(out))).blocks
    large = [block.bytes for block in backward if block.op == "aten::native_layer_norm_backward"]
    assert [size for size in large if 2**20 < size < 2**24] == [2_408_448, 2_408_448, 1_204_224]


@pytest.mark.skipif(
    versions.rules().cudnn < (versions.rules().cudnn_first or 10**6),
    reason="this torch does not try cuDNN first",
)
def test_cudnn_attention_allocates_its_seeds_first_and_row_sums_only_for_backward(take: Any) -> None:
    q = torch.rand(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for grad, sizes in ((True, [8, 8, 131_072, 4_096]), (False, [8, 8, 131_072])):
        with torch.set_grad_enabled(grad):
            blocks = take(lambda: F.scaled_dot_product_attention(q, q, q)).blocks
        named = [b.bytes for b in blocks if b.op == "aten::_scaled_dot_product_cudnn_attention"]
        assert named == sizes


def test_clipping_computes_all_norms_in_one_kernel(take: Any) -> None:
    """Measured on an H200 in a GPT: 51 gradients, the longest in 590 chunks of 65,536."""
    weights = [torch.nn.Parameter(torch.rand(size, device="cuda")) for size in (50_304 * 768, *[768] * 50)]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    blocks = take(lambda: torch.nn.utils.clip_grad_norm_(weights, 1.0)).blocks
    norms = [block.bytes for block in blocks if block.op.startswith("aten::_foreach_norm")]
    assert norms == [*[4] * 51, 120_360]


def test_a_search_is_made_once_for_every_shape_and_thread(observer: Any) -> None:
    layer = torch.nn.Conv2d(8, 8, 3, padding=1, device="cuda")
    torch.backends.cudnn.benchmark = True
    try:
        for size in (16, 16, 32):
            for _ in range(2):
                layer(torch.zeros(2, 8, size, size, device="cuda", requires_grad=True)).sum().backward()
    finally:
        torch.backends.cudnn.benchmark = False
    # Two shapes, each with a forward pass, the gradient of the input and that of the weight.
    assert len(observer.ledger.observation.searches) == 6


def test_fold_returns_a_buffer_as_large_as_its_input(take: Any) -> None:
    x = torch.rand(8, 64, 64, 64, device="cuda", requires_grad=True)
    out = F.unfold(x, 3, padding=1)
    gradient = torch.ones_like(out)
    assert take(lambda: torch.autograd.grad(out, x, gradient)).peak == 9 * 4 * x.numel()


def test_each_gradient_of_a_convolution_is_allocated_before_its_workspace(take: Any) -> None:
    x = torch.rand(8, 64, 64, 64, device="cuda", requires_grad=True)
    weight = torch.rand(96, 64, 3, 3, device="cuda", requires_grad=True)
    out = F.conv2d(x, weight, padding=1)
    gradient = torch.ones_like(out)
    blocks = take(lambda: torch.autograd.grad(out, (x, weight), gradient)).blocks
    kinds = [
        "workspace" if b.span else {4 * x.numel(): "x", 4 * weight.numel(): "w"}[b.bytes] for b in blocks
    ]
    assert kinds == ["x", "workspace", "w", "workspace"]


def test_a_pass_that_creates_a_graph_has_the_workspace_of_the_backward_thread(take: Any) -> None:
    """As on an H200 at the first forces of an e3nn network; the last pass then needs none."""
    x = torch.rand(64, 64, device="cuda", requires_grad=True)
    weight = torch.rand(64, 64, device="cuda", requires_grad=True)
    energy = torch.tanh(x @ weight).sum()
    results: list[torch.Tensor] = []
    forces = take(lambda: results.extend(torch.autograd.grad(energy, x, create_graph=True)))
    last = take(lambda: results[0].square().sum().backward())
    assert [[b.op for b in taken.blocks].count("cublas") for taken in (forces, last)] == [1, 0]
