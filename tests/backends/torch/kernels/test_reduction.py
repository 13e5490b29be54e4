"""The staging buffer of a CUDA reduction, compared with the requests to an H200's allocator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pinchpoint.backends.torch.kernels.reduction import staging_bytes


def columns(rows: int, width: int, *, item: int = 4, processors: int = 132) -> tuple[int, int]:
    """The sum over rows: the bias gradient of a linear layer."""
    return staging_bytes(
        inputs=rows,
        outputs=width,
        item_bytes=item,
        accumulate_bytes=4,
        along_fastest=False,
        whole=False,
        processors=processors,
    )


@pytest.mark.parametrize(
    ("rows", "width", "buffer", "semaphores"),
    [
        (8192, 768, 50_331_648, 24),  # linear-fp32, and linear-3d-fp32 of the same rows
        (262_144, 256, 138_412_032, 8),  # linear-narrow-in3-fp32
        (1_000_000, 64, 34_603_008, 4),  # sum-columns-tall-fp32
    ],
)
def test_a_sum_over_rows_stages_what_an_h200_was_asked_for(
    rows: int, width: int, buffer: int, semaphores: int
) -> None:
    assert columns(rows, width) == (buffer, semaphores)


def test_half_precision_rows_stage_as_much_since_they_are_summed_in_fp32() -> None:
    assert columns(8192, 768, item=2) == columns(8192, 768)


def test_a_whole_sum_stages_one_value_a_block() -> None:
    # linear-narrow-out1-fp32: the bias gradient is a sum of 262,144 values.
    one = staging_bytes(
        inputs=262_144,
        outputs=1,
        item_bytes=4,
        accumulate_bytes=4,
        along_fastest=True,
        whole=True,
        processors=132,
    )
    assert one == (128, 4)


@pytest.mark.parametrize(("rows", "width"), [(1, 768), (64, 768), (0, 8), (4, 1_000_000)])
def test_a_small_or_wide_sum_stages_nothing(rows: int, width: int) -> None:
    assert columns(rows, width) == (0, 0)


def test_a_smaller_card_stages_less() -> None:
    assert columns(262_144, 256, processors=40)[0] < columns(262_144, 256, processors=132)[0]


def test_a_tensor_beyond_32_bit_offsets_is_reduced_in_parts(observer: Any, take: Any) -> None:
    """The bias gradient of a language model: an H200 was asked for 34,076,672 bytes four times."""
    gradient = torch.empty(32_768, 33_278, device="cuda")
    blocks = take(lambda: gradient.sum(0)).blocks
    assert max(block.bytes for block in blocks if block.role == "temporaries") == 34_076_672
