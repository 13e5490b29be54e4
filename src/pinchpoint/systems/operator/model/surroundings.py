"""Statistics of a body's own points around each of them, without a list of pairs.

P points, S sources, q places of a block, s sources near it. The number of pairs grows with the square of the
points, so none is listed: points that are close form a block, and a matrix of weights between a block and the
sources around it gives all their sums as a product. If a mesh is finer than a 24th of the radius, points that
share a cell of that size count as one source with the moments of all: the weight, which fades smoothly, is
then evaluated at their middle, which changes the statistics by less than the difference between a mesh of
5,000 panels and one of 20,000. Coarser meshes are processed point by point. Work and memory therefore grow
linearly with the points.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pinchpoint.systems.operator.model.geometry import TURNING, from_sums

CELLS = 24  # per radius
_CPU_BLOCK, _GPU_BLOCK = 128, 1024  # places whose sums are computed together
# Sources processed together: a megabyte of weights, close to the size of the caches; 128 MB on a GPU.
_CPU_NEAR, _GPU_NEAR = 1024, 16_384
_MOMENTS = 10  # 1, x, y, z, xx, yy, zz, xy, yz, zx; with normals n also n (3) and x n, y n, z n (9)
_SUM_COLUMNS = 14  # columns that `from_sums` reads
_SAME = 1e-12  # squared distance below which two places are the same


@torch.no_grad()
def own_statistics(
    points: Tensor, *, radius: float, weights: Tensor | None = None, normals: Tensor | None = None
) -> Tensor:
    """(P, 9) in the dtype of the points: faded statistics of the points (P, 3) around each of them.

    weights: (P,), or None to count every point as one. With normals (P, 3) the result is (P, 21): after the
    nine come the faded sums of the normals (3) and of offset times normal (9, one component of the offset
    after another), with lengths in units of the radius.
    """
    on_cpu = points.device.type == "cpu"
    block, near = (_CPU_BLOCK, _CPU_NEAR) if on_cpu else (_GPU_BLOCK, _GPU_NEAR)
    places = points.double() / radius
    each = torch.ones_like(places[:, 0]) if weights is None else weights.double()
    sources = merge_cells(places, each, None if normals is None else normals.double())
    sources = sources[block_order(_middles(sources), block)]
    boxes = _Boxes(_middles(sources), block)
    sums = places.new_empty(len(places), _SUM_COLUMNS + (0 if normals is None else TURNING))
    for part in block_order(places, block).split(block):
        sums[part] = _sums(places[part], sources, boxes, near)
    return torch.cat([from_sums(sums[:, :_SUM_COLUMNS]), sums[:, _SUM_COLUMNS:]], dim=1).to(points.dtype)


def merge_cells(places: Tensor, weights: Tensor, normals: Tensor | None = None) -> Tensor:
    """(S, 10), or (S, 22) with normals (P, 3): weighted sums of `_MOMENTS` over the places of a cell."""
    cells = torch.floor(places * CELLS)
    number = torch.zeros(len(places), dtype=torch.int64, device=places.device)
    for column in cells.unbind(1):
        # Renumbered at each axis, so that no product of counts exceeds the square of P.
        values, here = torch.unique(column, return_inverse=True)
        number = torch.unique(number * len(values) + here, return_inverse=True)[1]
    order = torch.sort(number, stable=True).indices
    x, w = places[order], weights[order, None]
    parts = [w, w * x, w * x * x, w * x * x.roll(-1, 1)]
    if normals is not None:
        parts += [w * normals[order], _outer(x, w * normals[order])]
    moments = torch.cat(parts, dim=1)
    return torch.segment_reduce(moments, "sum", lengths=torch.bincount(number), axis=0, unsafe=True)


def block_order(places: Tensor, block: int) -> Tensor:
    """(P,) int64: an order in which every run of `block` places, except the last, lies in a small box."""
    blocks: list[Tensor] = []
    todo = [torch.arange(len(places), device=places.device)]
    while todo:
        part = todo.pop()
        if len(part) <= block:
            blocks.append(part)
            continue
        here = places[part]
        axis = int((here.amax(0) - here.amin(0)).argmax())
        order = torch.sort(here[:, axis], stable=True).indices
        half = -(-len(part) // (2 * block)) * block
        todo += [part[order[half:]], part[order[:half]]]
    return torch.cat(blocks)


class _Boxes:
    """Bounding boxes of runs of `block` sources, to find those near a block of places quickly."""

    def __init__(self, middles: Tensor, block: int) -> None:
        self.middles, self.block = middles, block
        lengths = [len(part) for part in middles.split(block)]
        counts = torch.tensor(lengths, device=middles.device)
        self.lows, self.highs = (
            torch.segment_reduce(middles, how, lengths=counts, axis=0, unsafe=True) for how in ("min", "max")
        )

    def near(self, low: Tensor, high: Tensor) -> Tensor:
        """(s,) int64: the sources within 1 of the box from low to high."""
        runs = _within(self.lows, self.highs, low, high)
        numbers = (runs[:, None] * self.block + torch.arange(self.block, device=runs.device)).flatten()
        numbers = numbers[numbers < len(self.middles)]
        here = self.middles[numbers]
        return numbers[_within(here, here, low, high)]


def _within(lows: Tensor, highs: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The boxes that lie within 1 of another box."""
    gap = (lows - high).clamp_min(0) + (low - highs).clamp_min(0)
    return (gap.square().sum(1) <= 1).nonzero().squeeze(1)


def _middles(sources: Tensor) -> Tensor:
    """(S, 3); the origin for a source without weight, which contributes nothing anywhere."""
    return sources[:, 1:4] / sources[:, :1].clamp_min(torch.finfo(sources.dtype).tiny)


def _sums(x: Tensor, sources: Tensor, boxes: _Boxes, near: int) -> Tensor:
    """(q, 14): the sums that `from_sums` reads, for places x (q, 3); then the sums with normals, if any."""
    low, high = x.amin(0), x.amax(0)
    middle = (low + high) / 2
    x = x - middle  # small numbers: a covariance is a small difference of two sums
    sums, distances = x.new_zeros(len(x), sources.shape[1]), x.new_zeros(len(x), 1)
    for numbers in boxes.near(low, high).split(near):
        y, moments = boxes.middles[numbers] - middle, shift_moments(sources[numbers], middle)
        squares = torch.addmm(x.square().sum(1)[:, None] + y.square().sum(1), x, y.T, alpha=-2).clamp_max_(1)
        functional.threshold(squares, _SAME, 0, inplace=True)  # the square root would amplify rounding
        fading = (1 - squares).square_().mul_(3)
        sums += fading @ moments
        distances += fading.mul_(squares.sqrt_()) @ moments[:, :1]
    amount, first, xx, mixed, turning = _split(shift_moments(sums, x))
    products = torch.cat([xx, mixed], dim=1)[:, [0, 3, 5, 3, 1, 4, 5, 4, 2]]
    return torch.cat([amount, distances, first, products, turning], dim=1)


def shift_moments(moments: Tensor, origin: Tensor) -> Tensor:
    """Moments (S, 10) or (S, 22) about another origin: (3,), or (S, 3) with one for each."""
    amount, first, squares, mixed, turning = _split(moments)
    around = origin.roll(-1, -1)
    parts = [
        amount,
        first - amount * origin,
        squares - 2 * first * origin + amount * origin.square(),
        mixed - first * around - first.roll(-1, 1) * origin + amount * origin * around,
    ]
    if turning.shape[1]:
        parts += [turning[:, :3], turning[:, 3:] - _outer(origin.expand_as(first), turning[:, :3])]
    return torch.cat(parts, dim=1)


def _split(moments: Tensor) -> tuple[Tensor, ...]:
    """Amount, first, squares, mixed, and the columns with normals: 12 or none."""
    return moments.split([1, 3, 3, 3, moments.shape[1] - _MOMENTS], dim=1)


def _outer(one: Tensor, other: Tensor) -> Tensor:
    """(S, 9) of (S, 3) and (S, 3): x x', x y', x z', y x', ..."""
    return (one[:, :, None] * other[:, None, :]).flatten(1)
