"""The staging buffer of torch's CUDA reductions, which combine thread blocks in global memory.

A sum over many rows into few columns (the bias gradient of every linear layer) is split over thread
blocks; the partial results take tens of MiB for a moment. The launch arithmetic below follows ATen's
reduction kernel and was compared event by event with an H200.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

_MAX_THREADS = 512
_WARP = 32
_MIN_VALUES = 16  # values per thread below which work is not split further
_MAX_VALUES = 256


def staging_bytes(
    *,
    inputs: int,
    outputs: int,
    accumulate_bytes: int,
    along_fastest: bool,
    whole: bool,
    vector: int,
    processors: int,
) -> tuple[int, int]:
    """(buffer, semaphores) in bytes for reducing `inputs` values into each of `outputs` results.

    along_fastest: the reduced dimension is the one with the smallest stride
    whole: everything is reduced and contiguous, so that loads are vectorised
    vector: neighbouring outputs that one thread computes, see `output_vector`; 1 along the fastest dimension
    """
    if inputs <= 1 or outputs < 1:
        return 0, 0
    if along_fastest:
        width, height = inputs, outputs
        if whole and width > 128:
            width //= 4
    else:
        width, height = outputs // vector, inputs
    threads = _MAX_THREADS // vector
    width_power, height_power = _power_below(min(width, threads)), _power_below(min(height, threads))
    block_width = min(width_power, _WARP)
    block_height = min(height_power, threads // block_width)
    block_width = min(width_power, threads // block_height)

    step_input, step_output = (block_width, 1) if along_fastest else (1, block_width)
    values = _divide_up(inputs, step_input)
    split_height = values >= block_height * 16 or values >= _MAX_VALUES
    if split_height:
        step_input *= block_height
    else:
        step_output *= block_height
    values = _divide_up(inputs, step_input)
    grid = _divide_up(outputs // vector, step_output)
    target = processors * (2048 // (block_width * block_height))
    if not split_height or values < _MAX_VALUES or grid > target:
        return 0, 0
    blocks = max(
        min(_divide_up(target, grid), _divide_up(values, _MIN_VALUES)), _divide_up(values, _MAX_VALUES)
    )
    if blocks <= 1:
        return 0, 0
    per_output = 1 if along_fastest else block_width * vector
    return accumulate_bytes * outputs * blocks * per_output, 4 * grid


def output_vector(counts: Iterable[int]) -> int:
    """How many neighbouring outputs one thread computes: 4, 2 or 1.

    counts: elements that the width must divide so that every load is aligned: the offset of the first, the
    neighbouring outputs, and the strides of the other dimensions
    """
    return math.gcd(4, *counts)


def _power_below(value: int) -> int:
    return 1 << max(0, int(math.log2(max(value, 1))))


def _divide_up(a: int, b: int) -> int:
    return -(-a // b)
