"""Mamba's scan and convolution: what they keep, and the layer's peak, counted by hand from their sources."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pinchpoint.core.errors import CannotFake

HALF, F32 = 2, 4
B, D, L, N = 2, 512, 4096, 16


@pytest.fixture
def mamba(observer: Any) -> Any:
    observer.stand_ins.serve(["mamba_ssm", "causal_conv1d"])
    import mamba_ssm  # type: ignore[import-not-found]

    return mamba_ssm


def leaf(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_()


def test_the_scan_keeps_its_output_and_a_state_per_2048_positions(mamba: Any, take: Any) -> None:
    u, delta, z = (leaf(B, D, L) for _ in range(3))
    A, b, c = leaf(D, N, dtype=torch.float32), leaf(B, N, L), leaf(B, N, L)
    one, states = B * D * L * HALF, B * D * 2 * 2 * N * F32
    assert take(lambda: mamba.selective_scan_fn(u, delta, A, b, c)).kept_bytes == one + states
    out = mamba.selective_scan_fn(u, delta, A, b, c, z=z)
    gradient = torch.empty_like(out)
    backward = take(lambda: torch.autograd.grad(out, (u, delta, A, b, c, z), gradient))
    # du, ddelta and dz; dA; gradients of b and c in fp32 and converted.
    assert backward.peak == 3 * one + D * N * F32 + 2 * B * N * L * (F32 + HALF)


def test_the_convolution_keeps_only_its_input(mamba: Any, take: Any) -> None:
    from causal_conv1d import causal_conv1d_fn, causal_conv1d_update  # type: ignore[import-not-found]

    x, weight = leaf(B, D, L), leaf(D, 4)
    out = causal_conv1d_fn(x, weight, activation="silu")
    assert out.shape == x.shape
    assert take(lambda: causal_conv1d_fn(x, weight)).kept_bytes == x.nbytes
    gradient = torch.empty_like(out)
    backward = take(lambda: torch.autograd.grad(out, (x, weight), gradient))
    assert backward.peak == x.nbytes + D * 4 * (F32 + HALF)
    assert causal_conv1d_update(
        torch.ones(B, D, device="cuda"), torch.ones(B, D, 4, device="cuda"), weight
    ).shape == (B, D)


def test_the_layer_keeps_its_input_projections_and_the_ungated_output(mamba: Any, take: Any) -> None:
    layer, x = mamba.Mamba(256).cuda().bfloat16(), leaf(B, L, 256)
    layer(x)  # workspaces
    inner, rank = 512, 16
    kept = take(lambda: layer(x)).kept_bytes
    xz = B * L * 2 * inner * HALF
    projections = B * L * (rank + 2 * N) * HALF + 2 * B * N * L * HALF  # and B, C made contiguous
    states = B * inner * 2 * 2 * N * F32
    output = B * L * 256 * HALF
    small = 5 * inner * N * F32  # -exp(A), its intermediate results, D and the bias in fp32
    assert 0 <= kept - (xz + projections + states + B * L * inner * HALF + output) <= small
    layer(x).float().sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_what_the_stand_in_lacks_says_how_to_install_the_rest(mamba: Any) -> None:
    with pytest.raises(CannotFake, match=r"'mamba_ssm\.Mamba2'") as caught:
        mamba.Mamba2(64)
    assert "MAMBA_SKIP_CUDA_BUILD=TRUE" in caught.value.hint


def test_the_compiled_part_alone_can_be_replaced(observer: Any) -> None:
    with pytest.raises(ImportError) as caught:
        import selective_scan_cuda  # type: ignore[import-not-found]
    assert observer.stand_ins.wanted(caught.value) == ["selective_scan_cuda"]
    observer.stand_ins.serve(["selective_scan_cuda"])
    import selective_scan_cuda  # type: ignore[import-not-found]

    u = torch.ones(B, D, L, device="cuda")
    out, states = selective_scan_cuda.fwd(
        u, u, torch.ones(D, N, device="cuda"), None, None, None, None, None, True
    )
    assert out.shape == u.shape and states.shape == (B, D, 2, 2 * N)
