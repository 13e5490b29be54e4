"""`tensor_cores` in Triton kernels. Imported only on machines with a GPU and Triton."""

# Triton reads the source of these functions, so they have no annotations except Triton's own.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl

_HALF = tl.constexpr(2**12)
_BITS = tl.constexpr(-(2**13))


@triton.jit
def times_parts(left, high, low, total):
    """Return total + left @ (high + low). high, low: from `parts_of`."""
    left_high = _rounded(left)
    left_low = _rounded(left - left_high)
    total = tl.dot(left_high, high, total, input_precision="tf32")
    total = tl.dot(left_high, low, total, input_precision="tf32")
    return tl.dot(left_low, high, total, input_precision="tf32")


@triton.jit
def _rounded(values):
    return ((values.to(tl.int32, bitcast=True) + _HALF) & _BITS).to(tl.float32, bitcast=True)
