"""Timing the variants of a workload in turn with its baseline, at one size on this machine.

Model and data are built outside the clock. Each variant runs in turn with the baseline (A B B A), and the
device is waited for before both clock readings. Peaks are measured in runs of their own.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import typer

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core import machine as _machine
from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Record, now
from pinchpoint.core.settings import Overrides, parse_pairs, suggest
from pinchpoint.core.units import parse_size, show_bytes, show_seconds
from pinchpoint.core.workload import Workload
from pinchpoint.studies.timing import Clock, interleave, measure, ratio_interval, timing_of
from pinchpoint.systems.common import bench_command, commands

WARMUP = {"cuda": 3, "cpu": 1}
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class VariantTime:
    """One training step of one variant, median with its 95 % interval."""

    name: str
    seconds: float
    seconds_low: float
    seconds_high: float
    runs: int
    peak_bytes: int | None  # most allocated by the framework; None where it cannot be known
    speedup: float | None = None  # baseline / variant; None for the baseline itself
    speedup_low: float | None = None
    speedup_high: float | None = None


@dataclass(frozen=True)
class VariantBench(Record):
    """What `pinchpoint bench` measures for a system whose workload is timed."""

    kind: ClassVar[str] = "variant-bench"
    target: str
    device: str
    axis: str
    size: int
    settings: dict[str, str]
    variants: tuple[VariantTime, ...]  # the first is the baseline
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        chosen = "".join(f", {name} {value}" for name, value in self.settings.items())
        rows = [("case", f"{self.target}, {self.size:,} {self.axis}{chosen}, on {self.device}")]
        for one in self.variants:
            low, high = show_seconds(one.seconds_low), show_seconds(one.seconds_high)
            text = f"{show_seconds(one.seconds)} [{low}, {high}]"
            if one.peak_bytes is not None:
                text += f", peak {show_bytes(one.peak_bytes)} allocated"
            if one.speedup is not None:
                text += f", {one.speedup:.2f}x [{one.speedup_low:.2f}, {one.speedup_high:.2f}]"
            rows.append((one.name, text))
        return rows


def bench_variants(
    workload: Workload,
    *,
    size: int | None = None,
    variants: Sequence[str] | None = None,
    settings: Overrides | None = None,
    repeats: int = 9,
    seed: int = 0,
    device: str = "auto",
    output: Path | None = None,
    progress: Progress | None = None,
    clock: Clock = time.perf_counter,
) -> VariantBench:
    """Time a training step of variants of a workload; the first one is the baseline. variants: None for all
    of them.
    """
    known = [variant.name for variant in workload.variants]
    names = list(variants or known)
    for name in names:
        if name not in known:
            raise BadInput(f"There is no variant {name!r} of {workload.name}.", hint=suggest(name, known))
    if len(set(names)) < len(names):
        raise BadInput(f"A variant is listed twice: {', '.join(names)}.", hint="List each variant once.")
    if repeats < 1:
        raise BadInput(f"--repeats {repeats} is out of range.", hint="Give --repeats at least 1.")
    used = backend(workload.framework)
    place = resolve_device(device, used)
    points = size or workload.default_size

    def step_of(name: str) -> Callable[[], Any]:
        chunk = next(variant.chunk for variant in workload.variants if variant.name == name)
        case = workload.case(
            points, device=place, mode="train", variant=name, seed=seed, chunk=chunk, settings=settings
        )
        return lambda: case.step(*case.args)

    def wait(result: Any) -> None:
        used.wait(place, result)

    base, rows = step_of(names[0]), []
    for number, name in enumerate(names):
        if progress is not None:
            progress(name, number, len(names))
        if number == 0:
            timing = measure(base, wait=wait, warmup=WARMUP[place], repeats=repeats, clock=clock)
            ratio: tuple[float | None, ...] = (None, None, None)
        else:
            step = step_of(name)
            before, times = interleave(
                base, step, wait=wait, warmup=WARMUP[place], repeats=repeats, clock=clock
            )
            timing, ratio = timing_of(times), ratio_interval(before, times, seed=seed)
            del step
        gc.collect()
        rows.append((name, timing, ratio))
    del base
    variant_times = []
    for name, timing, ratio in rows:
        gc.collect()
        peak = _peak(step_of(name), used, place)
        variant_times.append(
            VariantTime(name, timing.median_s, timing.low_s, timing.high_s, timing.runs, peak, *ratio)
        )
    record = VariantBench(
        workload.name,
        place,
        workload.axis,
        points,
        workload.resolve_settings(settings),
        tuple(variant_times),
    )
    if output is not None:
        record.save(output)
    return record


def _peak(step: Callable[[], Any], used: Any, device: str) -> int | None:
    """Most bytes that the framework allocated in a second step."""
    used.wait(device, step())
    if device == "cpu":
        return used.account(step)
    used.reset_peak(device)
    used.wait(device, step())
    return used.peaks(device).allocated_bytes


def variant_command(workload: Workload, about: str) -> Callable[..., None]:
    """The function `command` of a system whose bench times its workload. about: the help text."""

    def command(
        output: Path = bench_command.OUTPUT,
        size: str = typer.Option(
            str(workload.default_size), "--size", help=f"Number of {workload.axis}, such as 1M."
        ),
        variants: str = typer.Option(
            None,
            "--variants",
            help="Variants with commas between; the first is the baseline.  [default: all]",
        ),
        settings: list[str] = typer.Option(
            None,
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the workload; see pinchpoint list workloads.",
        ),
        repeats: int = typer.Option(9, "--repeats", help="Runs of each variant."),
        seed: int = typer.Option(0, "--seed", help="Seed of weights and data."),
        device: str = commands.DEVICE,
    ) -> None:
        measure_variants = partial(
            bench_variants,
            workload,
            size=parse_size(size),
            variants=None if variants is None else [name.strip() for name in variants.split(",")],
            settings=parse_pairs(settings or ()),
            repeats=repeats,
            seed=seed,
            device=device,
        )
        bench_command.run_bench(measure_variants, output=output)

    command.__doc__ = about
    return command
