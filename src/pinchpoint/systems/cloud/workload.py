"""The sampling workload: `size` points in cells; each variant draws some of the points of every cell.

The cells, and the number of points to draw from each, depend only on the size and are known on the host.
Draws with different seeds can therefore be compared place by place. The seed decides which points are drawn.
A probe also draws from a second scene, which has the same cells but other points in them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count as counting

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.core.workload import Case, Probe
from pinchpoint.kit.segments.segments import Segments
from pinchpoint.kit.segments.subset import Method, sample_subset
from pinchpoint.systems.cloud import baseline

RATIOS = (0.3, 0.7)  # shares of a cell, as the "half" density of the point-cloud report
LAYOUT = 20_240_601  # seed of the counts
UNEVEN = 4.0  # shape of the gamma distribution the counts follow: they scatter by half their mean
BINS = 16  # a probe divides the places of a cell into this many bins
VIEW = 1  # any view but 0, for which `nested` would draw the same points as `exact`


@dataclass(frozen=True)
class Problem:
    """Points in cells, and how many to draw from each.

    segments: the cells; draws_per_cell: (C,) int32; total: its sum.
    """

    segments: Segments
    draws_per_cell: Tensor
    total: int


Draw = Callable[[Problem, int], Tensor]  # (problem, step) -> (M,) points


def build(size: int, *, device: str, mode: str, variant: str, seed: int, settings: dict[str, str]) -> Case:
    """Build one case. Each step is a new draw."""
    if size < 1:
        raise BadInput(f"The size is {size} points, but must be at least 1.", hint="Give at least 1 point.")
    cells = max(1, round(size / int(settings["occupancy"])))
    problem = problem_of(size, cells, device=device)
    draw = drawer(variant, seed=seed)
    steps = counting(1)
    return Case(
        step=lambda: draw(problem, next(steps)),
        processed=size,
        probe=lambda: probe_of(draw, problem, problem_of(size, cells, device=device, scene=seed + 1)),
    )


def problem_of(points: int, cells: int, *, device: str, scene: int = 0) -> Problem:
    """Return cells of uneven size, none empty. scene: seed that assigns points to cells."""
    if not 1 <= cells <= points:
        raise BadInput(
            f"{points:,} points cannot fill {cells:,} cells.", hint="Give at least one point per cell."
        )
    rng = np.random.default_rng((LAYOUT, points, cells))
    weights = rng.gamma(UNEVEN, size=cells)
    lengths = 1 + rng.multinomial(points - cells, weights / weights.sum())
    draws_per_cell = np.floor(lengths * rng.uniform(*RATIOS, cells) + rng.uniform(size=cells)).clip(
        1, lengths
    )
    order = np.random.default_rng((scene, points, cells)).permutation(points)
    offsets = np.concatenate([[0], lengths.cumsum()])
    arrays = (order, offsets, np.repeat(np.arange(cells), lengths), draws_per_cell)
    tensors = [torch.from_numpy(values.astype(np.int32)).to(device) for values in arrays]
    segments = Segments(tensors[0], tensors[1], tensors[2], None, int(lengths.max()), empty=False)
    return Problem(segments, tensors[3], int(draws_per_cell.sum()))


def drawer(variant: str, *, seed: int) -> Draw:
    """Return the draw function of a variant.

    The variants of the point-cloud report use torch's random numbers and ignore the step.
    """
    if variant == "loop":
        return lambda problem, step: baseline.loop(problem.segments, problem.draws_per_cell)
    if variant == "grouped":
        return lambda problem, step: baseline.grouped(problem.segments, problem.draws_per_cell)
    methods: dict[str, Method] = {"sort": "sort", "exact": "exact", "nested": "nested"}
    method = methods[variant]
    return lambda problem, step: sample_subset(
        problem.segments,
        problem.draws_per_cell,
        method=method,
        seed=seed,
        step=step,
        view=VIEW,
        total=problem.total,
    )


def probe_of(draw: Draw, problem: Problem, other: Problem) -> Probe:
    """Return outputs that show whether a draw is uniform and has the right counts.

    other: a scene with the same cells, but other points in them.

    taken: (N,) 1 where the point at this place is drawn, else 0.
    places: (BINS,) share of points drawn in each bin of their cell; it exposes a draw that prefers the first
    points of every cell.
    alike: (pairs,) number of places drawn in both of two cells of one size, as a ratio to the number expected
    of independent draws.
    off, off_other: (C,) number of points drawn from a cell, repeated ones included, minus the number asked
    for.
    """
    points = draw(problem, 0)
    is_drawn = drawn_places(problem, points)
    offsets = problem.segments.offsets.cpu().numpy()
    cell = problem.segments.of_place.cpu().numpy()
    lengths = np.diff(offsets)
    part = (np.arange(len(cell)) - offsets[cell]) * BINS // lengths[cell]
    bin_sizes = np.bincount(part, minlength=BINS)
    return Probe(
        outputs={
            "taken": is_drawn,
            "places": np.bincount(part, weights=is_drawn, minlength=BINS) / np.maximum(bin_sizes, 1),
            "alike": _alike(is_drawn, offsets, lengths, problem.draws_per_cell.cpu().numpy()),
            "off": off_by(problem, points),
            "off_other": off_by(other, draw(other, 0)),
        }
    )


def drawn_places(problem: Problem, points: Tensor) -> np.ndarray:
    """Return (N,): 1 where the point at this place is among `points`, else 0."""
    is_drawn = torch.zeros(problem.segments.points, dtype=torch.uint8, device=points.device)
    is_drawn[points.long()] = 1
    return is_drawn[problem.segments.order.long()].cpu().numpy()


def off_by(problem: Problem, points: Tensor) -> np.ndarray:
    """Return (C,): the number of `points` in each cell minus the number to draw from it."""
    cells = problem.segments.of_point()[points.long()]
    return (torch.bincount(cells, minlength=problem.segments.cells) - problem.draws_per_cell).cpu().numpy()


def _alike(
    is_drawn: np.ndarray, offsets: np.ndarray, lengths: np.ndarray, draws_per_cell: np.ndarray
) -> np.ndarray:
    """Return (pairs,), the output `alike` of a probe: pairs of cells of one size, no cell in two pairs."""
    ratios = []
    for count in np.unique(lengths[lengths > 1]):
        cells = np.flatnonzero(lengths == count)
        for a, b in zip(cells[0::2], cells[1::2], strict=False):
            both = is_drawn[offsets[a] : offsets[a] + count] & is_drawn[offsets[b] : offsets[b] + count]
            ratios.append(both.sum() * count / (draws_per_cell[a] * draws_per_cell[b]))
    return np.array(ratios or [1.0])
