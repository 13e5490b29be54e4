"""Tiles of a cloud of any size: rectangles of the ground plane with at most a given number of points.

Letters: N points. A tile is a column over all heights, so that a network that reads heights above the lowest
point finds the ground in it. Its points with a margin around it are its surroundings; every point is inside
exactly one tile. A rectangle that is only a few margins wide and still has too many points is labelled in
several thinner parts, because in smaller ones nearly all points would be surroundings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pinchpoint.systems.cloud.files.scratch import Scratch

_SIDE = 1024  # most bins along an axis
_READ = 1_000_000
_LEAST = 4  # margins across the smallest tile


@dataclass(frozen=True)
class _Box:
    """Bins x0 .. x1 and y0 .. y1, without the ends."""

    x0: int
    x1: int
    y0: int
    y1: int

    def halves(self, edge: int, *, across: bool) -> tuple[_Box, _Box]:
        """Return both sides of an edge along y, or with `across` along x."""
        if across:
            return replace(self, x1=edge), replace(self, x0=edge)
        return replace(self, y1=edge), replace(self, y0=edge)

    def wider(self, margin: int, shape: tuple[int, int]) -> _Box:
        return _Box(
            max(0, self.x0 - margin),
            min(shape[0], self.x1 + margin),
            max(0, self.y0 - margin),
            min(shape[1], self.y1 + margin),
        )


class Tiles:
    """The tiles of coordinates xyz (N, 3).

    cell: edge of the smallest bin; margin: bins around a tile, at least; most: points of a tile with its
    surroundings.
    """

    def __init__(self, xyz: np.ndarray, *, cell: float, margin: int, most: int) -> None:
        self._xyz, self.most = xyz, most
        low, high = np.full(2, np.inf), np.full(2, -np.inf)
        for start in range(0, len(xyz), _READ):
            part = xyz[start : start + _READ, :2]
            low, high = np.minimum(low, part.min(axis=0)), np.maximum(high, part.max(axis=0))
        self._low = low.astype(np.float64)
        extent = float((high - low).max())
        # A bin holds whole voxels where the cloud is small enough for that.
        self._bin = cell * max(1.0, 2.0 ** np.ceil(np.log2(max(extent / cell / _SIDE, 1e-9))))
        self._margin = max(1, int(np.ceil(margin * cell / self._bin)))
        shape = np.floor((high - low) / self._bin).astype(int) + 1
        self._shape = int(shape[0]), int(shape[1])
        counts = np.zeros(self._shape, np.int64)
        for start in range(0, len(xyz), _READ):
            counts += np.bincount(self._bins(start), minlength=counts.size).reshape(self._shape)
        self._sums = np.zeros((self._shape[0] + 1, self._shape[1] + 1), np.int64)
        self._sums[1:, 1:] = counts.cumsum(0).cumsum(1)
        self._boxes = list(self._divide(_Box(0, self._shape[0], 0, self._shape[1])))

    @property
    def count(self) -> int:
        return len(self._boxes)

    def route(self, scratch: Scratch) -> None:
        """Write the numbers of the points of each tile and its surroundings to disk."""
        if self.count == 1:
            return
        flat = np.arange(self._shape[0] * self._shape[1]).reshape(self._shape)
        wide = [box.wider(self._margin, self._shape) for box in self._boxes]
        bins = [flat[box.x0 : box.x1, box.y0 : box.y1].ravel() for box in wide]
        tiles = np.repeat(np.arange(self.count), [len(one) for one in bins])
        # The tiles of each bin, one bin after another.
        every_bin = np.concatenate(bins)
        order = np.argsort(every_bin, kind="stable")
        tiles, starts = tiles[order], np.searchsorted(every_bin[order], np.arange(flat.size + 1))
        for start in range(0, len(self._xyz), _READ):
            of_point = self._bins(start)
            first, counts = starts[of_point], np.diff(starts)[of_point]
            points = np.repeat(np.arange(len(of_point)), counts)
            within = np.arange(len(points)) - np.repeat(np.cumsum(counts) - counts, counts)
            tile = tiles[np.repeat(first, counts) + within]
            order = np.argsort(tile, kind="stable")
            edges = np.searchsorted(tile[order], np.arange(self.count + 1))
            for number in np.flatnonzero(np.diff(edges)).tolist():
                places = order[edges[number] : edges[number + 1]]
                scratch.append(f"tile-{number}", (points[places] + start).astype(np.int32))

    def parts(self, scratch: Scratch, number: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the points (M,) of a tile with its surroundings, and which of them are inside (M,) bool.

        All points are yielded at once, or, if they are more than `most`, every k-th point in k parts.
        """
        points = None if self.count == 1 else scratch.load(f"tile-{number}", np.int32)
        count = len(self._xyz) if points is None else len(points)
        box = self._boxes[number]
        several = -(-count // self.most)
        for part in range(several):  # one after another, because all at once may not fit into memory
            index = np.arange(part, count, several) if points is None else np.array(points[part::several])
            x, y = np.divmod(self._bins_of(self._xyz[index, :2]), self._shape[1])
            yield index, (x >= box.x0) & (x < box.x1) & (y >= box.y0) & (y < box.y1)

    def _divide(self, box: _Box) -> Iterator[_Box]:
        """Halve a box along its longer side, best where there are gaps, until it has few enough points."""
        boxes = [box]
        while boxes:  # without recursion, which has a limit that many halvings exceed
            box = boxes.pop()
            if not self._points(box):
                continue
            box = self._occupied(box)
            wide, high = box.x1 - box.x0, box.y1 - box.y0
            few = self._points_seen(box) <= self.most
            if few or max(wide, high) <= _LEAST * self._margin:
                yield box
                continue
            edges = np.arange(box.x0 + 1, box.x1) if wide >= high else np.arange(box.y0 + 1, box.y1)
            pairs = [box.halves(edge, across=wide >= high) for edge in edges.tolist()]
            first, second = min(pairs, key=lambda pair: max(self._points_seen(half) for half in pair))
            boxes += [second, first]

    def _occupied(self, box: _Box) -> _Box:
        """Return the smallest box with all points of a box that has some."""
        sums = self._sums
        x = np.flatnonzero(np.diff(sums[box.x0 : box.x1 + 1, box.y1] - sums[box.x0 : box.x1 + 1, box.y0]))
        y = np.flatnonzero(np.diff(sums[box.x1, box.y0 : box.y1 + 1] - sums[box.x0, box.y0 : box.y1 + 1]))
        return _Box(box.x0 + int(x[0]), box.x0 + int(x[-1]) + 1, box.y0 + int(y[0]), box.y0 + int(y[-1]) + 1)

    def _points_seen(self, box: _Box) -> int:
        """Return the number of points of a box and its margin."""
        return self._points(box.wider(self._margin, self._shape))

    def _points(self, box: _Box) -> int:
        sums = self._sums
        return int(sums[box.x1, box.y1] - sums[box.x0, box.y1] - sums[box.x1, box.y0] + sums[box.x0, box.y0])

    def _bins(self, start: int) -> np.ndarray:
        return self._bins_of(self._xyz[start : start + _READ, :2])

    def _bins_of(self, xy: np.ndarray) -> np.ndarray:
        """Return the bins (n,) of positions (n, 2)."""
        place = np.floor((xy.astype(np.float64) - self._low) / self._bin).astype(np.int64)
        place = np.clip(place, 0, np.array(self._shape) - 1)
        return place[:, 0] * self._shape[1] + place[:, 1]
