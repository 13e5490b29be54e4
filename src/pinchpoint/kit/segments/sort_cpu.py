"""A stable radix sort of integers on a CPU, compiled by numba. Imported only if numba is installed.

It is faster than a comparison sort if the numbers span few bits, as the cells of a grid do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinchpoint.kit.numba_loops import compile_loop

_DIGIT = 11  # bits per digit: 2,048 write positions fit in the cache
_PASSES = 4  # with more passes, a comparison sort is as fast


def order_of(ids: Tensor) -> Tensor | None:
    """(N,) int32, the stable order of ids (N,) on the CPU; None if they span too many bits."""
    low, high = (int(bound) for bound in torch.aminmax(ids))
    passes = max(1, -(-(high - low).bit_length() // _DIGIT))
    if passes > _PASSES:
        return None
    digits = (ids.long() - low).numpy()
    order, spare = np.arange(len(digits), dtype=np.int32), np.empty(len(digits), np.int32)
    spare_digits = np.empty_like(digits)
    for number in range(passes):
        _by_digit(digits, order, spare_digits, spare, number * _DIGIT)
        digits, spare_digits, order, spare = spare_digits, digits, spare, order
    return torch.from_numpy(order)


@compile_loop
def _by_digit(digits: Any, order: Any, to_digits: Any, to_order: Any, shift: int) -> None:
    places = np.zeros(2**_DIGIT + 1, np.int64)
    for at in range(len(digits)):
        places[((digits[at] >> shift) & (2**_DIGIT - 1)) + 1] += 1
    for digit in range(2**_DIGIT):
        places[digit + 1] += places[digit]
    for at in range(len(digits)):
        digit = (digits[at] >> shift) & (2**_DIGIT - 1)
        to_digits[places[digit]] = digits[at]
        to_order[places[digit]] = order[at]
        places[digit] += 1
