"""Benchmark of sampling from every cell with all variants, and of three views with a gather.

Letters: N points, C cells, M drawn points. The timed boundary starts with the cells, their counts, and the
sum of the counts on the device; it ends, after a wait, with the drawn indices on the device. `loop` and
`grouped` are the whole draw of the point-cloud report from its dictionary of cells: `loop` computes the
counts every time, `grouped` reads them from its cache, and `grouped, cells given` omits that lookup. Both
grouped variants generate one permutation per count, which is less work than a correct draw. All variants
except the loop run once before each timed run, to warm the caches. If `loop` is timed on some of the cells
and scaled up, the record says so. `device_s` is the time on the GPU, measured by replaying a graph of the
draw; launching it from the host takes longer. The floor is the number of bytes that must be read and
written, divided by the speed of a plain copy on the same device.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
import typer
from torch import Tensor

from pinchpoint.backends.base import Backend, backend, resolve_device
from pinchpoint.backends.torch.measurement import device_seconds
from pinchpoint.core import machine as _machine
from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import parse_size, show_seconds
from pinchpoint.kit.segments.subset import Method, sample_one, sample_subset
from pinchpoint.kit.segments.take_rows import take_rows
from pinchpoint.studies.timing import Clock, ratio_interval, timing_of
from pinchpoint.systems.cloud.baseline import GridSampler, grid_of, grouped
from pinchpoint.systems.cloud.workload import Problem, off_by, problem_of
from pinchpoint.systems.common import bench_command, commands

KIT_VARIANTS = ("sort", "exact", "nested")
REPORT_VARIANTS = ("loop", "grouped", "grouped, cells given")
LARGE = 10_000_000  # points of the second problem, which by default runs on a GPU only
WIDTH = 32  # float32 values per point in the gather: 128 bytes
COPY_BYTES = {"cuda": 2**30, "cpu": 2**27}  # size of the copy that determines the floors
LOOP_CELLS = {"cuda": 5_000}  # cells on which the loop is timed
QUEUE_LENGTH = 20  # draws that are queued before one wait
_NONE: tuple[None, None, None] = (None, None, None)
Run = Callable[[], Any]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Row:
    """Times of one variant on one problem.

    scaled: whether the variant was timed on `timed_cells` cells only and its times were scaled up.
    """

    name: str
    points: int
    cells: int
    drawn: int
    seconds: float  # median time of a draw, including the wait
    seconds_low: float  # 95 % interval of the median
    seconds_high: float
    runs: int
    queued_s: float | None  # time per draw if many are queued before one wait
    floor_s: float
    timed_cells: int
    scaled: bool
    over_loop: float | None  # time of the loop divided by the time of this variant, with an interval
    over_loop_low: float | None
    over_loop_high: float | None
    over_grouped: float | None
    over_grouped_low: float | None
    over_grouped_high: float | None
    right: bool  # whether every cell yields its requested count and no point is drawn twice
    # GPU time without the host's launches; None on a CPU and for the variants of the point-cloud report.
    device_s: float | None = None


@dataclass(frozen=True)
class Benchmark(Record):
    """The record of `pinchpoint bench cloud`."""

    kind: ClassVar[str] = "cloud-bench"
    target: str
    device: str
    threads: int
    points: int
    cells: int
    copy_bytes_per_s: float  # bytes read plus bytes written by a plain copy
    rows: tuple[Row, ...]
    same: bool  # whether `exact` and `sort` return identical indices
    waits: int | None  # how often the three views wait for the device; None on a CPU
    notes: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def row(self, name: str, points: int | None = None) -> Row:
        """Return the row of a variant. points: the size of the problem; by default that of the first."""
        return next(row for row in self.rows if row.name == name and row.points == (points or self.points))

    def summary(self) -> list[tuple[str, str]]:
        lines = [("case", f"{self.points:,} points in {self.cells:,} cells, on {self.device}")]
        for row in self.rows:
            interval = f"[{show_seconds(row.seconds_low)}, {show_seconds(row.seconds_high)}]"
            text = f"{show_seconds(row.seconds)} {interval}"
            if row.queued_s is not None:
                text += f", queued {show_seconds(row.queued_s)}"
            if row.device_s is not None:
                text += f", on the device {show_seconds(row.device_s)}"
            text += f", floor {show_seconds(row.floor_s)}"
            for name, ratio in (("loop", row.over_loop), ("grouped", row.over_grouped)):
                if ratio is not None and row.name != name:
                    text += f", {ratio:,.3g}x {name}"
            if row.scaled:
                text += f" (timed on {row.timed_cells:,} cells)"
            label = row.name if row.points == self.points else f"{row.name}, {row.points:,} points"
            lines.append((label, text if row.right else f"{text} WRONG"))
        lines.append(("exact and sort", "the same indices" if self.same else "DIFFERENT indices"))
        return lines


def bench(
    *,
    device: str = "auto",
    cells: int = 50_000,
    points: int = 1_000_000,
    large: int | None = None,
    repeats: int = 15,
    loop_cells: int | None = None,
    seed: int = 0,
    output: str | Path | None = None,
    progress: Progress | None = None,
    clock: Clock = time.perf_counter,
) -> Benchmark:
    """Time all variants.

    large: number of points of a second problem with equally full cells; None means 10 M on a GPU and no
    second problem on a CPU, 0 means none. loop_cells: number of cells on which the loop is timed; None means
    all on a CPU and 5,000 on a GPU.
    """
    if repeats < 1 or (loop_cells is not None and loop_cells < 1):
        raise BadInput(
            f"{repeats} repeats on {loop_cells} cells cannot be timed.", hint="Give at least 1 of each."
        )
    torch_backend = backend("torch")
    device = resolve_device(device, torch_backend)
    timed_cells = min(loop_cells or LOOP_CELLS.get(device, cells), cells)
    report_progress = progress or (lambda stage, done, total: None)
    large_points = (LARGE if device == "cuda" else 0) if large is None else large
    if 0 < large_points < points or large_points < 0:
        raise BadInput(
            f"The second problem has {large_points:,} points, fewer than the first.",
            hint="Give at least as many points as the first problem has, or 0 to skip the second.",
        )
    speed = _copy_speed(torch_backend, device, clock)
    first = problem_of(points, cells, device=device, scene=seed)
    variants = (*REPORT_VARIANTS, *KIT_VARIANTS)
    rows = _rows(
        first, variants, torch_backend, device, speed, repeats, timed_cells, seed, report_progress, clock
    )
    if large_points:
        report_progress("the large problem", 0, 0)
        second = problem_of(large_points, max(1, large_points * cells // points), device=device, scene=seed)
        rows += _rows(
            second, KIT_VARIANTS, torch_backend, device, speed, repeats, 0, seed, report_progress, clock
        )
    by_exact, by_sort = (
        sample_subset(first.segments, first.draws_per_cell, method=m, seed=seed) for m in ("exact", "sort")
    )
    record = Benchmark(
        "draws from cells",
        device,
        torch.get_num_threads(),
        points,
        cells,
        speed,
        tuple(rows),
        torch.equal(by_exact, by_sort),
        _waits(first, device, seed),
        _notes(device, timed_cells, cells),
    )
    if output is not None:
        record.save(output)
    return record


def three_views(problem: Problem, values: Tensor, *, seed: int, step: int) -> Tensor:
    """Gather the rows of all points, of a draw, and of one point per cell: (N + M + C, WIDTH).

    Does not wait for the device.
    """
    segments = problem.segments
    half = sample_subset(segments, problem.draws_per_cell, seed=seed, step=step, view=1, total=problem.total)
    one = sample_one(segments, seed=seed, step=step, view=2)
    return take_rows(values, torch.cat([segments.order, half, one]))


def _rows(
    problem: Problem,
    names: tuple[str, ...],
    torch_backend: Backend,
    device: str,
    speed: float,
    repeats: int,
    loop_cells: int,
    seed: int,
    report_progress: Progress,
    clock: Clock,
) -> list[Row]:
    segments, draws_per_cell = problem.segments, problem.draws_per_cell
    values = torch.empty(segments.points, WIDTH, device=device).uniform_()
    step = iter(range(1, 2**62))

    def by(method: Method) -> Run:
        return lambda: sample_subset(
            segments, draws_per_cell, method=method, seed=seed, step=next(step), view=1, total=problem.total
        )

    all_runs: dict[str, Run] = {"sort": by("sort"), "exact": by("exact"), "nested": by("nested")}
    if loop_cells:
        grid, sampler, first_draws = grid_of(segments), GridSampler(), draws_per_cell[:loop_cells]
        first_cells = {cell: grid[cell] for cell in range(loop_cells)}
        all_runs["loop"] = lambda: sampler.by_loop(first_cells, first_draws)[0]
        all_runs["grouped"] = lambda: sampler.by_count(grid, draws_per_cell)[0]
        all_runs["grouped, cells given"] = lambda: grouped(segments, draws_per_cell, shared=True)
    runs = {name: all_runs[name] for name in names}
    right = {
        name: _is_correct(problem, run(), loop_cells if name == "loop" else None)
        for name, run in runs.items()
    }
    runs["three views"] = lambda: three_views(problem, values, seed=seed, step=next(step))
    right["three views"] = True
    seconds = _time_in_turn(runs, torch_backend, device, repeats, report_progress, clock)
    if loop_cells:
        seconds["loop"] = [one * segments.cells / loop_cells for one in seconds["loop"]]
    rows = []
    for name, run in runs.items():
        timing = timing_of(seconds[name])
        timed_cells = loop_cells if name == "loop" else segments.cells
        is_compared = loop_cells > 0 and name != "three views"
        ratios = [
            ratio_interval(seconds[other], seconds[name]) if is_compared else _NONE
            for other in ("loop", "grouped")
        ]
        rows.append(
            Row(
                name,
                segments.points,
                segments.cells,
                problem.total,
                timing.median_s,
                timing.low_s,
                timing.high_s,
                timing.runs,
                None if name in REPORT_VARIANTS else _queued_seconds(run, torch_backend, device, clock),
                _bytes(problem, views=name == "three views") / speed,
                timed_cells,
                timed_cells < segments.cells,
                *ratios[0],
                *ratios[1],
                right=right[name],
                device_s=None if name in REPORT_VARIANTS or device != "cuda" else device_seconds(run),
            )
        )
    return rows


def _time_in_turn(
    runs: dict[str, Run],
    torch_backend: Backend,
    device: str,
    repeats: int,
    report_progress: Progress,
    clock: Clock,
) -> dict[str, list[float]]:
    for number, run in enumerate(runs.values(), start=1):
        for _ in range(2):
            torch_backend.wait(device, run())
        report_progress("warming up", number, len(runs))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    with _without_garbage_collection():
        for turn in range(repeats):
            # The second variant starts with the caches that the first has left, so alternate the order.
            for name in order if turn % 2 == 0 else reversed(order):
                if name != "loop":  # the loop takes long, and caches do not matter to it
                    runs[name]()
                torch_backend.wait(device)
                start = clock()
                torch_backend.wait(device, runs[name]())
                seconds[name].append(clock() - start)
            report_progress("timing all in turn", turn + 1, repeats)
    return seconds


def _queued_seconds(run: Run, torch_backend: Backend, device: str, clock: Clock) -> float:
    with _without_garbage_collection():
        torch_backend.wait(device)
        start = clock()
        for _ in range(QUEUE_LENGTH):
            last = run()
        torch_backend.wait(device, last)  # pyright: ignore[reportPossiblyUnboundVariable]
        return (clock() - start) / QUEUE_LENGTH


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable Python's garbage collector, which occasionally visits all cells of the dictionary."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _copy_speed(torch_backend: Backend, device: str, clock: Clock) -> float:
    """Return the bytes read and written per second by the fastest of a few copies."""
    source = torch.zeros(COPY_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(8):
        torch_backend.wait(device)
        start = clock()
        target.copy_(source)
        torch_backend.wait(device)
        seconds.append(clock() - start)
    return 2 * COPY_BYTES[device] / max(min(seconds), 1e-9)


def _bytes(problem: Problem, *, views: bool) -> int:
    """Return the bytes that must move: offsets, counts, order, and indices; with views also one row per
    gathered point.
    """
    points, cells, draws = problem.segments.points, problem.segments.cells, problem.total
    draw = 4 * (2 * cells + points + draws)
    rows = points + draws + cells
    return draw + 4 * cells + 2 * 4 * WIDTH * rows if views else draw


def _is_correct(problem: Problem, points: Tensor, cells: int | None) -> bool:
    """Return whether the first `cells` cells yield the requested counts and no point is drawn twice."""
    return len(points.unique()) == len(points) and not off_by(problem, points)[:cells].any()


def _waits(problem: Problem, device: str, seed: int) -> int | None:
    """Return how often the three views wait for the device, counted by torch's warnings; None on a CPU."""
    if device != "cuda":
        return None
    import warnings

    values = torch.zeros(problem.segments.points, WIDTH, device=device)
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            three_views(problem, values, seed=seed, step=0)
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("called a synchronizing" in str(warning.message) for warning in caught)


def _notes(device: str, loop_cells: int, cells: int) -> tuple[str, ...]:
    notes = [
        "the cells, their counts and the sum are inputs; times cover the draw of the indices and the wait"
    ]
    if loop_cells < cells:
        notes.append(f"loop was timed on {loop_cells:,} of {cells:,} cells and scaled up")
    notes.append(
        "loop and grouped draw from a dictionary of cells, as in the point-cloud report;"
        " loop recounts the cells at every draw"
    )
    notes.append(
        "grouped uses one permutation per count, as in the point-cloud report, which is less work than a"
        " correct draw"
    )
    notes.append(
        "three views gathers all points, the drawn points and one point per cell,"
        f" with {4 * WIDTH} bytes per point"
    )
    if device == "cpu":
        notes.append(f"torch used {torch.get_num_threads()} threads; floors come from a copy in memory")
    return tuple(notes)


def command(
    output: Path = bench_command.OUTPUT,
    points: str = typer.Option("1M", "--points", help="Total number of points."),
    cells: str = typer.Option("50k", "--cells", help="Number of cells that hold the points."),
    large: str = typer.Option(
        None,
        "--large",
        help="Number of points of a second problem with equally full cells; 0 skips it."
        "  [default: 10M on a GPU, else 0]",
    ),
    repeats: int = typer.Option(15, "--repeats", help="Runs of each variant."),
    loop_cells: int = typer.Option(
        None,
        "--loop-cells",
        help="Number of cells on which the loop is timed; the time is scaled up."
        "  [default: all; 5,000 on a GPU]",
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of the cells and the samples."),
    device: str = commands.DEVICE,
) -> None:
    """Time one sample from every cell with all variants.

    The variants run in turn, and each time includes the wait for the device: the loop over the cells of
    the point-cloud trainer's optimisation report, its grouped form, one sort of all points, and exact;
    then three views with a gather of 128 B per point. The record says which times were scaled up, how
    fast a plain copy is, and whether the sampled points are correct.
    """
    measure = partial(
        bench,
        points=parse_size(points),
        cells=parse_size(cells),
        large=None if large is None else 0 if large in ("0", "none") else parse_size(large),
        repeats=repeats,
        loop_cells=loop_cells,
        seed=seed,
        device=device,
    )
    bench_command.run_bench(measure, output=output)
