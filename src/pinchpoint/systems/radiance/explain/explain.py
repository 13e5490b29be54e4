"""explain_memory: the effect of every memory trick on the peak, the time and the gradients of one GAN
iteration.

Peaks are those of the iteration of the GRAF memory guide (8 images of 32 x 32 rays, 64 points per ray):
predicted without a GPU and, if there is one, also measured, in a process of its own. Times are of real
iterations, all tricks in turn: a small one on a CPU, the same size on a GPU. Gradients are of the small one
on both: among a billion units, rounding always pushes some across their activation's zero, and the baseline's
own gradients jump by more than a good trick may be off. `verdict` has four values with fixed rules; see
`judge`.
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
MATERIAL = 0.03  # a smaller reduction of the peak does not count
ROUNDED = 100  # units of rounding by which gradients may differ ...
AT_MOST = 0.5  # ... but never by this fraction of their norm
ENOUGH = 5  # iterations needed for an interval: fewer cover too little
_SPARE = 1.2  # memory a process is given, over its predicted total
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
    """Try every trick, or `only` those named.

    output: FILE.json of the record; figure: PNG; card: the GPU whose workspaces are in the predicted peaks.
    """
    if repeats < 1:
        raise BadInput(
            f"The repeats are {repeats}, but they must be at least 1.", hint="Give --repeats 1 or more."
        )
    if output is not None and figure is not None and Path(output).resolve() == Path(figure).resolve():
        raise BadInput(
            f"The record and the figure would both be written to {output}.",
            hint="Give -o FILE.json, and --figure a different file.",
        )
    cards.card(card)  # fails before the gradients are computed
    for path in (output, figure):
        if path is not None:
            check_output(path)
    selected = _select_tricks(only)
    start = clock()
    used = backend("torch")
    place = resolve_device(device, used)
    tell = progress or (lambda stage, done, total: None)
    scale = FULL if place == "cuda" else SMALL
    with exact_convolutions():
        errors, crashed = _gradient_errors(selected, SMALL, place, seed, tell)
    runnable = [trick for trick in selected if trick.name not in crashed]
    times, failed = _time_tricks(runnable, scale, place, seed, repeats, tell, clock)
    crashed |= failed
    runnable = [trick for trick in runnable if trick.name not in failed]
    forecasts = _predict_peaks(runnable, card, seed, peaks_at, tell)
    peaks = {name: peak[1] for name, peak in forecasts.items()}
    if place == "cuda":
        peaks = _measure_peaks(runnable, forecasts, seed, tell)
    rows = [_row(trick, forecasts, peaks, times, errors, crashed, place) for trick in selected]
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
    *, peak: int | None, baseline: int, error: float | None, allowed: float, crashed: bool
) -> tuple[VerdictKind, str]:
    """The verdict and its reason.

    crashes: it raises; wrong: gradients are missing or off by more than rounding; helps: the peak falls by
    over 3 %; otherwise no effect.
    """
    if crashed or peak is None:
        return "crashes", ""
    if error is None or not error <= allowed:
        how = "missing" if error is None else f"off by {error:.2g} of themselves"
        return "wrong", f"gradients are {how}; rounding explains {allowed:.1g}"
    change = peak / baseline - 1
    if change < -MATERIAL:
        return "helps", f"the peak falls by {-change:.0%}"
    return "no effect", f"the peak changes by {change:+.1%}"


def allowed_error(trick: Trick) -> float:
    """Tolerance of gradients: 100 rounding units of the type the networks run in."""
    return min(AT_MOST, ROUNDED * torch.finfo(trick.ways.cast or torch.float32).eps)


def gradient_error(gradients: Mapping[str, Tensor | None], true: Mapping[str, Tensor | None]) -> float:
    """Relative L2 error over each network's gradients, a missing one as zeros; the worst of the three."""
    worst = 0.0
    for part in PARTS:
        names = [name for name in true if name.startswith(f"{part}.")]
        wrong, size = 0.0, 0.0
        for name in names:
            want, got = true[name], gradients[name]
            assert want is not None, f"the baseline gives {name} no gradient"
            size += float(want.double().square().sum())
            wrong += float((want.double() - (0.0 if got is None else got.double())).square().sum())
        error = math.sqrt(wrong / size)
        worst = error if not error <= worst else worst  # NaN stays
    return worst


def _select_tricks(only: Sequence[str] | None) -> list[Trick]:
    unknown = sorted(set(only or ()) - set(tricks.NAMES))
    if unknown:
        raise BadInput(
            f"The trick {unknown[0]!r} is unknown.", hint=f"Use some of: {', '.join(tricks.NAMES)}."
        )
    return [trick for trick in TRICKS if only is None or trick.name in ("baseline", *only)]


def _gradient_errors(
    selected: list[Trick], scale: Scale, device: str, seed: int, tell: Progress
) -> tuple[dict[str, float], dict[str, str]]:
    """Error of each trick's first gradients, and the messages of those that raise."""
    errors: dict[str, float] = {}
    crashed: dict[str, str] = {}
    true: dict[str, Tensor | None] = {}
    for at, trick in enumerate(selected):
        tell("gradients", at, len(selected))
        try:
            gradients = Iteration(scale, trick.ways, device=device, seed=seed).gradients()
        except (BadInput, RuntimeError) as error:
            if trick.name == "baseline":
                raise
            crashed[trick.name] = str(error).splitlines()[0]
            continue
        true = true or {
            name: None if gradient is None else gradient.clone() for name, gradient in gradients.items()
        }
        errors[trick.name] = gradient_error(gradients, true)
    return errors, crashed


def _time_tricks(
    runnable: list[Trick], scale: Scale, device: str, seed: int, repeats: int, tell: Progress, clock: Clock
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds of iterations, all tricks in turn, and the messages of those that raise.

    The first iteration of each trick is not timed, and on a GPU none that follows another trick's: what that
    one left in the allocator's cache, or emptied, is not its own. Every second round runs in reverse order.
    """
    used = backend("torch")
    built = {trick.name: Iteration(scale, trick.ways, device=device, seed=seed) for trick in runnable}
    took: dict[str, list[float]] = {trick.name: [] for trick in runnable}
    crashed: dict[str, str] = {}
    for turn in range(repeats):
        tell("times", turn, repeats)
        for name in list(built) if turn % 2 == 0 else list(reversed(built)):
            if name in crashed:
                continue
            try:
                if device == "cuda" or not took[name]:
                    used.wait(device, built[name].step())
                before = clock()
                used.wait(device, built[name].step())
            except RuntimeError as error:  # out of memory at this size
                if name == "baseline":
                    raise
                crashed[name] = str(error).splitlines()[0]
                continue
            took[name].append(clock() - before)
    return {name: values for name, values in took.items() if name not in crashed}, crashed


def _predict_peaks(
    runnable: list[Trick], card: str, seed: int, scale: str, tell: Progress
) -> dict[str, tuple[Any, int]]:
    """Forecast and peak of each trick, by several workers at a time."""
    size = SCALES[scale].batch * SCALES[scale].patch ** 2
    done = 0

    def part(some: list[Trick]) -> dict[str, tuple[Any, int]]:
        nonlocal done
        forecasts = {}
        with Forecaster(TARGET, card=card, seed=seed, settings={"scale": scale}) as forecaster:
            for trick in some:
                forecast = forecaster.predict(size=size, mode="train", variant=trick.name)
                forecasts[trick.name] = forecast, forecast.peak_allocated_bytes
                done += 1
                tell("predicted peaks", done, len(runnable))
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
    """Peaks, each in a process of its own, as many at a time as fit on the card: none counts
    another's bytes.
    """
    gc.collect()
    torch.cuda.empty_cache()  # release what the timed iterations held
    needed = max(forecast.total_bytes for forecast, _ in forecasts.values())
    room = int(torch.cuda.mem_get_info()[0] // (_SPARE * needed))
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
    """Processes at a time, each with two cores if there are many."""
    return min(len(runnable), max(2, (os.cpu_count() or 1) // 2))


def _row(
    trick: Trick,
    forecasts: dict[str, tuple[Any, int]],
    peaks: dict[str, int],
    times: dict[str, list[float]],
    errors: dict[str, float],
    crashed: dict[str, str],
    device: str,
) -> Row:
    name = trick.name
    peak, base, error = peaks.get(name), peaks["baseline"], errors.get(name)
    verdict, reason = judge(
        peak=peak, baseline=base, error=error, allowed=allowed_error(trick), crashed=name in crashed
    )
    took = times.get(name)
    ratio, low, high = (None, None, None) if took is None else ratio_interval(took, times["baseline"])
    if took is None or len(took) < ENOUGH:
        low = high = None
    return Row(
        name,
        trick.about,
        trick.of,
        peak,
        forecasts[name][1] if name in forecasts else None,
        peak if device == "cuda" else None,
        None if peak is None else peak / base,
        None if took is None else median(took),
        ratio,
        low,
        high,
        error,
        verdict,
        crashed.get(name, reason),
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
