"""The table of neighbours of sorted voxels on a GPU, in Triton. Imported only where a GPU and Triton are
present.

Letters: C voxels. A lane searches for one neighbour of one voxel. The bits of a coordinate lie three apart in
a key, so a step along an axis is an addition in which the bits between are filled: with ones to go up, with
zeros to go down. If i is at an offset from j, then j is at the opposite offset from i: 13 of the 26 offsets
are searched, and each match is written twice.
"""

# Triton reads these functions' source: only annotations that Triton knows are allowed.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.kit.triton_launch import Launcher

_BLOCK = 256  # neighbours per program
_AXIS = 0x249249249249  # every third bit


def fill(keys: Tensor, table: Tensor, bits: int) -> None:
    """Write the neighbours of keys (C,) int64 to table (C, 27) int32, which holds C everywhere.

    bits: of a coordinate.
    """
    count = keys.shape[0]
    axis = _AXIS & ((1 << 3 * bits) - 1)
    _fill(triton.cdiv(13 * count, _BLOCK), (keys, table), (count, count.bit_length()), axis, 3 * bits, _BLOCK)


@triton.jit
def _moved(key, step, AXIS: tl.constexpr):
    """The bits of one coordinate after a step of -1, 0 or 1, and whether it stays in the grid."""
    part = key & AXIS
    up = ((part | ~AXIS) + 1) & AXIS
    down = (part - 1) & AXIS
    moved = tl.where(step > 0, up, tl.where(step < 0, down, part))
    inside = tl.where(step > 0, part != AXIS, (step == 0) | (part != 0))
    return moved, inside


@Launcher
@triton.jit(do_not_specialize=["count", "steps"])
def _fill(keys, table, count, steps, AXIS: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    voxel = lane // 13
    offset = 14 + lane % 13  # of the 27, with z fastest
    there = voxel < count
    key = tl.load(keys + voxel, mask=there, other=0)
    x, x_inside = _moved(key, offset // 9 - 1, AXIS << 2)
    y, y_inside = _moved(key, offset // 3 % 3 - 1, AXIS << 1)
    z, z_inside = _moved(key, offset % 3 - 1, AXIS)
    neighbour = ((key >> BITS) << BITS) | x | y | z
    low = tl.zeros((BLOCK,), tl.int64)
    high = low + count
    for _ in range(steps):
        middle = (low + high) // 2
        less = tl.load(keys + middle, mask=there & (low < high), other=0) < neighbour
        open_range = low < high
        low = tl.where(open_range & less, middle + 1, low)
        high = tl.where(open_range & (less == 0), middle, high)
    valid = there & x_inside & y_inside & z_inside & (low < count)
    hit = valid & (tl.load(keys + low, mask=valid, other=-1) == neighbour)
    tl.store(table + voxel * 27 + offset, low.to(tl.int32), mask=hit)
    tl.store(table + low * 27 + 26 - offset, voxel.to(tl.int32), mask=hit)
    tl.store(table + voxel * 27 + 13, voxel.to(tl.int32), mask=there & (offset == 14))
