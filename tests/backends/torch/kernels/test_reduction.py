"""The staging buffer of a CUDA reduction, compared with the requests to an H200's allocator."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pinchpoint.backends.torch.kernels.reduction import output_vector, staging_bytes

ROOT = Path(__file__).parents[4]


def columns(rows: int, width: int, *, processors: int = 132) -> tuple[int, int]:
    """The sum over rows: the bias gradient of a linear layer."""
    return staging_bytes(
        inputs=rows,
        outputs=width,
        accumulate_bytes=4,
        along_fastest=False,
        whole=False,
        vector=output_vector([width]),
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


def temporaries(take: Any, gradient: torch.Tensor) -> list[int]:
    blocks = take(lambda: gradient.sum(0)).blocks
    return [block.bytes for block in blocks if block.role == "temporaries"]


def test_half_precision_rows_stage_as_much_since_they_are_summed_in_fp32(take: Any) -> None:
    rows = [torch.empty(8192, 768, dtype=dtype, device="cuda") for dtype in (torch.bfloat16, torch.float32)]
    assert temporaries(take, rows[0]) == temporaries(take, rows[1]) == [50_331_648, 24]


def test_columns_of_a_wider_matrix_are_not_aligned_and_stage_less(take: Any) -> None:
    """The bias gradient of a layer whose output was joined with others: an H200 was asked for these."""
    joined = torch.empty(32_768, 411, device="cuda")
    assert temporaries(take, joined[:, :256]) == [2_162_688, 32]


@pytest.mark.parametrize(("start", "stride", "same"), [(4, 412, True), (2, 412, False), (4, 410, False)])
def test_neighbours_are_read_together_if_all_rows_are_aligned(
    take: Any, start: int, stride: int, same: bool
) -> None:
    joined = torch.empty(32_768, stride, device="cuda")
    whole = torch.empty(32_768, 256, device="cuda")
    assert (temporaries(take, joined[:, start : start + 256]) == temporaries(take, whole)) is same


def test_a_repeated_dimension_is_sorted_like_any_other(take: Any) -> None:
    """torch compares it with no other, so the sum is divided like that of a dense tensor."""
    repeated = torch.empty(1, 1024, 256, device="cuda").expand(64, -1, -1)
    dense = torch.empty(64, 1024, 256, device="cuda")
    sizes = [
        [block.bytes for block in take(lambda x=x: x.sum((0, 1))).blocks if block.role == "temporaries"]
        for x in (repeated, dense)
    ]
    assert sizes[0] == sizes[1] != []


def test_places_of_the_largest_are_staged_with_them(take: Any) -> None:
    rows = torch.empty(32_768, 256, device="cuda")
    sizes = [
        max(block.bytes for block in take(call).blocks)
        for call in (lambda: rows.max(0), lambda: rows.argmax(0), lambda: rows.amax(0))
    ]
    assert sizes[0] == sizes[1] == 4 * sizes[2]


def test_neighbours_span_dimensions_that_join_in_memory(take: Any) -> None:
    joined = torch.empty(32_768, 16, 6, device="cuda")
    assert temporaries(take, joined) == temporaries(take, joined.flatten(1))


def test_a_whole_sum_stages_one_value_a_block() -> None:
    # linear-narrow-out1-fp32: the bias gradient is a sum of 262,144 values.
    one = staging_bytes(
        inputs=262_144,
        outputs=1,
        accumulate_bytes=4,
        along_fastest=True,
        whole=True,
        vector=1,
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


def test_sums_take_what_they_take_on_an_h200(
    observer: Any, take: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the layout of what they read: the record is written by benchmarks/accuracy/sum_probe.py."""
    requests = json.loads((ROOT / "benchmarks/results/sum_probe_h200.json").read_text())["requests"]
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks" / "accuracy"), *sys.path])
    cases = importlib.import_module("sum_probe").cases()
    assert list(cases) == list(requests)
    sizes = {name: [block.bytes for block in take(call).blocks] for name, call in cases.items()}
    assert sizes == requests
