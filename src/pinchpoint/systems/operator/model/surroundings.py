"""What surrounds every point of a body: `statistics` of its own points within a radius, without a list of the pairs.

P points, S sources, q places of a block, s sources near it. Pairs grow with the square of the points, so none is listed:
points that lie together are a block, and a matrix of weights between a block and the sources around it gives all their
sums by a product. Where a mesh is finer than a 24th of the radius, points that share a cell of that size count
as one source with the moments of all: the weight, which fades smoothly, is then taken at their middle, which moves no
number by more than the difference between a mesh of 5,000 panels and one of 20,000 does. Coarser meshes are read
point by point. Work and memory so grow with the points alone.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pinchpoint.systems.operator.model.geometry import TURNING, from_sums

CELLS = 24  # to a radius
_CPU_BLOCK, _GPU_BLOCK = 128, 1024  # places whose sums are made together
_CPU_NEAR, _GPU_NEAR = (
    1024,
    16_384,
)  # sources at one time: a megabyte of weights, near the caches; 128 on a GPU
_MOMENTS = (
    10  # 1, x, y, z, xx, yy, zz, xy, yz, zx; where normals n are given also n (3) and x n, y n, z n (9)
)
_READ = 14  # of `from_sums`
_SAME = 1e-12  # square of a distance below which two places are one


@torch.no_grad()
def own_statistics(
    points: Tensor, *, radius: float, weights: Tensor | None = None, normals: Tensor | None = None
) -> Tensor:
    """(P, 9) in the type of the points, fading: each point's surroundings among the points (P, 3) themselves.

    weights: (P,), or None to count every point as one. With normals (P, 3) it is (P, 21): behind the nine the faded sums of the
    normals (3) and of offset times normal (9, the offset's parts one after another), lengths in units of the radius.
    """
    on_cpu = points.device.type == "cpu"
    block, near = (_CPU_BLOCK, _CPU_NEAR) if on_cpu else (_GPU_BLOCK, _GPU_NEAR)
    places = points.double() / radius
    each = torch.ones_like(places[:, 0]) if weights is None else weights.double()
    sources = merged(places, each, None if normals is None else normals.double())
    sources = sources[together(_middles(sources), block)]
    boxes = _Boxes(_middles(sources), block)
    sums = places.new_empty(len(places), _READ + (0 if normals is None else TURNING))
    for part in together(places, block).split(block):
        sums[part] = _sums(places[part], sources, boxes, near)
    return torch.cat([from_sums(sums[:, :_READ]), sums[:, _READ:]], dim=1).to(points.dtype)


def merged(places: Tensor, weights: Tensor, normals: Tensor | None = None) -> Tensor:
    """(S, 10), with normals (P, 3) (S, 22): weighted sums of `_MOMENTS`, one row for all places (P, 3) of a cell."""
    cells = torch.floor(places * CELLS)
    number = torch.zeros(len(places), dtype=torch.int64, device=places.device)
    for column in cells.unbind(1):
        # Numbered anew at each axis, so that no product of counts is beyond the square of P.
        values, here = torch.unique(column, return_inverse=True)
        number = torch.unique(number * len(values) + here, return_inverse=True)[1]
    order = torch.sort(number, stable=True).indices
    x, w = places[order], weights[order, None]
    parts = [w, w * x, w * x * x, w * x * x.roll(-1, 1)]
    if normals is not None:
        parts += [w * normals[order], _outer(x, w * normals[order])]
    moments = torch.cat(parts, dim=1)
    return torch.segment_reduce(moments, "sum", lengths=torch.bincount(number), axis=0, unsafe=True)


def together(places: Tensor, block: int) -> Tensor:
    """(P,) int64: an order in which every run of `block` places, but the last, lies in a small box."""
    done: list[Tensor] = []
    todo = [torch.arange(len(places), device=places.device)]
    while todo:
        part = todo.pop()
        if len(part) <= block:
            done.append(part)
            continue
        here = places[part]
        axis = int((here.amax(0) - here.amin(0)).argmax())
        order = torch.sort(here[:, axis], stable=True).indices
        half = -(-len(part) // (2 * block)) * block
        todo += [part[order[half:]], part[order[:half]]]
    return torch.cat(done)


class _Boxes:
    """Around each run of `block` sources, to find those near a block of places without looking at all."""

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
    """Which of the boxes lie within 1 of another."""
    gap = (lows - high).clamp_min(0) + (low - highs).clamp_min(0)
    return (gap.square().sum(1) <= 1).nonzero().squeeze(1)


def _middles(sources: Tensor) -> Tensor:
    """(S, 3); the origin for a source without weight, which adds nothing wherever it lies."""
    return sources[:, 1:4] / sources[:, :1].clamp_min(torch.finfo(sources.dtype).tiny)


def _sums(x: Tensor, sources: Tensor, boxes: _Boxes, near: int) -> Tensor:
    """(q, 14): what `from_sums` reads, of places x (q, 3); behind it the sums with normals where the sources have them."""
    low, high = x.amin(0), x.amax(0)
    middle = (low + high) / 2
    x = x - middle  # small numbers, as a covariance is a small difference of two sums
    sums, distances = x.new_zeros(len(x), sources.shape[1]), x.new_zeros(len(x), 1)
    for numbers in boxes.near(low, high).split(near):
        y, moments = boxes.middles[numbers] - middle, shifted(sources[numbers], middle)
        squares = torch.addmm(x.square().sum(1)[:, None] + y.square().sum(1), x, y.T, alpha=-2).clamp_max_(1)
        functional.threshold(squares, _SAME, 0, inplace=True)  # the root would make much of a rounding
        fading = (1 - squares).square_().mul_(3)
        sums += fading @ moments
        distances += fading.mul_(squares.sqrt_()) @ moments[:, :1]
    amount, first, xx, mixed, turning = _split(shifted(sums, x))
    products = torch.cat([xx, mixed], dim=1)[:, [0, 3, 5, 3, 1, 4, 5, 4, 2]]
    return torch.cat([amount, distances, first, products, turning], dim=1)


def shifted(moments: Tensor, origin: Tensor) -> Tensor:
    """Moments (S, 10) or (S, 22) about another origin: (3,), or (S, 3) for each its own."""
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
    """Amount, first, squares, mixed, and what there is with normals: 12 columns or none."""
    return moments.split([1, 3, 3, 3, moments.shape[1] - _MOMENTS], dim=1)


def _outer(one: Tensor, other: Tensor) -> Tensor:
    """(S, 9) of (S, 3) and (S, 3): x x', x y', x z', y x', ..."""
    return (one[:, :, None] * other[:, None, :]).flatten(1)
