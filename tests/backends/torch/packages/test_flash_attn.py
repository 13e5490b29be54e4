"""flash-attn's buffers, counted by hand from its kernels: what is kept, and the peak of the backward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch

HALF, F32 = 2, 4


@pytest.fixture
def flash(observer: Any) -> Any:
    observer.stand_ins.serve(["flash_attn"])
    import flash_attn  # type: ignore[import-not-found]

    return flash_attn


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).requires_grad_()


def test_forward_keeps_the_output_and_row_sums_and_backward_accumulates_in_fp32(
    flash: Any, take: Any
) -> None:
    b, s, h, d = 8, 1024, 16, 64
    q, k, v = (leaf(b, s, h, d) for _ in range(3))
    one = b * s * h * d * HALF
    forward = take(lambda: flash.flash_attn_func(q, k, v, causal=True))
    assert forward.kept_bytes == one + b * h * s * F32 + 512  # no probabilities; a random state
    out = flash.flash_attn_func(q, k, v, causal=True)
    gradient = torch.empty_like(out)
    backward = take(lambda: torch.autograd.grad(out, (q, k, v), gradient))
    assert backward.peak == 3 * one + b * h * s * F32 + b * s * h * d * F32
    assert backward.kept_bytes == 3 * one - b * h * s * F32 - 512  # the row sums are freed


def test_grouped_heads_expand_their_gradients(flash: Any, take: Any) -> None:
    b, s, h, hk, d = 2, 2048, 32, 8, 128
    q, k, v = leaf(b, s, h, d), leaf(b, s, hk, d), leaf(b, s, hk, d)
    one = b * s * h * d * HALF
    out = flash.flash_attn_func(q, k, v)
    gradient = torch.empty_like(out)
    backward = take(lambda: torch.autograd.grad(out, (q, k, v), gradient))
    assert backward.peak == one + 2 * one // 4 + b * h * s * F32 + 2 * one + 2 * one


def test_packed_sequences_are_padded_by_128_rows_each(flash: Any, take: Any) -> None:
    total, h, d, sequences = 3000, 16, 64, 3
    qkv = leaf(total, 3, h, d)
    lengths = torch.tensor([0, 1000, 1500, 3000], dtype=torch.int32, device="cuda")
    out = flash.flash_attn_varlen_qkvpacked_func(qkv, lengths, 1500, causal=True)
    assert out.shape == (total, h, d)
    gradient = torch.empty_like(out)
    rows = total + 128 * sequences
    backward = take(lambda: torch.autograd.grad(out, qkv, gradient))
    assert backward.peak == qkv.numel() * HALF + rows * h * F32 + rows * h * d * F32


def test_a_small_problem_is_split_over_its_keys(flash: Any, take: Any) -> None:
    q, k, v = leaf(1, 1, 8, 64), leaf(1, 8192, 8, 64), leaf(1, 8192, 8, 64)
    # 8 blocks on 264 half processors, 32 blocks of 256 keys: every block alone.
    parts = 32
    out = 8 * 64 * HALF
    assert take(lambda: flash.flash_attn_func(q, k, v)).peak == (
        out + 2 * 512 + parts * 8 * F32 + parts * 8 * 64 * F32
    )


def test_other_types_are_refused_as_by_the_package(flash: Any) -> None:
    q = torch.randn(1, 8, 2, 64, device="cuda")
    with pytest.raises(RuntimeError, match="only support fp16 and bf16"):
        flash.flash_attn_func(q, q, q)


def test_padding_round_trips_the_shapes_of_the_data(flash: Any, observer: Any) -> None:
    from flash_attn.bert_padding import pad_input, unpad_input  # type: ignore[import-not-found]

    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]).cuda()
    rows, indices, starts, longest, _ = unpad_input(leaf(2, 4, 3, 5), mask)
    assert (rows.shape, starts.tolist(), longest) == ((4, 3, 5), [0, 3, 4], 3)
    assert pad_input(rows, indices, 2, 4).shape == (2, 4, 3, 5)


def test_cross_entropy_keeps_the_logits_and_their_sums(flash: Any, take: Any) -> None:
    from flash_attn.losses.cross_entropy import CrossEntropyLoss  # type: ignore[import-not-found]

    rows, words = 4096, 8192
    logits, labels = leaf(rows, words), torch.zeros(rows, dtype=torch.int64, device="cuda")
    for in_place in (False, True):
        loss = CrossEntropyLoss(inplace_backward=in_place)(logits, labels)
        backward = take(lambda loss=loss: torch.autograd.grad(loss, logits))
        # The engine also makes the zero gradient of the second result, which is not differentiable.
        assert backward.peak == pytest.approx((1 - in_place) * rows * words * HALF, abs=2 * rows * F32)


def test_rotary_embeddings_keep_only_their_tables(flash: Any, take: Any) -> None:
    from flash_attn.layers.rotary import apply_rotary_emb  # type: ignore[import-not-found]

    x, table = leaf(2, 512, 8, 64), torch.randn(512, 32, device="cuda", dtype=torch.bfloat16)
    assert take(lambda: apply_rotary_emb(x, table, table)).kept_bytes == x.numel() * HALF
