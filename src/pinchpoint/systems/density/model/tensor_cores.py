"""Factors for products on tensor cores, which round float32 to TF32: 11 bits instead of 24.

A factor is written as the sum of two numbers in TF32, its parts; three products of parts then have the
accuracy of float32. The product of the two small parts is left out: it is below 2^-22 of the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

_HALF = 2**12  # of the last bit that TF32 has
_BITS = -(2**13)


def parts_of(values: Tensor) -> Tensor:
    """Return both parts (2, ...) of values (...) float32."""
    high = _rounded(values)
    return torch.stack([high, _rounded(values - high)])


def _rounded(values: Tensor) -> Tensor:
    return ((values.contiguous().view(torch.int32) + _HALF) & _BITS).view(torch.float32)
