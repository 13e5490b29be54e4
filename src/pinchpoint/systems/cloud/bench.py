"""Benchmark of sampling from every cell by all variants, and of three views with a gather.

Letters: N points, C cells, M drawn points. The timed boundary starts with cells, counts and their sum on the
device and ends, after a wait, with the drawn indices there. `loop` and `grouped` are the whole draw of the
point-cloud report from
its dictionary of cells: `loop` computes the counts every time, `grouped` reads them from its cache, and
`grouped, cells given` omits that lookup. Both grouped variants make one permutation per count, which is less
work than a correct draw. All but the loop run once more before each timed run, for warm caches. If `loop` is
timed on some cells and scaled up, the record says so. `device_s` is the time on the GPU, from replays of a
graph of the draw; the host takes longer to launch it. The floor is the bytes that must be read and written
divided by the speed of a plain copy on the same device.
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
from pinchpoint.systems.common import bench_command

OURS = ("sort", "exact", "nested")
THEIRS = ("loop", "grouped", "grouped, cells given")
LARGE = 10_000_000  # points of the second problem, which only a GPU is given
WIDTH = 32  # float32 of a point in the gather: 128 bytes
COPIED = {"cuda": 2**30, "cpu": 2**27}  # bytes of the copy that floors go by
LOOPED = {"cuda": 5_000}  # cells the loop is timed on
QUEUED = 20  # draws in a row that are waited for once
_NONE: tuple[None, None, None] = (None, None, None)
Run = Callable[[], Any]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Row:
    """One variant on one problem. scaled: timed on `timed_cells` and scaled up."""

    name: str
    points: int
    cells: int
    drawn: int
    seconds: float  # median, waited for
    seconds_low: float  # its 95 % interval
    seconds_high: float
    runs: int
    queued_s: float | None  # of one, where many are queued and waited for once
    floor_s: float
    timed_cells: int
    scaled: bool
    over_loop: float | None  # the loop's seconds over these, with its interval
    over_loop_low: float | None
    over_loop_high: float | None
    over_grouped: float | None
    over_grouped_low: float | None
    over_grouped_high: float | None
    right: bool  # draws the requested count of every cell, and no point twice
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
    copy_bytes_per_s: float  # read and written, by a plain copy
    rows: tuple[Row, ...]
    same: bool  # `exact` gave the indices of `sort`, bit for bit
    waits: int | None  # of the device inside the three views; None on a CPU, which has none
    notes: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def row(self, name: str, points: int | None = None) -> Row:
        """The row of a variant, of the problem with so many points."""
        return next(row for row in self.rows if row.name == name and row.points == (points or self.points))

    def summary(self) -> list[tuple[str, str]]:
        made = [("case", f"{self.points:,} points in {self.cells:,} cells, on {self.device}")]
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
            made.append((label, text if row.right else f"{text} WRONG"))
        made.append(("exact and sort", "the same indices" if self.same else "DIFFERENT indices"))
        return made


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

    large: points of a second problem with equally full cells (None: 10 M on a GPU, skipped on a CPU; 0:
    skipped);
    loop_cells: cells to time the loop on (None: all on a CPU, some on a GPU).
    """
    if repeats < 1 or (loop_cells is not None and loop_cells < 1):
        raise BadInput(
            f"{repeats} repeats on {loop_cells} cells cannot be timed.", hint="Give at least 1 of each."
        )
    used = backend("torch")
    place = resolve_device(device, used)
    some = min(loop_cells or LOOPED.get(place, cells), cells)
    tell = progress or (lambda stage, done, total: None)
    second = (LARGE if place == "cuda" else 0) if large is None else large
    if 0 < second < points or second < 0:
        raise BadInput(
            f"The second problem has {second:,} points, fewer than the first.",
            hint="Give no fewer points than the first has, or 0 to skip it.",
        )
    speed = _copy_speed(used, place, clock)
    first = problem_of(points, cells, device=place, scene=seed)
    rows = _rows(first, (*THEIRS, *OURS), used, place, speed, repeats, some, seed, tell, clock)
    if second:
        tell("the large problem", 0, 0)
        larger = problem_of(second, max(1, second * cells // points), device=place, scene=seed)
        rows += _rows(larger, OURS, used, place, speed, repeats, 0, seed, tell, clock)
    by_exact, by_sort = (
        sample_subset(first.segments, first.wanted, method=m, seed=seed) for m in ("exact", "sort")
    )
    made = Benchmark(
        "draws from cells",
        place,
        torch.get_num_threads(),
        points,
        cells,
        speed,
        tuple(rows),
        torch.equal(by_exact, by_sort),
        _waits(first, place, seed),
        _notes(place, some, cells),
    )
    if output is not None:
        made.save(output)
    return made


def three_views(problem: Problem, values: Tensor, *, seed: int, step: int) -> Tensor:
    """Gather all points, those of a draw and one per cell: (N + M + C, WIDTH). Never waits for the device."""
    segments = problem.segments
    half = sample_subset(segments, problem.wanted, seed=seed, step=step, view=1, total=problem.total)
    one = sample_one(segments, seed=seed, step=step, view=2)
    return take_rows(values, torch.cat([segments.order, half, one]))


def _rows(
    problem: Problem,
    names: tuple[str, ...],
    used: Backend,
    device: str,
    speed: float,
    repeats: int,
    loop_cells: int,
    seed: int,
    tell: Progress,
    clock: Clock,
) -> list[Row]:
    segments, wanted = problem.segments, problem.wanted
    values = torch.empty(segments.points, WIDTH, device=device).uniform_()
    step = iter(range(1, 2**62))

    def by(method: Method) -> Run:
        return lambda: sample_subset(
            segments, wanted, method=method, seed=seed, step=next(step), view=1, total=problem.total
        )

    every: dict[str, Run] = {"sort": by("sort"), "exact": by("exact"), "nested": by("nested")}
    if loop_cells:
        grid, sampler, some = grid_of(segments), GridSampler(), wanted[:loop_cells]
        part = {cell: grid[cell] for cell in range(loop_cells)}
        every["loop"] = lambda: sampler.by_loop(part, some)[0]
        every["grouped"] = lambda: sampler.by_count(grid, wanted)[0]
        every["grouped, cells given"] = lambda: grouped(segments, wanted, shared=True)
    runs = {name: every[name] for name in names}
    right = {
        name: _right(problem, run(), loop_cells if name == "loop" else None) for name, run in runs.items()
    }
    runs["three views"] = lambda: three_views(problem, values, seed=seed, step=next(step))
    right["three views"] = True
    seconds = _in_turn(runs, used, device, repeats, tell, clock)
    if loop_cells:
        seconds["loop"] = [one * segments.cells / loop_cells for one in seconds["loop"]]
    made = []
    for name, run in runs.items():
        timing = timing_of(seconds[name])
        timed = loop_cells if name == "loop" else segments.cells
        compared = loop_cells > 0 and name != "three views"
        over = [
            ratio_interval(seconds[other], seconds[name]) if compared else _NONE
            for other in ("loop", "grouped")
        ]
        made.append(
            Row(
                name,
                segments.points,
                segments.cells,
                problem.total,
                timing.median_s,
                timing.low_s,
                timing.high_s,
                timing.runs,
                None if name in THEIRS else _queued(run, used, device, clock),
                _bytes(problem, views=name == "three views") / speed,
                timed,
                timed < segments.cells,
                *over[0],
                *over[1],
                right=right[name],
                device_s=None if name in THEIRS or device != "cuda" else device_seconds(run),
            )
        )
    return made


def _in_turn(
    runs: dict[str, Run], used: Backend, device: str, repeats: int, tell: Progress, clock: Clock
) -> dict[str, list[float]]:
    for number, run in enumerate(runs.values(), start=1):
        for _ in range(2):
            used.wait(device, run())
        tell("warming up", number, len(runs))
    found: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    with _uncollected():
        for turn in range(repeats):
            # The second variant finds the caches of the first, so alternate the order.
            for name in order if turn % 2 == 0 else reversed(order):
                if name != "loop":  # takes long, and caches do not matter to it
                    runs[name]()
                used.wait(device)
                start = clock()
                used.wait(device, runs[name]())
                found[name].append(clock() - start)
            tell("timing all in turn", turn + 1, repeats)
    return found


def _queued(run: Run, used: Backend, device: str, clock: Clock) -> float:
    with _uncollected():
        used.wait(device)
        start = clock()
        for _ in range(QUEUED):
            last = run()
        used.wait(device, last)  # pyright: ignore[reportPossiblyUnboundVariable]
        return (clock() - start) / QUEUED


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable Python's garbage collector, which now and then visits all cells of the dictionary."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _copy_speed(used: Backend, device: str, clock: Clock) -> float:
    """Return bytes read and written per second: the best of a few copies."""
    source = torch.zeros(COPIED[device] // 4, device=device)
    goal = torch.empty_like(source)
    seconds = []
    for _ in range(8):
        used.wait(device)
        start = clock()
        goal.copy_(source)
        used.wait(device)
        seconds.append(clock() - start)
    return 2 * COPIED[device] / max(min(seconds), 1e-9)


def _bytes(problem: Problem, *, views: bool) -> int:
    """Return the bytes that must move: offsets, counts, order and indices; with views also a row per
    point.
    """
    points, cells, drawn = problem.segments.points, problem.segments.cells, problem.total
    draw = 4 * (2 * cells + points + drawn)
    rows = points + drawn + cells
    return draw + 4 * cells + 2 * 4 * WIDTH * rows if views else draw


def _right(problem: Problem, drawn: Tensor, cells: int | None) -> bool:
    """Return whether the first `cells` cells have the requested counts and no point is drawn twice."""
    return len(drawn.unique()) == len(drawn) and not off_by(problem, drawn)[:cells].any()


def _waits(problem: Problem, device: str, seed: int) -> int | None:
    """How often the three views wait for the device; torch warns of each."""
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
    return sum("called a synchronizing" in str(one.message) for one in caught)


def _notes(device: str, loop_cells: int, cells: int) -> tuple[str, ...]:
    notes = ["cells, counts and their sum are inputs; times cover drawing the indices, including the wait"]
    if loop_cells < cells:
        notes.append(f"loop timed on {loop_cells:,} of {cells:,} cells and scaled up")
    notes.append(
        "loop and grouped draw from a dictionary of cells, as in the point-cloud report; loop recounts"
    )
    notes.append(
        "grouped shares one permutation per count, as in the point-cloud report: less than a correct draw"
    )
    notes.append(
        f"three views: all points, the draw and one per cell, with a gather of {4 * WIDTH} bytes per point"
    )
    if device == "cpu":
        notes.append(f"{torch.get_num_threads()} threads; floors from a copy in memory")
    return tuple(notes)


def command(
    output: Path = bench_command.OUTPUT,
    points: str = typer.Option("1M", "--points", help="Points in all."),
    cells: str = typer.Option("50k", "--cells", help="Cells that hold the points."),
    large: str = typer.Option(
        None, "--large", help="Points of a second problem with equally full cells.  [default: 10M on a GPU]"
    ),
    repeats: int = typer.Option(15, "--repeats", help="Runs of each variant."),
    loop_cells: int = typer.Option(
        None,
        "--loop-cells",
        help="Cells that the loop is timed on; its time is scaled up.  [default: all; 5,000 on a GPU]",
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of the cells and the samples."),
    device: str = bench_command.DEVICE,
) -> None:
    """Time one sample from every cell by all variants.

    In turn and waited for: the loop over the cells of the point-cloud trainer's optimisation report, its
    grouped form, one sort of all points, and exact; then three views with a gather of 128 B per point.
    The record says where a time was scaled up, what a plain copy could do, and whether the sampled
    points are right.
    """
    measure = partial(
        bench,
        points=parse_size(points),
        cells=parse_size(cells),
        large=None if large is None else parse_size(large),
        repeats=repeats,
        loop_cells=loop_cells,
        seed=seed,
        device=device,
    )
    bench_command.run_bench(measure, output=output)
