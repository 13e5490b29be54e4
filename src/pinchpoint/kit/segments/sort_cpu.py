"""The stable order of whole numbers on a CPU, by their digits, compiled by numba. Imported only where numba is there.

Faster than comparing where the numbers span few bits, as the cells of a grid do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinchpoint.kit.numba_loops import compiled

_DIGIT = 11  # bits: 2,048 places to write to lie in the cache
_PASSES = 4  # beyond so many a sort by comparing is as fast


def order_of(ids: Tensor) -> Tensor | None:
    """(N,) int32, the stable order of ids (N,) on the CPU; None where they span too many bits."""
    low, high = (int(bound) for bound in torch.aminmax(ids))
    passes = max(1, -(-(high - low).bit_length() // _DIGIT))
    if passes > _PASSES:
        return None
    digits = (ids.long() - low).numpy()
    order, spare = np.arange(len(digits), dtype=np.int32), np.empty(len(digits), np.int32)
    held = np.empty_like(digits)
    for number in range(passes):
        _by_digit(digits, order, held, spare, number * _DIGIT)
        digits, held, order, spare = held, digits, spare, order
    return torch.from_numpy(order)


@compiled
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
