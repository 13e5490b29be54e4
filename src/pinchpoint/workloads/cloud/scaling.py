"""Drawing from cells as a workload: `size` points in cells, some of each drawn, by one of the variants.

The counts of the cells, and how many are wanted of each, follow from the size alone and are known on the host; which points
lie in which cell follows from the seed. So the places of a draw are the same things for every seed, and can be compared.
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
from pinchpoint.kit.segments import Segments
from pinchpoint.kit.subset import Method, sample_subset
from pinchpoint.workloads.cloud import baseline

RATIOS = (0.3, 0.7)  # shares of a cell, as the original's "half" density
LAYOUT = 20_240_601  # seed of the counts
UNEVEN = 4.0  # shape of the gamma distribution the counts follow: they scatter by half their mean
BINS = 16  # places of a cell that are told apart in a probe
VIEW = 1  # any but 0, so that `nested` draws otherwise than `exact`

Draw = Callable[[int], Tensor]  # step -> (M,) points


@dataclass(frozen=True)
class Problem:
    """segments: points in cells; wanted: (C,) int32, how many to draw of each; total: their sum."""

    segments: Segments
    wanted: Tensor
    total: int


def build(size: int, *, device: str, mode: str, variant: str, seed: int, settings: dict[str, str]) -> Case:
    """One case. A step is one draw, another one every time."""
    if size < 1:
        raise BadInput(f"{size} points", mend="give at least 1 point")
    problem = problem_of(size, max(1, round(size / int(settings["occupancy"]))), device=device, seed=seed)
    draw = drawer(variant, problem, seed=seed)
    steps = counting(1)
    return Case(step=lambda: draw(next(steps)), processed=size, probe=lambda: probe_of(problem, draw(0)))


def problem_of(points: int, cells: int, *, device: str, seed: int = 0) -> Problem:
    """Cells of uneven size, with the points in random order; none is empty."""
    if not 1 <= cells <= points:
        raise BadInput(f"{cells:,} cells of {points:,} points", mend="give at least one point a cell")
    rng = np.random.default_rng((LAYOUT, points, cells))
    weights = rng.gamma(UNEVEN, size=cells)
    lengths = 1 + rng.multinomial(points - cells, weights / weights.sum())
    wanted = np.floor(lengths * rng.uniform(*RATIOS, cells) + rng.uniform(size=cells)).clip(1, lengths)
    order = np.random.default_rng((seed, points, cells)).permutation(points)
    offsets = np.concatenate([[0], lengths.cumsum()])
    made = (order, offsets, np.repeat(np.arange(cells), lengths), wanted)
    placed = [torch.from_numpy(values.astype(np.int32)).to(device) for values in made]
    segments = Segments(placed[0], placed[1], placed[2], None, int(lengths.max()), empty=False)
    return Problem(segments, placed[3], int(wanted.sum()))


def drawer(variant: str, problem: Problem, *, seed: int) -> Draw:
    """What draws by the variant of that name. The original's take torch's own random numbers, whatever the step."""
    segments, wanted = problem.segments, problem.wanted
    if variant == "loop":
        return lambda step: baseline.loop(segments, wanted)
    if variant == "grouped":
        return lambda step: baseline.grouped(segments, wanted)
    methods: dict[str, Method] = {"sort": "sort", "exact": "exact", "nested": "nested"}
    method = methods[variant]
    return lambda step: sample_subset(
        segments, wanted, method=method, seed=seed, step=step, view=VIEW, total=problem.total
    )  # fmt: skip


def probe_of(problem: Problem, drawn: Tensor) -> Probe:
    """What tells one way of drawing from another.

    taken: (N,) is the point at this place drawn? places: (BINS,) share of the points drawn at each sixteenth of their cells,
    which the first of every cell give away. alike: what two cells of one count have both taken, as a share of what is due if
    neither knows of the other. off: (C,) points drawn of a cell beyond those wanted, repeated ones included.
    """
    segments = problem.segments
    order, offsets, cell = (values.long().cpu().numpy() for values in (segments.order, segments.offsets, segments.of_place))
    wanted, index = problem.wanted.cpu().numpy(), drawn.long().cpu().numpy()
    place_of = np.empty_like(order)
    place_of[order] = np.arange(len(order))
    places = place_of[index]
    taken = np.zeros(len(order), dtype=np.uint8)
    taken[places] = 1
    lengths = np.diff(offsets)
    within = np.arange(len(order)) - offsets[cell]
    part = within * BINS // lengths[cell]
    held = np.bincount(part, minlength=BINS)
    shares = np.bincount(part, weights=taken, minlength=BINS) / np.maximum(held, 1)
    return Probe(
        outputs={
            "taken": taken,
            "places": shares,
            "alike": _alike(taken, offsets, lengths, wanted),
            "off": np.bincount(cell[places], minlength=len(lengths)) - wanted,
        }
    )


def _alike(taken: np.ndarray, offsets: np.ndarray, lengths: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """(pairs,) of cells with the same count, each cell in one pair at most."""
    found = []
    for count in np.unique(lengths[lengths > 1]):
        cells = np.flatnonzero(lengths == count)
        for a, b in zip(cells[0::2], cells[1::2], strict=False):
            both = taken[offsets[a] : offsets[a] + count] & taken[offsets[b] : offsets[b] + count]
            found.append(both.sum() * count / (wanted[a] * wanted[b]))
    return np.array(found or [1.0])
