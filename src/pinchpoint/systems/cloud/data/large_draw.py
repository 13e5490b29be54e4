"""Draws from clouds that do not fit into memory: the same points as from all coordinates at once.

Letters: N points, C cells. The coordinates are read once, in chunks. The cells of a chunk are sorted and kept
on disk, 12 bytes per point. When all bounds are known, ranges of cells with few enough points are collected
from all chunks and drawn one after another, with the numbers that points and cells have in the whole cloud.
Memory grows with `most`, and with the largest cell.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pinchpoint.kit.segments.cell_size import CellSize, cell_edges
from pinchpoint.kit.segments.segments import Segments, require_numbered
from pinchpoint.kit.segments.subset import Method, draw_counts, sample_subset
from pinchpoint.systems.cloud.files.scratch import Scratch


@dataclass(frozen=True)
class Subset:
    """Points drawn from a cloud. mask: (N,) bool; read_end: when all coordinates were read."""

    mask: np.ndarray
    kept: int
    cells: int
    read_end: float


def pick_points(
    segments: Segments, ratio: tuple[float, float] | None, *, method: Method, seed: int, first_cell: int = 0
) -> Tensor:
    """Return the points (M,) to keep, in any order. ratio: of a cell; None keeps one point per cell.

    first_cell: how many cells of the same cloud come before these.
    """
    # Both methods draw the same points, and for a single draw loading a compiler takes longer than a sort.
    once: Method = "sort" if segments.order.device.type == "cpu" else "exact"
    if method == "exact":
        method = once
    if ratio is None:
        return sample_subset(segments, 1, method=once, seed=seed)
    if method == "bernoulli":
        return sample_subset(segments, float(ratio[0]), method=method, seed=seed)
    counts = draw_counts(segments, ratio, seed=seed, first_cell=first_cell)
    return sample_subset(segments, counts, method=method, seed=seed)


def draw_large(
    coordinates: Iterable[np.ndarray],
    ratio: tuple[float, float] | None,
    *,
    cell: CellSize,
    method: Method,
    seed: int,
    scratch: Scratch,
    most: int,
) -> Subset:
    """Draw from coordinates (n, 3) that arrive in chunks. most: points that are sorted at a time."""
    runs = _Runs(cell, scratch)
    for xyz in coordinates:
        runs.add(xyz)
    read_end = time.perf_counter()
    runs.number_cells()
    mask = scratch.create("mask", np.bool_, runs.points)
    cells = kept = 0
    for ids, points in runs.ranges(most):
        segments = Segments.from_ids(torch.from_numpy(ids))
        # The draw depends on the numbers of the points in the whole cloud.
        segments = replace(segments, order=torch.from_numpy(points)[segments.order.long()])
        index = pick_points(segments, ratio, method=method, seed=seed, first_cell=cells).numpy()
        mask[index] = True
        cells, kept = cells + segments.cells, kept + len(index)
    return Subset(mask, kept, cells, read_end)


class _Runs:
    """The cells of all points, sorted within each chunk, on disk."""

    def __init__(self, cell: CellSize, scratch: Scratch) -> None:
        self._edges, self._scratch = np.array(cell_edges(cell)), scratch
        self._boxes: list[tuple[int, np.ndarray, np.ndarray]] = []  # points, lowest and highest cell of a run
        self.points = 0

    def add(self, xyz: np.ndarray) -> None:
        corner = np.floor(xyz.astype(np.float64) / self._edges)
        low, high = corner.min(axis=0), corner.max(axis=0)
        self._check(low, high)
        ids = _pack((corner - low).astype(np.int64), (high - low + 1).astype(np.int64))
        order = np.argsort(ids, kind="stable")
        self._scratch.append("ids", ids[order])
        self._scratch.append("points", (order + self.points).astype(np.int32))
        self._boxes.append((len(ids), low, high))
        self.points += len(ids)

    def number_cells(self) -> None:
        """Replace the numbers of cells within a run by those in the whole cloud, in the same order."""
        low = np.min([box[1] for box in self._boxes], axis=0)
        high = np.max([box[2] for box in self._boxes], axis=0)
        self._check(low, high)
        spans = (high - low + 1).astype(np.int64)
        ids, start = self._scratch.load("ids", np.int64, mode="r+"), 0
        for count, own_low, own_high in self._boxes:
            own_spans = (own_high - own_low + 1).astype(np.int64)
            corner = _unpack(np.array(ids[start : start + count]), own_spans)
            ids[start : start + count] = _pack(corner + (own_low - low).astype(np.int64), spans)
            start += count

    def ranges(self, most: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the cells (n,) int64 and points (n,) int32 of ranges of cells, about `most` or fewer."""
        all_ids = self._scratch.load("ids", np.int64)
        all_points = self._scratch.load("points", np.int32)
        ends = np.cumsum([box[0] for box in self._boxes])
        runs = [
            (all_ids[end - box[0] : end], end - box[0]) for end, box in zip(ends, self._boxes, strict=True)
        ]
        # A sample of every run, close enough that a range misses its size by a quarter at most.
        stride = max(1, most // (4 * len(runs)))
        sample = np.sort(np.concatenate([np.array(ids[::stride]) for ids, _ in runs]))
        edges = np.unique(sample[:: max(1, most // (2 * stride))])
        for low, high in zip(edges, [*edges[1:], None], strict=True):
            ids, points = [], []
            for run, start in runs:
                first = int(np.searchsorted(run, low))
                last = len(run) if high is None else int(np.searchsorted(run, high))
                ids.append(run[first:last])
                points.append(all_points[start + first : start + last])
            yield np.concatenate(ids), np.concatenate(points)

    def _check(self, low: np.ndarray, high: np.ndarray) -> None:
        require_numbered(np.stack([low, high], axis=1).ravel().tolist(), tuple(self._edges.tolist()))


def _pack(corner: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Return numbers (n,) of cells (n, 3) that sort by x, then y, then z. spans: cells along each axis."""
    return (corner[:, 0] * spans[1] + corner[:, 1]) * spans[2] + corner[:, 2]


def _unpack(ids: np.ndarray, spans: np.ndarray) -> np.ndarray:
    above, z = np.divmod(ids, spans[2])
    x, y = np.divmod(above, spans[1])
    return np.stack([x, y, z], axis=1)
