"""explain_memory: how every memory trick affects the peak, time and gradients of one GAN iteration.

Peaks are those of an iteration of the GRAF memory guide (8 images of 32 x 32 rays, 64 points per ray). They
are predicted without a GPU and, if there is a GPU, also measured, each in a process of its own. Times are
measured on real iterations, with the tricks taking turns: at a small scale on a CPU, at the guide's scale on
a GPU. Gradients are always compared at the small scale: among a billion units, rounding always pushes some
across the zero of their activation, which changes even the baseline's own gradients by more than the
tolerance. `verdict` has five values with fixed rules; see `judge`.
"""

from __future__ import annotations

import gc
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
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
from pinchpoint.systems.radiance.explain.records import MemoryReport, Row, VerdictKind
from pinchpoint.systems.radiance.explain.tricks import (
    CHANGES,
    EVERY,
    FULL,
    SMALL,
    Iteration,
    Scale,
    Trick,
)
from pinchpoint.systems.radiance.settings import SIDES

Progress = Callable[[str, int, int], None]
MATERIAL = 0.03  # smaller reductions of the peak count as no effect
ROUNDED = 100  # units of rounding by which gradients may differ ...
AT_MOST = 0.5  # ... but never by more than this fraction of their norm
ENOUGH = 5  # fewest iterations for which an interval is computed
SLOW_S = 2.0  # on a CPU, an iteration that takes longer is not repeated
# Seconds of one core, from which the duration is estimated: per trick for its gradients and times, for those
# in half precision on a CPU without instructions for it, and for a prediction.
_TRICK_S, _HALF_S, _PREDICTION_S = 1.3, 6.0, 3.0
_GPU_S = 10.0  # per trick on a GPU: its times and its measured peak
_SPARE = 1.2  # memory reserved for a process, relative to its predicted total
SCALES = {"full": FULL, "small": SMALL}
PARTS = ("field", "superres", "critic")
TARGET = "pinchpoint.systems.radiance.explain.explain:STEP"


def explain_memory(
    *,
    device: str = "auto",
    output: str | Path | None = None,
    figure: str | Path | None = None,
    announce: Callable[[float], None] | None = None,
    progress: Progress | None = None,
    card: str = "h200",
    repeats: int = 5,
    seed: int = 0,
    only: Sequence[str] | None = None,
    batch: int | None = None,
    patch: int | None = None,
    samples: int | None = None,
    peaks_at: Literal["full", "small"] = "full",
    clock: Clock = time.perf_counter,
) -> MemoryReport:
    """Try all memory tricks, or `only` those listed.

    batch, patch, samples: images, rays per side of a patch, and points per ray of the peaks (and, on a GPU,
    of the times), by default those of the guide. announce: called before the work starts, with the seconds
    that it is expected to take. output: JSON file for the record; figure: PNG file; card: the GPU whose
    workspaces are included in the predicted peaks.
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
    selection = select_tricks(only)
    sizes = checked_sizes(batch=batch, patch=patch, samples=samples)
    start = clock()
    torch_backend = backend("torch")
    place = resolve_device(device, torch_backend)
    if announce is not None:
        announce(expected_s(selection, place, cores=os.cpu_count() or 1))
    tell = progress or (lambda stage, done, total: None)
    scale = replace(FULL, **sizes) if place == "cuda" else SMALL
    with exact_convolutions(), warnings.catch_warnings():
        # torch says, with a C++ trace, that a CPU without instructions for half precision is slow in it.
        warnings.filterwarnings("ignore", message="mkldnn_matmul failed")
        errors, crashes, slow = _gradient_errors(selection, SMALL, place, seed, tell, clock)
    runnable = [trick for trick in selection if trick.name not in crashes]
    quick = [trick for trick in runnable if trick.name not in slow]
    times, timing_crashes = _time_tricks(quick, scale, place, seed, repeats, tell, clock)
    crashes |= timing_crashes
    runnable = [trick for trick in runnable if trick.name not in timing_crashes]
    forecasts = _predict_peaks(runnable, card, seed, peaks_at, sizes, tell)
    peaks = {name: peak[1] for name, peak in forecasts.items()}
    if place == "cuda":
        peaks = _measure_peaks(runnable, forecasts, seed, tell)
    rows = [_row(trick, forecasts, peaks, times, errors, crashes, place) for trick in selection]
    report = MemoryReport(
        "one iteration of a radiance-field GAN",
        place,
        card,
        "measured" if place == "cuda" else "predicted",
        asdict(replace(SCALES[peaks_at], **sizes)),
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


def checked_sizes(**sizes: int | None) -> dict[str, int]:
    """The sizes that are given. Raises an error for those that are not possible."""
    chosen_sizes = {name: value for name, value in sizes.items() if value is not None}
    for name, value in chosen_sizes.items():
        if not 1 <= value <= 4096:
            raise BadInput(
                f"--{name} is {value}, but it must be between 1 and 4096.",
                hint=f"Give --{name} a value such as {getattr(FULL, name)}.",
            )
    if chosen_sizes.get("patch", SIDES[0]) not in SIDES:
        raise BadInput(
            f"--patch is {chosen_sizes['patch']}; the discriminator supports {', '.join(map(str, SIDES))}.",
            hint=f"Give --patch one of: {', '.join(map(str, SIDES))}.",
        )
    return chosen_sizes


def expected_s(selection: Sequence[Trick], device: str, *, cores: int) -> float:
    """Seconds that `explain_memory` is expected to take, roughly."""
    half = sum(trick.ways.cast is not None for trick in selection)
    predictions = _PREDICTION_S * len(selection) / max(1, min(cores, len(selection)))
    if device == "cuda":
        return predictions + _GPU_S * len(selection)
    return predictions + _TRICK_S * (len(selection) - half) + _HALF_S * half


def judge(
    *,
    peak: int | None,
    baseline: int,
    error: float | None,
    tolerance: float,
    crashed: bool,
    changes: bool = False,
) -> tuple[VerdictKind, str]:
    """Return the verdict and its reason.

    crashes: the trick raises an exception; changes training: a step is not the same any more, whatever its
    peak; wrong: gradients are missing or differ by more than rounding;
    helps: the peak falls by more than 3 %; no effect: otherwise.
    """
    if crashed or peak is None:
        return "crashes", ""
    if changes:
        return "changes training", f"the peak changes by {peak / baseline - 1:+.0%}, and so does the step"
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


def select_tricks(only: Sequence[str] | None) -> list[Trick]:
    """All tricks, or the baseline and those listed."""
    names = [trick.name for trick in EVERY]
    unknown = sorted(set(only or ()) - set(names))
    if unknown:
        raise BadInput(f"The trick {unknown[0]!r} is unknown.", hint=f"Use some of: {', '.join(names)}.")
    return [trick for trick in EVERY if only is None or trick.name in ("baseline", *only)]


def _gradient_errors(
    selection: list[Trick], scale: Scale, device: str, seed: int, tell: Progress, clock: Clock
) -> tuple[dict[str, float], dict[str, str], set[str]]:
    """Gradient error of each trick at its first iteration, the messages of tricks that raise, and the tricks
    that are not timed: in half precision that a CPU emulates, where times say nothing about a trick.
    """
    errors: dict[str, float] = {}
    crashes: dict[str, str] = {}
    slow: set[str] = set()
    true: dict[str, Tensor | None] = {}
    for at, trick in enumerate(selection):
        tell("gradients", at, len(selection))
        try:
            iteration = Iteration(scale, trick.ways, device=device, seed=seed)
            before = clock()
            gradients = iteration.gradients()
            seconds = clock() - before
        except (BadInput, RuntimeError) as error:
            if trick.name == "baseline":
                raise
            crashes[trick.name] = str(error).splitlines()[0]
            continue
        if device == "cpu" and trick.ways.cast is not None and seconds > SLOW_S:
            slow.add(trick.name)
        true = true or {
            name: None if gradient is None else gradient.clone() for name, gradient in gradients.items()
        }
        errors[trick.name] = gradient_error(gradients, true)
    return errors, crashes, slow


def _time_tricks(
    runnable: list[Trick], scale: Scale, device: str, seed: int, repeats: int, tell: Progress, clock: Clock
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Times of iterations in seconds, with the tricks taking turns, and the messages of tricks that raise.

    The first iteration of each trick is not timed, unless it is so slow that it is not repeated. On a GPU,
    neither is an iteration right after another trick's, because that trick changed the allocator's cache.
    Every second round runs in reverse order.
    """
    torch_backend = backend("torch")
    iterations = {trick.name: Iteration(scale, trick.ways, device=device, seed=seed) for trick in runnable}
    seconds: dict[str, list[float]] = {trick.name: [] for trick in runnable}
    crashes: dict[str, str] = {}
    slow: set[str] = set()
    for turn in range(repeats):
        tell("times", turn, repeats)
        for name in list(iterations) if turn % 2 == 0 else list(reversed(iterations)):
            if name in crashes or name in slow:
                continue
            try:
                before = clock()
                if device == "cuda" or not seconds[name]:
                    torch_backend.wait(device, iterations[name].step())
                    if device == "cpu" and clock() - before > SLOW_S:
                        slow.add(name)
                if name not in slow:
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
    runnable: list[Trick], card: str, seed: int, scale: str, sizes: Mapping[str, int], tell: Progress
) -> dict[str, tuple[Any, int]]:
    """Forecast and peak of each trick, computed by several workers in parallel."""
    full = replace(SCALES[scale], **sizes)
    size = full.batch * full.patch**2
    settings = {"scale": scale, **{name: str(value) for name, value in sizes.items()}}
    count = 0

    def part(some: list[Trick]) -> dict[str, tuple[Any, int]]:
        nonlocal count
        forecasts = {}
        with Forecaster(TARGET, card=card, seed=seed, settings=settings) as forecaster:
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
        peak=peak,
        baseline=base,
        error=error,
        tolerance=allowed_error(trick),
        crashed=name in crashes,
        changes=trick in CHANGES,
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
    """One iteration with a trick, at a named scale, with sizes of its own if they are given."""
    sizes = {name: int(settings[name]) for name in ("batch", "patch", "samples") if settings[name]}
    scale = replace(SCALES[settings["scale"]], **sizes)
    ways = next(trick.ways for trick in EVERY if trick.name == variant)
    iteration = Iteration(scale, ways, device=device, seed=seed)
    return Case(step=iteration.step, processed=scale.batch * scale.patch**2)


STEP = Workload(
    name="radiance-iteration",
    axis="rays",
    framework="torch",
    build="pinchpoint.systems.radiance.explain.explain:build",
    variants=tuple(Variant(trick.name) for trick in EVERY),
    about="one iteration of the GRAF memory guide's GAN with a memory trick",
    modes=("train",),
    settings=(
        Setting("scale", "full", choices=tuple(SCALES)),
        *(Setting(name, "", pattern=r"\d{0,4}") for name in ("batch", "patch", "samples")),
    ),
)
