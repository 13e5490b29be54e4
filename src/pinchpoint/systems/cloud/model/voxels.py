"""Voxels of a batch of scenes at several levels, with tables of neighbours and parents.

Letters: M points in B groups (a scene, or one view of a scene), C voxels of a level, P voxels of the next
coarser level. The key of a voxel is its group followed by its position along a Morton curve. Sorted keys are
therefore ordered by group and close in space, the key of a parent is the key shifted by three bits, and
neighbours are found by binary search, without a hash table or an extension. Tables are int32 and mark absent
rows with C, one past the last row, where readers put a row of zeros. Building the voxels waits for the device
once, in addition to the wait of `Segments`. A voxel takes 8 B for its key, 108 B for its neighbours, 4 B for
its place under its parent, and 32 B as a parent. With four levels this is 180 to 220 B per finest voxel of a
surface, and about 700 B during the search for neighbours, which on a GPU needs no memory of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pinchpoint.backends.torch import compat
from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges.edge_ops import is_fake, on_device, own_kernels
from pinchpoint.kit.segments.cell_size import CellSize, cell_edges, show_cell
from pinchpoint.kit.segments.segments import Segments, edge_lengths

AXIS_BITS = 16
GROUP_BITS = 15
SIDE = 2**AXIS_BITS  # voxels along an axis
SELF = 13  # index of the offset (0, 0, 0) among the 27 offsets
# `_spread` and `_compact` in C++, for int64 on a GPU.
_SPREAD_PASS = """template <typename T> T spread(T value) {
    value = (value | value << 16) & 0xFF0000FFLL;
    value = (value | value << 8) & 0xF00F00F00FLL;
    value = (value | value << 4) & 0xC30C30C30C3LL;
    return (value | value << 2) & 0x249249249249LL;
}"""
_COMPACT_PASS = """template <typename T> T compact(T value) {
    value = (value | value >> 2) & 0xC30C30C30C3LL;
    value = (value | value >> 4) & 0xF00F00F00FLL;
    value = (value | value >> 8) & 0xFF0000FFLL;
    return (value | value >> 16) & 0xFFFFLL;
}"""
# Corners of groups are multiples of this, so that a thinned view keeps the grid of its scene at every level.
_ALIGNED = 2 ** (AXIS_BITS // 2)


@dataclass(frozen=True)
class Level:
    """Voxels of one level.

    keys: (C,) int64, increasing; neighbours: (C, 27) int32, the voxel at each offset x, y, z = -1..1 with z
    fastest, or C for none.
    """

    keys: Tensor
    neighbours: Tensor
    depth: int  # 0 is the finest

    @property
    def voxels(self) -> int:
        """Number of voxels C."""
        return self.keys.shape[0]

    @property
    def group(self) -> Tensor:
        """(C,) int64: the group of each voxel, non-decreasing."""
        return self.keys >> (3 * (AXIS_BITS - self.depth))

    @cached_property
    def opposite(self) -> Tensor:
        """(27,) int64: the index of the opposite of each offset."""
        return torch.arange(26, -1, -1, device=self.keys.device)

    def coordinates(self) -> Tensor:
        """Return the coordinates (C, 3) int64, counted from the corner of the group."""
        return torch.stack(
            [_compact(self.keys >> shift, AXIS_BITS - self.depth) for shift in (2, 1, 0)], dim=1
        )


@dataclass(frozen=True)
class Stride:
    """Tables between a level and the next coarser one.

    place: (C,) int32, 8 * parent + octant of each voxel; children: (8 P,) int32, the voxel in each octant of
    each parent, or C for none.
    """

    place: Tensor
    children: Tensor


@dataclass(frozen=True)
class Voxels:
    """All levels of a batch.

    segments: the points of the finest voxels; inside: (M, 3), the position of each point in its voxel, from
    -0.5 to 0.5.
    """

    segments: Segments
    levels: tuple[Level, ...]
    strides: tuple[Stride, ...]
    inside: Tensor
    group: Tensor  # (M,) int64, the group of each point
    groups: int  # B

    @cached_property
    def of_point(self) -> Tensor:
        """(M,) int32: the finest voxel of each point."""
        return self.segments.of_point()


def voxelise(xyz: Tensor, offsets: Tensor, *, cell: float, levels: int = 1) -> Voxels:
    """Build the voxels of points.

    xyz: (M, 3); offsets: (B + 1,), where the points of each group begin, followed by M. Some groups may be
    empty, but not all.
    """
    check_batch(xyz, offsets, cell)
    if not 1 <= levels <= AXIS_BITS // 2:
        raise BadInput(f"{levels} levels are not supported.", hint=f"Give 1 to {AXIS_BITS // 2} levels.")
    group = groups_of(offsets, xyz.shape[0])
    keys, inside, extent = grid_keys(xyz, group, offsets.shape[0] - 1, cell=cell)
    segments = Segments.from_ids(keys)
    assert segments.ids is not None
    # One wait for the device for all levels. It also reads the extent, because the keys of a cloud that is
    # too large are wrong.
    deeper = [_ranks(segments.ids >> (3 * depth))[-1] for depth in range(1, levels)]
    largest, first, end, least, *last = torch.stack(
        [extent, *offset_ends(offsets), *(rank.double() for rank in deeper)]
    ).tolist()
    check_offsets(first, end, least, points=xyz.shape[0])
    check_extent(largest, cell)
    all_levels = [Level(segments.ids, neighbours(segments.ids, depth=0), 0)]
    strides = []
    for depth, rank in enumerate(last, start=1):
        keys, stride = _coarser(all_levels[-1].keys, int(rank) + 1)
        all_levels.append(Level(keys, neighbours(keys, depth=depth), depth))
        strides.append(stride)
    return Voxels(segments, tuple(all_levels), tuple(strides), inside, group, offsets.shape[0] - 1)


def groups_of(offsets: Tensor, points: int) -> Tensor:
    """Return (M,) int64: the group of each point; points are ordered by group."""
    places = torch.arange(points, dtype=offsets.dtype, device=offsets.device)
    # Offsets that do not reach the last point are rejected at the next wait for the device; until then, clamp
    # the indices.
    return torch.searchsorted(offsets[1:].contiguous(), places, right=True).clamp_(max=offsets.shape[0] - 2)


def grid_keys(xyz: Tensor, group: Tensor, groups: int, *, cell: CellSize) -> tuple[Tensor, Tensor, Tensor]:
    """Return the keys (M,) int64 of the points' grid cells. cell: one edge, or one each for x, y and z.

    Also returns the positions (M, 3) in the cells, and the largest cell coordinate. The grid passes through
    the origin. The largest coordinate stays on the device, so that the caller can read it together with other
    values and pass it to `check_extent`.
    """
    scaled = xyz.detach().double() / edge_lengths(cell, xyz.device)
    corner = scaled.floor()
    low = group_least(corner, group, groups)
    place = corner - ((low / _ALIGNED).floor() * _ALIGNED)[group]
    cell_index = place.nan_to_num(0.0, 0.0, 0.0).clamp(0, SIDE - 1).long()
    x, y, z = (_spread(cell_index[:, axis]) for axis in range(3))
    keys = (group << 3 * AXIS_BITS) | (x << 2) | (y << 1) | z
    return keys, (scaled - corner - 0.5).to(xyz.dtype), place.amax()


def group_least(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """Return the minimum (B, F) per group of the points' values (M, F); infinity for empty groups."""
    points, width = values.shape
    if groups == 1 and points:
        return values.amin(0, keepdim=True)
    # Spread the points over many rows per group, then take the minimum of the rows: on a GPU a million points
    # that write to the same few numbers would wait for each other.
    lanes = max(1, min(1024, points // (16 * groups)))
    row = group * lanes + torch.arange(points, device=values.device) % lanes
    least = torch.full((groups * lanes, width), math.inf, dtype=values.dtype, device=values.device)
    least.scatter_reduce_(0, row[:, None].expand(-1, width), values, "amin")
    return least.reshape(groups, lanes, width).amin(1)


def check_extent(largest: float, cell: CellSize) -> None:
    """Raise BadInput for clouds that are too large for the keys of `grid_keys`, or not finite."""
    if not math.isfinite(largest):
        raise BadInput(
            "Some coordinates are NaN or infinite.",
            hint="Drop those points first: xyz[xyz.isfinite().all(1)].",
        )
    if largest >= SIDE:
        smallest_cell = show_cell(cell, (largest + 1) / (SIDE - _ALIGNED))
        raise BadInput(
            f"The cloud is {largest + 1:,.0f} cells of {show_cell(cell)} long; at most {SIDE:,} are"
            " supported.",
            hint=f"Give cells of at least {smallest_cell}, or split the cloud.",
        )


def check_offsets(first: float, end: float, least: float, *, points: int) -> None:
    """Raise BadInput for offsets that do not increase from 0 to the number of points.

    least: the smallest difference between consecutive offsets.
    """
    if first != 0 or end != points or least < 0:
        raise BadInput(
            f"The offsets go from {first:,.0f} to {end:,.0f}{' and decrease' if least < 0 else ''},"
            f" but there are {points:,} points.",
            hint="Give offsets that start at 0, never decrease, and end at the number of points.",
        )


def neighbours(keys: Tensor, *, depth: int = 0) -> Tensor:
    """Return (C, 27) int32 for sorted keys: the voxel of the same group at each offset, or C."""
    count, bits = keys.shape[0], AXIS_BITS - depth
    if own_kernels(keys):
        table = torch.full((count, 27), count, dtype=torch.int32, device=keys.device)
        if not is_fake(keys):
            from pinchpoint.systems.cloud.model import neighbours_triton

            with on_device(keys):
                neighbours_triton.fill(keys, table, bits)
        return table
    group = (keys >> 3 * bits) << 3 * bits
    neighbour_keys, outside = group, torch.zeros((), dtype=torch.bool, device=keys.device)
    for axis in range(3):
        at = _compact(keys >> (2 - axis), bits)
        steps = torch.stack([at - 1, at, at + 1])  # (3, C), placed along its own axis of (3, 3, 3, C)
        shape = (*(3 if one == axis else 1 for one in range(3)), count)
        neighbour_keys = neighbour_keys | (_spread(steps.clamp(0, 2**bits - 1)) << (2 - axis)).reshape(shape)
        outside = outside | ((steps < 0) | (steps >= 2**bits)).reshape(shape)
    # If i is at an offset from j, then j is at the opposite offset from i: only half of the offsets are
    # searched, all at once, because a GPU idles between many small steps.
    neighbour_keys, outside = (
        neighbour_keys.reshape(27, count)[SELF + 1 :],
        outside.reshape(27, count)[SELF + 1 :],
    )
    match = torch.searchsorted(keys, neighbour_keys).clamp_(max=count - 1)
    hit = (keys[match] == neighbour_keys).logical_and_(~outside)
    rows = torch.arange(count, dtype=torch.int32, device=keys.device)
    # The table has one additional slot, into which misses are written.
    table = torch.full((count * 27 + 1,), count, dtype=torch.int32, device=keys.device)
    opposite = torch.arange(SELF - 1, -1, -1, device=keys.device)[:, None]
    to = torch.where(hit, match * 27 + opposite, count * 27)
    table.scatter_(0, to.reshape(-1), rows.expand(SELF, count).reshape(-1))
    rows_by_offset = table[:-1].reshape(count, 27)
    rows_by_offset[:, SELF] = rows
    rows_by_offset[:, SELF + 1 :] = torch.where(hit, match, count).T
    return rows_by_offset


def _coarser(keys: Tensor, parents: int) -> tuple[Tensor, Stride]:
    """Return the keys (P,) of the parents, and the tables between the levels."""
    above = keys >> 3
    rank = _ranks(above)
    # All children of a parent write the same key.
    coarse = torch.empty(parents, dtype=torch.int64, device=keys.device).scatter_(0, rank, above)
    place = rank * 8 + (keys & 7)
    children = torch.full((parents * 8,), keys.shape[0], dtype=torch.int32, device=keys.device)
    children[place] = torch.arange(keys.shape[0], dtype=torch.int32, device=keys.device)
    return coarse, Stride(place.int(), children)


def offset_ends(offsets: Tensor) -> list[Tensor]:
    """Return the values that `check_offsets` reads, still on the device."""
    return [offsets[0].double(), offsets[-1].double(), offsets.diff().amin().double()]


def _ranks(ordered: Tensor) -> Tensor:
    """Return (C,) int64: the number of distinct smaller values before each of the sorted values."""
    changes = torch.zeros_like(ordered)
    changes[1:] = ordered[1:] != ordered[:-1]
    return changes.cumsum(0)


def _spread(value: Tensor) -> Tensor:
    """Move bit b of up to 16 bits to bit 3 b."""
    if compat.one_pass(value):
        return compat.pass_over(_SPREAD_PASS, value)
    value = (value | value << 16) & 0xFF0000FF
    value = (value | value << 8) & 0xF00F00F00F
    value = (value | value << 4) & 0xC30C30C30C3
    return (value | value << 2) & 0x249249249249


def _compact(value: Tensor, bits: int) -> Tensor:
    """Move bit 3 b to bit b for `bits` bits: the inverse of `_spread`, ignoring all other bits."""
    value = value & (0x249249249249 & ((1 << 3 * bits) - 1))
    if compat.one_pass(value):
        return compat.pass_over(_COMPACT_PASS, value)
    value = (value | value >> 2) & 0xC30C30C30C3
    value = (value | value >> 4) & 0xF00F00F00F
    value = (value | value >> 8) & 0xFF0000FF
    return (value | value >> 16) & 0xFFFF


def check_batch(xyz: Tensor, offsets: Tensor, cell: CellSize) -> None:
    """Raise BadInput for input that can be recognised as invalid without waiting for the device."""
    if xyz.dim() != 2 or xyz.shape[1] != 3 or not xyz.is_floating_point():
        raise BadInput(
            f"The coordinates have shape {tuple(xyz.shape)} and dtype {xyz.dtype}.",
            hint="Give xyz (M, 3) in float32 or float64.",
        )
    if not xyz.shape[0]:
        raise BadInput("The cloud has no points.", hint="Give at least one point.")
    if offsets.dim() != 1 or offsets.shape[0] < 2 or offsets.is_floating_point():
        raise BadInput(
            f"The offsets have shape {tuple(offsets.shape)}, which is not a list of integers.",
            hint="Give B + 1 integers, from 0 to the number of points.",
        )
    if offsets.shape[0] > 2**GROUP_BITS:
        raise BadInput(
            f"The batch has {offsets.shape[0] - 1:,} scenes and views, which are too many.",
            hint=f"Give at most {2**GROUP_BITS - 1:,}.",
        )
    cell_edges(cell)
