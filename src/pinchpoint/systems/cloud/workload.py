"""The sampling workload: `size` points in cells, some drawn from each by one of the variants.

The cells and how many are wanted of each follow from the size alone and are known on the host, so that the
places of a draw are the same things for every seed, and can be compared. What is drawn follows from the seed.
A probe draws from another scene too, of equal size and with other points in its cells.
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
BINS = 16  # places of a cell that are told apart in a probe
VIEW = 1  # any but 0, so that `nested` draws otherwise than `exact`


@dataclass(frozen=True)
class Problem:
    """segments: points in cells; wanted: (C,) int32, how many to draw of each; total: their sum."""

    segments: Segments
    wanted: Tensor
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
    wanted = np.floor(lengths * rng.uniform(*RATIOS, cells) + rng.uniform(size=cells)).clip(1, lengths)
    order = np.random.default_rng((scene, points, cells)).permutation(points)
    offsets = np.concatenate([[0], lengths.cumsum()])
    made = (order, offsets, np.repeat(np.arange(cells), lengths), wanted)
    placed = [torch.from_numpy(values.astype(np.int32)).to(device) for values in made]
    segments = Segments(placed[0], placed[1], placed[2], None, int(lengths.max()), empty=False)
    return Problem(segments, placed[3], int(wanted.sum()))


def drawer(variant: str, *, seed: int) -> Draw:
    """Return the draw function of a variant.

    The variants of the point-cloud report use torch's random numbers and ignore the step.
    """
    if variant == "loop":
        return lambda problem, step: baseline.loop(problem.segments, problem.wanted)
    if variant == "grouped":
        return lambda problem, step: baseline.grouped(problem.segments, problem.wanted)
    methods: dict[str, Method] = {"sort": "sort", "exact": "exact", "nested": "nested"}
    method = methods[variant]
    return lambda problem, step: sample_subset(
        problem.segments, problem.wanted, method=method, seed=seed, step=step, view=VIEW, total=problem.total
    )


def probe_of(draw: Draw, problem: Problem, other: Problem) -> Probe:
    """What tells one way of drawing from another. other: a scene of the same cells, with other points in
    them.

    taken: (N,) is the point at this place drawn? places: (BINS,) share of the points drawn at each sixteenth
    of their cells, which the first of every cell give away. alike: what two cells of one count have both
    taken, as a share of what is due if neither knows of the other. off, off_other: (C,) points drawn of a
    cell beyond those wanted, repeated ones included.
    """
    drawn = draw(problem, 0)
    taken = taken_places(problem, drawn)
    offsets = problem.segments.offsets.cpu().numpy()
    cell = problem.segments.of_place.cpu().numpy()
    lengths = np.diff(offsets)
    part = (np.arange(len(cell)) - offsets[cell]) * BINS // lengths[cell]
    held = np.bincount(part, minlength=BINS)
    return Probe(
        outputs={
            "taken": taken,
            "places": np.bincount(part, weights=taken, minlength=BINS) / np.maximum(held, 1),
            "alike": _alike(taken, offsets, lengths, problem.wanted.cpu().numpy()),
            "off": off_by(problem, drawn),
            "off_other": off_by(other, draw(other, 0)),
        }
    )


def taken_places(problem: Problem, drawn: Tensor) -> np.ndarray:
    """(N,) 1 where the point at this place is drawn, else 0."""
    taken = torch.zeros(problem.segments.points, dtype=torch.uint8, device=drawn.device)
    taken[drawn.long()] = 1
    return taken[problem.segments.order.long()].cpu().numpy()


def off_by(problem: Problem, drawn: Tensor) -> np.ndarray:
    """(C,) points drawn of each cell less those wanted of it."""
    cells = problem.segments.of_point()[drawn.long()]
    return (torch.bincount(cells, minlength=problem.segments.cells) - problem.wanted).cpu().numpy()


def _alike(taken: np.ndarray, offsets: np.ndarray, lengths: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """(pairs,) of cells with the same count, each cell in one pair at most."""
    found = []
    for count in np.unique(lengths[lengths > 1]):
        cells = np.flatnonzero(lengths == count)
        for a, b in zip(cells[0::2], cells[1::2], strict=False):
            both = taken[offsets[a] : offsets[a] + count] & taken[offsets[b] : offsets[b] + count]
            found.append(both.sum() * count / (wanted[a] * wanted[b]))
    return np.array(found or [1.0])
