"""Sampling from every cell of a point cloud with the report's samplers, ours, and those of public libraries.

Letters: N points, C cells, M drawn points. The timed boundary starts with the cells, their counts, and the
sum of the counts on the device; it ends, after a wait, with the drawn indices on the device. `loop` and
`grouped` are the whole draw of the point-cloud report from its dictionary of cells: `loop` computes the
counts every time, and `grouped` reads them from its cache. `grouped` generates one permutation per count,
which is less work than a correct draw. `device_s` is the time on the GPU, measured by replaying a graph of
the draw; launching it from the host takes longer. `queued_s` is the time per draw if many are queued before
one wait. The floor is the number of bytes that must be read and written, divided by the speed of a plain copy
on the same device.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from pinchpoint.backends.torch.measurement import device_seconds, wait
from pinchpoint.kit.segments.subset import Method, sample_one, sample_subset
from pinchpoint.kit.segments.take_rows import take_rows
from pinchpoint.systems.cloud.baseline import GridSampler, grid_of
from pinchpoint.systems.cloud.workload import Problem, off_by, problem_of
from pinchpoint.systems.common.bench.cases import BenchCase, Contender, Contest, Run, Setup, Sizes, imported
from pinchpoint.systems.common.bench.records import Agreement, Floor

POINTS_PER_CELL = 20
WIDTH = 32  # float32 values per point in the gather: 128 bytes
COPY_BYTES: dict[Sizes, int] = {"tiny": 2**16, "small": 2**27, "report": 2**30}
# Cells on which the loop is timed; a share of all.
LOOP_SHARE: dict[Sizes, float] = {"tiny": 0.25, "small": 0.1, "report": 0.1}
QUEUE_LENGTH = 20  # draws that are queued before one wait
CLAIM = (
    "The point-cloud report samples from 50,000 cells in 4,269 ms with a loop, and in 1,200 ms (3.5 times as "
    "fast) with one permutation per count and a cache."
)
HOW = "every cell yields its count, and no point is drawn twice"


def cases() -> tuple[BenchCase, ...]:
    return (
        BenchCase(
            "draw",
            "drawing 30 to 70 % of the points of every cell",
            CLAIM,
            "points",
            {"tiny": 2_000, "small": 200_000, "report": 1_000_000},
            build_draw,
        ),
        BenchCase(
            "large draw",
            "the same draw from ten times as many cells",
            "The point-cloud report has no larger scene.",
            "points",
            {"report": 10_000_000},
            build_large_draw,
        ),
        BenchCase(
            "views",
            "three views of a scene and the features of their points, 128 bytes each",
            "The point-cloud report draws all three views in these 1,200 ms, of 1,590 ms per iteration.",
            "points",
            {"tiny": 2_000, "small": 200_000, "report": 1_000_000},
            build_views,
        ),
    )


def build_draw(setup: Setup) -> Contest:
    problem = _problem(setup)
    cells = problem.segments.cells
    loop_cells = max(1, round(LOOP_SHARE[setup.sizes] * cells))
    grid = cache(lambda: grid_of(problem.segments))
    sampler = GridSampler()

    def loop() -> Run:
        first = {cell: grid()[cell] for cell in range(loop_cells)}
        return lambda: sampler.by_loop(first, problem.draws_per_cell[:loop_cells])[0]

    def grouped() -> Run:
        all_cells = grid()
        return lambda: sampler.by_count(all_cells, problem.draws_per_cell)[0]

    report = [
        Contender(
            "loop",
            loop,
            "baseline",
            work=loop_cells / cells,
            check=lambda points: _is_correct(problem, points, loop_cells),
            note="the report's first sampler: three reads from the device per cell",
        ),
        Contender(
            "grouped",
            grouped,
            "report",
            check=lambda points: _is_correct(problem, points),
            note="the report's last sampler: one permutation per count, shared by all cells of that count",
        ),
    ]
    return Contest(
        [*report, *_samplers(problem, setup)],
        {"cells": cells, "drawn": problem.total},
        _floor(setup, _draw_bytes(problem)),
        notes=(
            f"loop is timed on {loop_cells:,} of {cells:,} cells and scaled up",
            "cells, their counts and the sum are inputs; times cover the draw of the indices and the wait",
        ),
        packages=("torch-geometric",),
    )


def build_large_draw(setup: Setup) -> Contest:
    problem = _problem(setup)
    first, *others = _samplers(problem, setup)
    baseline = Contender(first.name, first.make, "baseline", check=first.check, extras=first.extras)
    return Contest(
        [baseline, *others],
        {"cells": problem.segments.cells, "drawn": problem.total},
        _floor(setup, _draw_bytes(problem)),
        packages=("torch-geometric",),
    )


def build_views(setup: Setup) -> Contest:
    problem = _problem(setup)
    segments, total = problem.segments, problem.total
    generator = torch.Generator(setup.device).manual_seed(setup.seed)
    values = torch.empty(segments.points, WIDTH, device=setup.device).uniform_(generator=generator)
    step = iter(range(1, 2**62))

    def plain() -> Run:
        starts, counts = segments.offsets[:-1].long(), segments.offsets.diff().long()

        def run() -> Tensor:
            half = sample_subset(
                segments, problem.draws_per_cell, method="sort", seed=setup.seed, step=next(step), total=total
            )
            place = (torch.rand(len(counts), device=setup.device) * counts).long().clamp(max=counts - 1)
            one = segments.order[starts + place]
            return values[torch.cat([segments.order, half, one]).long()]

        return run

    def ours() -> Run:
        return lambda: three_views(problem, values, seed=setup.seed, step=next(step))

    def check(rows: Tensor) -> Agreement:
        dense = rows[: segments.points]
        same = torch.equal(dense, values[segments.order.long()])
        right = same and len(rows) == segments.points + total + segments.cells
        return Agreement("the dense view, and the number of rows", None, right)

    drawn_bytes = _draw_bytes(problem) + 4 * segments.cells
    rows = segments.points + total + segments.cells
    extras = _figures(setup)
    return Contest(
        (
            Contender(
                "plain torch", plain, "baseline", check=check, note="a sort, random numbers, and indexing"
            ),
            Contender("three views", ours, check=check, extras=lambda run: extras(run) | _waits(run, setup)),
        ),
        {"cells": segments.cells, "drawn": total, "bytes per point": 4 * WIDTH},
        _floor(setup, drawn_bytes + 2 * 4 * WIDTH * rows),
    )


def three_views(problem: Problem, values: Tensor, *, seed: int, step: int) -> Tensor:
    """Gather the rows of all points, of a draw, and of one point per cell: (N + M + C, WIDTH).

    Does not wait for the device.
    """
    segments = problem.segments
    half = sample_subset(segments, problem.draws_per_cell, seed=seed, step=step, view=1, total=problem.total)
    one = sample_one(segments, seed=seed, step=step, view=2)
    return take_rows(values, torch.cat([segments.order, half, one]))


def _problem(setup: Setup) -> Problem:
    cells = max(1, setup.size // POINTS_PER_CELL)
    return problem_of(setup.size, cells, device=setup.device, scene=setup.seed)


def _samplers(problem: Problem, setup: Setup) -> list[Contender]:
    segments, draws = problem.segments, problem.draws_per_cell
    step = iter(range(1, 2**62))

    def by(method: Method) -> Callable[[], Run]:
        return lambda: (
            lambda: sample_subset(
                segments, draws, method=method, seed=setup.seed, step=next(step), view=1, total=problem.total
            )
        )

    def check(points: Tensor) -> Agreement:
        return _is_correct(problem, points)

    def check_ratio(points: Tensor) -> Agreement:
        counts = torch.bincount(segments.of_point()[points.long()].long(), minlength=segments.cells)
        expected = (0.5 * segments.offsets.diff().double()).ceil().long()
        right = len(points.unique()) == len(points) and torch.equal(counts, expected)
        return Agreement("half of every cell, rounded up, and no point is drawn twice", None, right)

    def top_k() -> Run:
        """PyG draws the points with the largest of random scores, the same share in every cell."""
        select = imported("torch_geometric.nn.pool.select.topk", "torch-geometric").topk
        cell_of_point = segments.of_point().long()
        return lambda: select(torch.rand(segments.points, device=setup.device), 0.5, cell_of_point)

    def on_host() -> Run:
        cell_of_point = segments.of_point().long().cpu().numpy()
        offsets, counts = (one.long().cpu().numpy() for one in (segments.offsets, draws))
        rng = np.random.default_rng(setup.seed)

        def run() -> Tensor:
            order = np.lexsort((rng.random(segments.points), cell_of_point))
            cells = cell_of_point[order]
            rank = np.arange(segments.points) - offsets[cells]
            return torch.from_numpy(order[rank < counts[cells]].astype(np.int32)).to(setup.device)

        return run

    extras = _figures(setup)
    return [
        Contender("sort", by("sort"), check=check, extras=extras, note="one sort of all points"),
        Contender("exact", by("exact"), check=check, extras=extras, note="one pass, one hash per point"),
        Contender(
            "nested", by("nested"), check=check, extras=extras, note="smaller draws are parts of larger"
        ),
        Contender("PyG topk", top_k, "peer", check=check_ratio, note="random scores, half of every cell"),
        Contender(
            "numpy", on_host, "peer", warmup=1, check=check, note="lexsort on the host, as data loaders do"
        ),
    ]


def _figures(setup: Setup) -> Callable[[Run], dict[str, float]]:
    """Return what is measured beside the time of one draw."""

    def measure(run: Run) -> dict[str, float]:
        wait(setup.device)
        start = time.perf_counter()
        for _ in range(QUEUE_LENGTH):
            run()
        wait(setup.device)
        figures = {"queued_s": (time.perf_counter() - start) / QUEUE_LENGTH}
        return figures | ({"device_s": device_seconds(run)} if setup.device == "cuda" else {})

    return measure


def _waits(run: Run, setup: Setup) -> dict[str, float]:
    """Return how often a run waits for the device, counted by torch's warnings; nothing on a CPU."""
    if setup.device != "cuda":
        return {}
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return {"waits": float(sum("called a synchronizing" in str(one.message) for one in caught))}


def _floor(setup: Setup, moved_bytes: int) -> Floor:
    speed = copy_speed(setup)
    return Floor(
        moved_bytes / speed,
        None,
        moved_bytes,
        f"at the {speed / 1e9:,.0f} GB/s of a plain copy on this device",
    )


def copy_speed(setup: Setup) -> float:
    """Return the bytes read and written per second by the fastest of a few copies."""
    size = COPY_BYTES[setup.sizes]
    source = torch.zeros(size // 4, device=setup.device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(8):
        wait(setup.device)
        start = time.perf_counter()
        target.copy_(source)
        wait(setup.device)
        seconds.append(time.perf_counter() - start)
    return 2 * size / max(min(seconds), 1e-9)


def _draw_bytes(problem: Problem) -> int:
    """Return the bytes that a draw must move: offsets, counts, order, and indices."""
    return 4 * (2 * problem.segments.cells + problem.segments.points + problem.total)


def _is_correct(problem: Problem, points: Tensor, cells: int | None = None) -> Agreement:
    """Return whether the first `cells` cells yield the requested counts and no point is drawn twice."""
    right = len(points.unique()) == len(points) and not off_by(problem, points)[:cells].any()
    return Agreement(HOW, None, bool(right))
