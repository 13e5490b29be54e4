"""The Triton kernel of `take_rows` for CUDA. Imported only where a GPU and Triton are present."""

# Triton reads these functions' source: only annotations that Triton knows are allowed.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.kit.triton_launch import Launcher

_TILE = 2048  # values per program


def take(values: Tensor, index: Tensor, out: Tensor, width: int) -> None:
    """Fill out, (M, width), with the rows of values, (N, width); with zeros for an index out of range."""
    wide = 1 << (width - 1).bit_length()  # the next power of two
    tall = max(1, _TILE // wide)
    count = index.shape[0]
    _take(
        -(-count // tall),
        (values, index.contiguous(), out),
        (count, values.shape[0]),
        width,
        wide,
        tall,
    )


@Launcher
@triton.jit(do_not_specialize=["count", "rows"])
def _take(values, index, out, count, rows, WIDTH: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    column = tl.arange(0, WIDE)
    there = at < count
    row = tl.load(index + at, mask=there, other=0).to(tl.int64)
    both = there[:, None] & (column < WIDTH)[None, :]
    valid = both & ((row >= 0) & (row < rows))[:, None]
    rows_read = tl.load(values + row[:, None] * WIDTH + column[None, :], mask=valid, other=0)
    tl.store(out + at[:, None] * WIDTH + column[None, :], rows_read, mask=both)
