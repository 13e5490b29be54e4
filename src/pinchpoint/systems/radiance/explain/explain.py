"""explain_memory: how every memory trick affects the peak, time and gradients of one GAN iteration.

Peaks are those of an iteration of the GRAF memory guide (8 images of 32 x 32 rays, 64 points per ray). They
are predicted without a GPU and, if there is a GPU, also measured, each in a process of its own. Times are
measured on real iterations, with the tricks taking turns: at a small scale on a CPU, at the guide's scale on
a GPU. Gradients are always compared at the small scale: among a billion units, rounding always pushes some
across the zero of their activation, which changes even the baseline's own gradients by more than the
tolerance. `verdict` has four values with fixed rules; see `judge`.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_output
from pinchpoint.core.settings import Setting
from pinchpoint.core.targets import find
from pinchpoint.core.workload import Case, Variant, Workload
from pinchpoint.forecasting import cards, gpu_measurement
from pinchpoint.forecasting.forecaster import Forecaster
from pinchpoint.studies.timing import Clock, ratio_interval
from pinchpoint.systems.common.training.precision import exact_convolutions
from pinchpoint.systems.radiance.explain import tricks
from pinchpoint.systems.radiance.explain.records import MemoryReport, Row, VerdictKind
from pinchpoint.systems.radiance.explain.tricks import FULL, SMALL, TRICKS, Iteration, Scale, Trick

Progress = Callable[[str, int, int], None]
MATERIAL = 0.03  # smaller reductions of the peak count as no effect
ROUNDED = 100  # units of rounding by which gradients may differ ...
AT_MOST = 0.5  # ... but never by more than this fraction of their norm
ENOUGH = 5  # fewest iterations for which an interval is computed
_SPARE = 1.2  # memory reserved for a process, relative to its predicted total
SCALES = {"full": FULL, "small": SMALL}
PARTS = ("field", "superres", "critic")
TARGET = "pinchpoint.systems.radiance.explain.explain:STEP"


def explain_memory(
    *,
    device: str = "auto",
    output: str | Path | None = None,
    figure: str | Path | None = None,
    progress: Progress | None = None,
    card: str = "h200",
    repeats: int = 5,
    seed: int = 0,
    only: Sequence[str] | None = None,
    peaks_at: Literal["full", "small"] = "full",
    clock: Clock = time.perf_counter,
) -> MemoryReport:
    """Try all memory tricks, or `only` those listed.

    output: JSON file for the record; figure: PNG file; card: the GPU whose workspaces are included in the
    predicted peaks.
    """
    if repeats < 1:
        raise BadInput(
            f"--repeats is {repeats}, but it must be at least 1.", hint="Give --repeats 1 or more."
        )
    if output is not None and figure is not None and Path(output).resolve() == Path(figure).resolve():
        raise BadInput(
            f"The record and the figure would both be written to {output}.",
            hint="Give -o FILE.json, and --figure a different file.",
        )
    cards.card(card)  # raises for an unknown card before any work is done
    for path in (output, figure):
        if path is not None:
            check_output(path)
    selection = _select_tricks(only)
    start = clock()
    torch_backend = backend("torch")
    place = resolve_device(device, torch_backend)
    tell = progress or (lambda stage, done, total: None)
    scale = FULL if place == "cuda" else SMALL
    with exact_convolutions():
        errors, crashes = _gradient_errors(selection, SMALL, place, seed, tell)
    runnable = [trick for trick in selection if trick.name not in crashes]
    times, timing_crashes = _time_tricks(runnable, scale, place, seed, repeats, tell, clock)
    crashes |= timing_crashes
    runnable = [trick for trick in runnable if trick.name not in timing_crashes]
    forecasts = _predict_peaks(runnable, card, seed, peaks_at, tell)
    peaks = {name: peak[1] for name, peak in forecasts.items()}
    if place == "cuda":
        peaks = _measure_peaks(runnable, forecasts, seed, tell)
    rows = [_row(trick, forecasts, peaks, times, errors, crashes, place) for trick in selection]
    report = MemoryReport(
        "one iteration of a radiance-field GAN",
        place,
        card,
        "measured" if place == "cuda" else "predicted",
        asdict(SCALES[peaks_at]),
        asdict(scale),
        asdict(SMALL),
        repeats,
        torch.get_num_threads(),
        tuple(rows),
        clock() - start,
        None if figure is None else Path(figure).name,
    )
    if figure is not None:
        from pinchpoint.systems.radiance.explain.figure import draw

        draw(Path(figure), report)
    if output is not None:
        report.save(output)
    return report


def judge(
    *, peak: int | None, baseline: int, error: float | None, tolerance: float, crashed: bool
) -> tuple[VerdictKind, str]:
    """Return the verdict and its reason.

    crashes: the trick raises an exception; wrong: gradients are missing or differ by more than rounding;
    helps: the peak falls by more than 3 %; no effect: otherwise.
    """
    if crashed or peak is None:
        return "crashes", ""
    if error is None or not error <= tolerance:
        how = "missing" if error is None else f"off by {error:.2g} of their norm"
        return "wrong", f"gradients are {how}; the tolerance for rounding is {tolerance:.1g}"
    change = peak / baseline - 1
    if change < -MATERIAL:
        return "helps", f"the peak falls by {-change:.0%}"
    return "no effect", f"the peak changes by {change:+.1%}"


def allowed_error(trick: Trick) -> float:
    """Tolerance for gradients: 100 units of rounding of the type in which the networks run."""
    return min(AT_MOST, ROUNDED * torch.finfo(trick.ways.cast or torch.float32).eps)


def gradient_error(gradients: Mapping[str, Tensor | None], true: Mapping[str, Tensor | None]) -> float:
    """Largest relative L2 error of the three networks' gradients; a missing gradient counts as zeros."""
    worst = 0.0
    for part in PARTS:
        names = [name for name in true if name.startswith(f"{part}.")]
        wrong, size = 0.0, 0.0
        for name in names:
            reference, gradient = true[name], gradients[name]
            assert reference is not None, f"the baseline gives {name} no gradient"
            size += float(reference.double().square().sum())
            wrong += float(
                (reference.double() - (0.0 if gradient is None else gradient.double())).square().sum()
            )
        error = math.sqrt(wrong / size)
        worst = error if not error <= worst else worst  # keeps NaN
    return worst


def _select_tricks(only: Sequence[str] | None) -> list[Trick]:
    unknown = sorted(set(only or ()) - set(tricks.NAMES))
    if unknown:
        raise BadInput(
            f"The trick {unknown[0]!r} is unknown.", hint=f"Use some of: {', '.join(tricks.NAMES)}."
        )
    return [trick for trick in TRICKS if only is None or trick.name in ("baseline", *only)]


def _gradient_errors(
    selection: list[Trick], scale: Scale, device: str, seed: int, tell: Progress
) -> tuple[dict[str, float], dict[str, str]]:
    """Gradient error of each trick at its first iteration, and the messages of tricks that raise."""
    errors: dict[str, float] = {}
    crashes: dict[str, str] = {}
    true: dict[str, Tensor | None] = {}
    for at, trick in enumerate(selection):
        tell("gradients", at, len(selection))
        try:
            gradients = Iteration(scale, trick.ways, device=device, seed=seed).gradients()
        except (BadInput, RuntimeError) as error:
            if trick.name == "baseline":
                raise
            crashes[trick.name] = str(error).splitlines()[0]
            continue
        true = true or {
            name: None if gradient is None else gradient.clone() for name, gradient in gradients.items()
        }
        errors[trick.name] = gradient_error(gradients, true)
    return errors, crashes


def _time_tricks(
    runnable: list[Trick], scale: Scale, device: str, seed: int, repeats: int, tell: Progress, clock: Clock
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Times of iterations in seconds, with the tricks taking turns, and the messages of tricks that raise.

    The first iteration of each trick is not timed. On a GPU, neither is an iteration right after another
    trick's, because that trick changed the allocator's cache. Every second round runs in reverse order.
    """
    torch_backend = backend("torch")
    iterations = {trick.name: Iteration(scale, trick.ways, device=device, seed=seed) for trick in runnable}
    seconds: dict[str, list[float]] = {trick.name: [] for trick in runnable}
    crashes: dict[str, str] = {}
    for turn in range(repeats):
        tell("times", turn, repeats)
        for name in list(iterations) if turn % 2 == 0 else list(reversed(iterations)):
            if name in crashes:
                continue
            try:
                if device == "cuda" or not seconds[name]:
                    torch_backend.wait(device, iterations[name].step())
                before = clock()
                torch_backend.wait(device, iterations[name].step())
            except RuntimeError as error:  # out of memory at this size
                if name == "baseline":
                    raise
                crashes[name] = str(error).splitlines()[0]
                continue
            seconds[name].append(clock() - before)
    return {name: values for name, values in seconds.items() if name not in crashes}, crashes


def _predict_peaks(
    runnable: list[Trick], card: str, seed: int, scale: str, tell: Progress
) -> dict[str, tuple[Any, int]]:
    """Forecast and peak of each trick, computed by several workers in parallel."""
    size = SCALES[scale].batch * SCALES[scale].patch ** 2
    count = 0

    def part(some: list[Trick]) -> dict[str, tuple[Any, int]]:
        nonlocal count
        forecasts = {}
        with Forecaster(TARGET, card=card, seed=seed, settings={"scale": scale}) as forecaster:
            for trick in some:
                forecast = forecaster.predict(size=size, mode="train", variant=trick.name)
                forecasts[trick.name] = forecast, forecast.peak_allocated_bytes
                count += 1
                tell("predicted peaks", count, len(runnable))
        return forecasts

    workers = _workers(runnable)
    with ThreadPoolExecutor(workers) as pool:
        forecasts: dict[str, tuple[Any, int]] = {}
        for some in pool.map(part, [runnable[at::workers] for at in range(workers)]):
            forecasts |= some
    return forecasts


def _measure_peaks(
    runnable: list[Trick], forecasts: dict[str, tuple[Any, int]], seed: int, tell: Progress
) -> dict[str, int]:
    """Measured peaks, each from a process of its own, so that none includes the memory of another.

    As many processes run at a time as fit on the card.
    """
    gc.collect()
    torch.cuda.empty_cache()  # release what the timed iterations held
    largest_bytes = max(forecast.total_bytes for forecast, _ in forecasts.values())
    room = int(torch.cuda.mem_get_info()[0] // (_SPARE * largest_bytes))
    target, peaks = find(TARGET), {}

    def peak(trick: Trick) -> int:
        measurement = gpu_measurement.measure(
            target, forecasts[trick.name][0], chunk=None, steps=2, seed=seed, timeout_s=300.0
        )
        return measurement["allocated_bytes"]

    with ThreadPoolExecutor(max(1, min(room, _workers(runnable)))) as pool:
        for trick, bytes_ in zip(runnable, pool.map(peak, runnable), strict=True):
            peaks[trick.name] = bytes_
            tell("measured peaks", len(peaks), len(runnable))
    return peaks


def _workers(runnable: list[Trick]) -> int:
    """Number of parallel processes, each with two cores if there are many."""
    return min(len(runnable), max(2, (os.cpu_count() or 1) // 2))


def _row(
    trick: Trick,
    forecasts: dict[str, tuple[Any, int]],
    peaks: dict[str, int],
    times: dict[str, list[float]],
    errors: dict[str, float],
    crashes: dict[str, str],
    device: str,
) -> Row:
    name = trick.name
    peak, base, error = peaks.get(name), peaks["baseline"], errors.get(name)
    verdict, reason = judge(
        peak=peak, baseline=base, error=error, tolerance=allowed_error(trick), crashed=name in crashes
    )
    seconds = times.get(name)
    ratio, low, high = (None, None, None) if seconds is None else ratio_interval(seconds, times["baseline"])
    if seconds is None or len(seconds) < ENOUGH:
        low = high = None
    return Row(
        name,
        trick.about,
        trick.of,
        peak,
        forecasts[name][1] if name in forecasts else None,
        peak if device == "cuda" else None,
        None if peak is None else peak / base,
        None if seconds is None else median(seconds),
        ratio,
        low,
        high,
        error,
        verdict,
        crashes.get(name, reason),
    )


def build(size: int, *, device: str, mode: str, variant: str, seed: int, settings: dict[str, str]) -> Case:
    """One iteration with a trick, at a named scale."""
    scale = SCALES[settings["scale"]]
    ways = next(trick.ways for trick in TRICKS if trick.name == variant)
    iteration = Iteration(scale, ways, device=device, seed=seed)
    return Case(step=iteration.step, processed=scale.batch * scale.patch**2)


STEP = Workload(
    name="radiance-iteration",
    axis="rays",
    framework="torch",
    build="pinchpoint.systems.radiance.explain.explain:build",
    variants=tuple(Variant(name) for name in tricks.NAMES),
    about="one iteration of the GRAF memory guide's GAN with a memory trick",
    modes=("train",),
    settings=(Setting("scale", "full", choices=tuple(SCALES)),),
)
