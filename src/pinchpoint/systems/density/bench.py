"""Timings of the model's forms on HfO2: seconds for the probes of a whole grid, peak memory, and agreement.

The clock runs from the atoms' features to densities in host memory and includes the neighbour search.
`original` also recomputes the atoms for each of its chunks, as in the ChargE3Net-style density report.
`plain` is the scalar form with torch's own kernels, the only ones available on a CPU. `plain` and `scalar`
compute the whole grid. `original` and `full` are timed on a few chunks spread over the grid and scaled to all
probes, since each probe takes them nearly the same time; the record says so. The weights are random, because
neither time nor memory depends on them. The forms take turns, the device is synchronised before both clock
readings, and peaks come from separate runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import typer
from torch import Tensor

from pinchpoint.backends.base import Backend, backend, resolve_device
from pinchpoint.core import machine as _machine
from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.studies.timing import ratio_interval, timing_of
from pinchpoint.systems.common import bench_command, commands
from pinchpoint.systems.density.data.data_settings import check_seed
from pinchpoint.systems.density.grid.bricks import Surroundings, bricks_of, surroundings_of
from pinchpoint.systems.density.grid.grids import choose_grid, parse_grid
from pinchpoint.systems.density.grid.hafnia import hafnia
from pinchpoint.systems.density.grid.periodic_images import atom_graph
from pinchpoint.systems.density.grid.sweep import sweep
from pinchpoint.systems.density.model.atom_network import AtomGraph
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.full_form import FullForm
from pinchpoint.systems.density.model.model import DensityModel

Form = Literal["original", "full", "plain", "scalar"]
FORMS: tuple[Form, ...] = ("original", "full", "plain", "scalar")
USUAL_FORMS: dict[str, tuple[Form, ...]] = {"cuda": FORMS, "cpu": ("original", "full", "scalar")}
CHUNK = 3_000  # probes per chunk in the ChargE3Net-style density report
KNOTS = 4_096
# A grid and a width that take about a minute.
USUAL: dict[str, tuple[tuple[int, int, int], int]] = {"cuda": ((80, 80, 80), 500), "cpu": ((12, 12, 12), 100)}
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class FormTimes:
    """Timing of one form over the whole grid.

    scaled: whether it was timed on `timed_probes` and scaled to the grid.
    """

    form: Form
    chunk: int  # probes per chunk
    timed_probes: int
    scaled: bool
    seconds: float  # median, for the whole grid
    seconds_low: float  # 95 % interval of the median
    seconds_high: float
    runs: int
    peak_bytes: int | None  # peak allocated
    speedup: float  # the first form's seconds divided by this form's
    speedup_low: float
    speedup_high: float
    error: float | None  # relative L2 distance from the full form, at the probes computed by both


@dataclass(frozen=True)
class Benchmark(Record):
    """The record of `pinchpoint bench density`."""

    kind: ClassVar[str] = "density-bench"
    target: str
    device: str
    grid: tuple[int, int, int]
    probes: int
    pairs: int  # pairs of a probe and a neighbour slot in the scalar form, including padding
    mul: int
    lmax: int
    forms: tuple[FormTimes, ...]
    atoms_s: float  # to compute the features of the atoms once, in the scalar form
    notes: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        grid = " x ".join(map(str, self.grid))
        rows = [
            (
                "case",
                f"{self.target}, {grid} = {self.probes:,} probes, mul {self.mul}, lmax {self.lmax}, "
                f"on {self.device}",
            )
        ]
        for one in self.forms:
            peak = "" if one.peak_bytes is None else f", peak {show_bytes(one.peak_bytes)}"
            low, high = show_seconds(one.seconds_low), show_seconds(one.seconds_high)
            text = f"{show_seconds(one.seconds)} [{low}, {high}]{peak}"
            if one.form != self.forms[0].form:
                text += f", {one.speedup:.4g}x [{one.speedup_low:.4g}, {one.speedup_high:.4g}]"
            if one.error is not None:
                text += f", {one.error:.1e} from full"
            rows.append((one.form, text))
        return rows


def bench(
    *,
    device: str = "auto",
    grid: tuple[int, int, int] | None = None,
    mul: int | None = None,
    lmax: int = 4,
    forms: tuple[Form, ...] | None = None,
    repeats: int = 7,
    chunks: int = 4,
    chunk: int = CHUNK,
    seed: int = 0,
    output: str | Path | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Benchmark:
    """Time the forms in turn; by default all of them, without `plain` on a CPU.

    chunks: number of chunks of `chunk` probes that `original` and `full` are timed on. output: path of the
    JSON record.
    """
    torch_backend = backend("torch")
    place = resolve_device(device, torch_backend)
    forms = USUAL_FORMS[place] if forms is None else forms
    _check(forms, repeats, chunks, chunk)
    check_seed(seed)
    usual_grid, usual_mul = USUAL[place]
    structure = hafnia()
    points = choose_grid(structure.lattice, grid=usual_grid if grid is None else grid)
    width = usual_mul if mul is None else mul
    config = DensityConfig.preset("original", ("Hf", "O"), mul=width, lmax=lmax)
    model = DensityModel(config, seed=seed).to(place).eval()
    graph = atom_graph(structure, config, device=place)
    near = surroundings_of(
        structure, bricks_of(points, structure.lattice, config.cutoff_a), config.cutoff_a, device=place
    )
    runs: dict[Form, _Run] = {}
    full = FullForm(model, seed=seed + 1).eval() if set(forms) - {"plain", "scalar"} else None
    for form in forms:
        if full is None or form in ("plain", "scalar"):
            runs[form] = _WholeGrid(model, graph, near, own_kernel=form == "scalar")
        else:
            runs[form] = _SomeChunks(full, graph, near, chunks, chunk, again=form == "original")
    seconds, atoms_s = _times(
        runs,
        torch_backend,
        place,
        repeats,
        clock,
        progress or (lambda stage, done, total: None),
        model,
        graph,
    )
    peaks: dict[Form, int | None] = {form: _peak(run, torch_backend, place) for form, run in runs.items()}
    record = Benchmark(
        f"HfO2, {len(structure.species)} atoms",
        place,
        points,
        math.prod(points),
        _pairs(runs),
        width,
        lmax,
        tuple(_form_times(form, forms[0], runs, seconds, peaks) for form in forms),
        atoms_s,
        _notes(runs, place),
    )
    if output is not None:
        record.save(output)
    return record


class _WholeGrid:
    """Runs the scalar form over the whole grid."""

    def __init__(
        self, model: DensityModel, graph: AtomGraph, near: Surroundings, *, own_kernel: bool
    ) -> None:
        self.form, self.graph, self.near = model.tabulate(KNOTS, own_kernel=own_kernel), graph, near
        with torch.no_grad():
            self.fields = model.fields(graph)
        self.numbers = np.arange(near.bricks.count)
        self.share = 1.0
        self.chunk, self.pairs = 0, 0
        self.values = np.empty(0)

    def __call__(self) -> None:
        outputs = self.form.config.outputs
        result = sweep(
            self.form,
            lambda: self.fields,
            self.graph.species,
            self.near,
            outputs=outputs,
            heavy=self.form.heavy(self.fields),
        )
        self.values, self.chunk, self.pairs = result.values, result.chunk, result.pairs


class _SomeChunks:
    """Runs the full form over a few chunks. again: whether to recompute the atoms for each chunk."""

    def __init__(
        self, form: FullForm, graph: AtomGraph, near: Surroundings, chunks: int, chunk: int, *, again: bool
    ) -> None:
        self.form, self.graph, self.near, self.again = form, graph, near, again
        with torch.no_grad():
            self.fields = form.fields(graph)
        each = min(-(-chunk // near.bricks.probes), near.bricks.count)
        count = min(chunks, near.bricks.count // each)
        starts = np.linspace(0, near.bricks.count - each, count).astype(np.int64)
        self.parts = [
            torch.arange(start, start + each, device=graph.species.device) for start in starts.tolist()
        ]
        self.numbers = np.concatenate([np.arange(start, start + each) for start in starts.tolist()])
        self.share = each * count / near.bricks.count
        self.chunk, self.pairs = each * near.bricks.probes, 0
        self.slots = int(near.counts(torch.arange(near.bricks.count, device=graph.species.device)).max())
        self.values = np.empty(0)

    @torch.no_grad()
    def __call__(self) -> None:
        values = []
        for numbers in self.parts:
            fields = self.form.fields(self.graph) if self.again else self.fields
            neighbours, vectors = self.near.neighbours(numbers, self.slots)
            values.append(self.form(fields, self.graph.species, neighbours, vectors).cpu().numpy())
        self.values = np.concatenate(values)


_Run = _WholeGrid | _SomeChunks


def _times(
    runs: dict[Form, _Run],
    torch_backend: Backend,
    device: str,
    repeats: int,
    clock: Callable[[], float],
    tell: Progress,
    model: DensityModel,
    graph: AtomGraph,
) -> tuple[dict[Form, list[float]], float]:
    """Return the seconds of each run of each form for the whole grid, and those of the atoms.

    The atoms are timed in the scalar form.
    """

    def once(run: Callable[[], Any]) -> float:
        torch_backend.wait(device)
        start = clock()
        run()
        torch_backend.wait(device)
        return clock() - start

    seconds: dict[Form, list[float]] = {form: [] for form in runs}
    order = list(runs)
    for form in order:
        for _ in range(2):  # e3nn compiles its couplings during the first calls
            tell(f"warming up {form}", 0, 0)
            once(runs[form])
    for turn in range(repeats):
        # The form that runs second benefits from the caches of the first, so the order rotates.
        for form in order[turn % len(order) :] + order[: turn % len(order)]:
            tell(form, turn, repeats)
            seconds[form].append(once(runs[form]) / runs[form].share)

    def describe() -> Tensor:
        with torch.no_grad():
            return model.fields(graph)

    once(describe)
    return seconds, timing_of([once(describe) for _ in range(repeats)]).median_s


def _peak(run: _Run, torch_backend: Backend, device: str) -> int | None:
    """Return the peak of a separate run. On a CPU, every tensor is tracked, which is slow."""
    if device != "cuda":
        return torch_backend.account(run)
    torch_backend.reset_peak(device)
    run()
    return torch_backend.peaks(device).allocated_bytes


def _form_times(
    form: Form,
    first: Form,
    runs: dict[Form, _Run],
    seconds: dict[Form, list[float]],
    peaks: dict[Form, int | None],
) -> FormTimes:
    run, timing = runs[form], timing_of(seconds[form])
    speedup = ratio_interval(seconds[first], seconds[form])
    return FormTimes(
        form,
        run.chunk,
        len(run.numbers) * run.near.bricks.probes,
        run.share < 1,
        timing.median_s,
        timing.low_s,
        timing.high_s,
        timing.runs,
        peaks[form],
        *speedup,
        error=_error(run, runs.get("full")) if form != "full" else None,
    )


def _error(run: _Run, full: _Run | None) -> float | None:
    if full is None:
        return None
    here = np.searchsorted(run.numbers, full.numbers)
    reference, values = full.values.astype(np.float64), run.values[here].astype(np.float64)
    return float(np.linalg.norm(values - reference) / np.linalg.norm(reference))


def _pairs(runs: dict[Form, _Run]) -> int:
    return max(run.pairs for run in runs.values())


def _notes(runs: dict[Form, _Run], device: str) -> tuple[str, ...]:
    partial: list[Form] = [form for form, run in runs.items() if run.share < 1]
    notes = [
        "random weights; seconds from the atoms' features to densities in host memory, including the "
        "neighbour search"
    ]
    if partial:
        some_run = runs[partial[0]]
        probes = len(some_run.numbers) * some_run.near.bricks.probes
        notes.append(
            f"{' and '.join(partial)} timed on {probes:,} probes in chunks of {some_run.chunk:,} and scaled "
            "to the whole grid"
        )
    if device == "cuda":
        notes.append("peaks are the bytes torch allocated, with the weights of all forms in memory")
    else:
        notes.append("peaks count tensors, not the workspace inside kernels")
    return tuple(notes)


def _check(forms: tuple[Form, ...], repeats: int, chunks: int, chunk: int) -> None:
    strange = [form for form in forms if form not in FORMS]
    if strange or not forms or len(set(forms)) < len(forms):
        raise BadInput(
            f"The forms {', '.join(forms) or '(none)'} cannot be timed: each must exist and be listed once.",
            hint=f"Set --forms to some of {', '.join(FORMS)}.",
        )
    if min(repeats, chunks, chunk) < 1:
        raise BadInput(
            f"A benchmark cannot run {repeats} repeats of {chunks} chunks of {chunk} probes.",
            hint="Use at least 1 of each.",
        )


def command(
    output: Path = bench_command.OUTPUT,
    grid: str = typer.Option(
        None, "--grid", metavar="NX,NY,NZ", help="Grid of HfO2.  [default: 80,80,80 on cuda, 12,12,12 on cpu]"
    ),
    mul: int = typer.Option(None, "--mul", help="Width of the network.  [default: 500 on cuda, 100 on cpu]"),
    forms: str | None = typer.Option(
        None,
        "--forms",
        help="Forms to time, from original,full,plain,scalar; the first is the baseline. plain is scalar "
        "with torch's own kernels.",
    ),
    repeats: int = typer.Option(7, "--repeats", help="Number of timed runs per form."),
    seed: int = typer.Option(0, "--seed", help="Seed of the random weights."),
    device: str = commands.DEVICE,
) -> None:
    """Time the forms of the model in turn on HfO2.

    Prints the seconds of the probe stage for a whole grid, peaks, and how well the forms agree. The slow
    forms are timed on a few chunks and scaled up, which the record says.
    """
    names: Any = None if forms is None else tuple(word.strip() for word in forms.split(","))
    measure = partial(
        bench,
        device=device,
        grid=None if grid is None else parse_grid(grid),
        mul=mul,
        forms=names,
        repeats=repeats,
        seed=seed,
    )
    bench_command.run_bench(measure, output=output)
