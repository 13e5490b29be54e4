"""Copies of tensors in layouts that kernels cannot read, compared with calls on an H200 (torch 2.11)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

LAST = torch.channels_last

# Measured on an H200 with torch 2.11, for an input of 8 MiB in the channels-last layout: the most bytes that
# the forward pass adds, in units of the input, and the layout of the result.
LAYOUTS: dict[str, tuple[Any, float, bool]] = {
    "softmax": (lambda x: x.softmax(1), 2.0, True),
    "roll": (lambda x: x.roll(1, 2), 2.0, True),
    "cumsum": (lambda x: x.cumsum(2), 2.0, False),
    "topk": (lambda x: x.topk(4, 1)[0], 1.19, False),
    "reflection pad": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), 2.06, True),
    "replication pad": (lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"), 1.06, True),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), 1.0, True),
    "adaptive max pool": (lambda x: F.adaptive_max_pool2d(x, 8), 1.09, False),
    "antialiasing": (
        lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
        1.5,
        False,
    ),
    "unfold": (lambda x: F.unfold(x, 3, padding=1), 11.0, True),
    "huber": (lambda x: F.huber_loss(x, torch.ones_like(x)), 2.0, True),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_channels_last_tensors_are_copied_where_the_gpu_copies_them(name: str, take: Any) -> None:
    run, most, is_contiguous = LAYOUTS[name]
    x = torch.rand(8, 64, 64, 64, device="cuda").to(memory_format=LAST)
    results: list[torch.Tensor] = []
    peak = take(lambda: results.append(run(x))).peak
    assert peak / (4 * x.numel()) == pytest.approx(most, abs=0.01)
    assert results[0].is_contiguous() or not is_contiguous


# The most bytes that the backward pass adds for the same input, in units of it.
BACKWARD: dict[str, tuple[Any, float]] = {
    "adaptive max pool": (lambda x: F.adaptive_max_pool2d(x, 8), 2.05),
    "antialiasing": (lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True), 1.25),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), 5.0),
    "RMS norm": (lambda x: F.rms_norm(x, x.shape[1:]), 5.0),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_the_backward_pass_of_channels_last_tensors_copies_them_as_well(name: str, take: Any) -> None:
    run, most = BACKWARD[name]
    x = torch.rand(8, 64, 64, 64, device="cuda").to(memory_format=LAST).requires_grad_()
    out = run(x)
    gradient = torch.ones_like(out)
    peak = take(lambda: torch.autograd.grad(out, x, gradient)).peak
    assert peak / (4 * x.numel()) == pytest.approx(most, abs=0.01)


def test_a_convolution_of_mixed_layouts_copies_its_input(take: Any) -> None:
    """Group norm returns contiguous tensors, also in a network in the channels-last layout."""
    x = torch.rand(8, 64, 64, 64, device="cuda")
    weight = torch.rand(64, 64, 1, 1, device="cuda").to(memory_format=LAST)
    F.conv2d(x, weight)
    results: list[torch.Tensor] = []
    assert take(lambda: results.append(F.conv2d(x, weight))).peak == 2 * 4 * x.numel()
    assert results[0].is_contiguous(memory_format=LAST)


@pytest.mark.parametrize(
    ("shape", "run", "most"),
    [
        ((64, 64, 1, 1), lambda x, w: F.conv2d(x, w), 3.0),
        ((64, 1, 3, 3), lambda x, w: F.conv2d(x, w, padding=1, groups=64), 3.0),
        ((64, 64, 2, 2), lambda x, w: F.conv_transpose2d(x, w, stride=2), 9.0),
    ],
    ids=["one by one", "depthwise", "transposed"],
)
def test_a_frozen_channels_last_weight_and_a_contiguous_input_copy_the_gradient_twice(
    shape: tuple[int, ...], run: Any, most: float, take: Any
) -> None:
    """Once to the layout of the input and back to that of the weight; the input itself is not needed."""
    x = torch.rand(8, 64, 64, 64, device="cuda", requires_grad=True)
    out = run(x, torch.rand(shape, device="cuda").to(memory_format=LAST))
    gradient = torch.ones_like(out)
    peak = take(lambda: torch.autograd.grad(out, x, gradient)).peak
    assert peak / (4 * x.numel()) == pytest.approx(most, abs=0.01)


def test_a_transposed_convolution_in_half_precision_copies_its_tensors(take: Any) -> None:
    """Measured: 20 MiB and the weight for channels-last tensors of 4 and 16 MiB, which it could read."""
    x = torch.rand(8, 64, 64, 64, device="cuda", dtype=torch.bfloat16).to(memory_format=LAST)
    weight = torch.rand(64, 64, 2, 2, device="cuda", dtype=torch.bfloat16).to(memory_format=LAST)
    (block,) = [b for b in take(lambda: F.conv_transpose2d(x, weight, stride=2)).blocks if b.span]
    assert block.span is not None and block.span.usual == 5 * 2 * x.numel() + 2 * weight.numel() + 147
    assert block.span.usual <= block.span.most


def test_distances_between_many_points_multiply_padded_copies(take: Any) -> None:
    """Measured: 2,236,416 bytes with two contiguous copies of 512 KiB, and 1,179,648 stay."""
    x = torch.rand(8, 64, 512, device="cuda", requires_grad=True)
    torch.cdist(x, x)  # the workspace of cuBLAS stays
    taken = take(lambda: torch.cdist(x[:, :, :256], x[:, :, 256:]))
    assert (taken.peak, taken.kept_bytes) == (2_236_416, 1_179_648)


def test_distances_have_the_values_of_the_data(observer: Any) -> None:
    """So that a mask of near neighbours is counted exactly."""
    points = torch.arange(64.0).unsqueeze(1)
    distances = torch.cdist(points.cuda(), points.cuda())
    assert torch.allclose(observer.shadow(distances), (points - points.T).abs(), atol=0.1)
    assert distances[distances < 1.5].shape == (64 + 2 * 63,)


def test_a_pool_copies_a_gradient_with_gaps(take: Any) -> None:
    """As between the two convolutions of a vector-quantized autoencoder, traced on an H200."""
    x = torch.rand(8, 64, 64, 64, device="cuda", requires_grad=True)
    out = F.max_pool2d(x, 2)
    gradient = torch.rand(8, 32 * 32, 64, device="cuda").transpose(1, 2).view(8, 64, 32, 32)
    peak = take(lambda: torch.autograd.grad(out, x, gradient)).peak
    assert peak == 4 * x.numel() + 4 * gradient.numel()


def test_batch_norm_keeps_a_copy_of_an_input_with_gaps(take: Any) -> None:
    norm = torch.nn.BatchNorm1d(64, device="cuda")
    x = torch.rand(32, 1000, 64, device="cuda", requires_grad=True)
    size = 4 * x.numel()
    for source, copies in ((x.transpose(1, 2), 1), (x.view(32, 64, 1000), 0)):
        results: list[torch.Tensor] = []
        taken = take(lambda source=source, results=results: results.append(norm(source)))
        assert size * (1 + copies) <= taken.kept_bytes < size * (1 + copies) + 8192


def test_rms_norm_with_a_weight_of_another_type_keeps_the_input_in_fp32(take: Any) -> None:
    x = torch.rand(64, 128, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for dtype, kept in ((torch.bfloat16, 2), (torch.float32, 2 + 4 + 4)):
        weight = torch.ones(256, device="cuda", dtype=dtype, requires_grad=True)
        results: list[torch.Tensor] = []
        taken = take(lambda weight=weight, results=results: results.append(F.rms_norm(x, (256,), weight)))
        assert taken.kept_bytes / x.numel() == pytest.approx(kept, abs=0.2)
