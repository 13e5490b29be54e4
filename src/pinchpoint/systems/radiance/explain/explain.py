"""explain_memory: what every memory trick really does to the peak, the time and the gradients of one GAN iteration.

Peaks are those of the original's iteration (8 images of 32 x 32 rays, 64 points of a ray): predicted without a GPU and, where
there is one, measured as well, in a process of its own. Times are of real iterations, all tricks in turn: of a small one on a
CPU, of the same size on a GPU. Gradients are of the small one on both: among a thousand million units rounding always takes some
past their activation's zero, and the baseline's own gradients jump by more than a good trick may be off. `verdict` has four
values and fixed rules, see `judged`.
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
from pinchpoint.systems.common.precision import exact_convolutions
from pinchpoint.systems.radiance.explain import tricks
from pinchpoint.systems.radiance.explain.records import Explained, Judged, Row
from pinchpoint.systems.radiance.explain.tricks import FULL, SMALL, TRICKS, Iteration, Scale, Trick

Progress = Callable[[str, int, int], None]
MATERIAL = 0.03  # a peak that falls by less is not held in a trick's favour
ROUNDED = 100  # units of rounding by which gradients may differ ...
AT_MOST = 0.5  # ... but never by this share of themselves
ENOUGH = 5  # iterations for an interval: of fewer it covers too little
_SPARE = 1.2  # of the room a process is given, over its predicted total
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
) -> Explained:
    """Try every trick, or `only` those named. output: FILE.json of the record; figure: PNG. card: whose workspaces
    predicted peaks have.
    """
    if repeats < 1:
        raise BadInput(f"{repeats} repeats", hint="give at least 1")
    if output is not None and figure is not None and Path(output).resolve() == Path(figure).resolve():
        raise BadInput(
            f"record and figure would both be written to {output}",
            hint="give -o FILE.json, and --figure, if you give it, another file",
        )
    cards.card(card)  # before the gradients are computed
    for path in (output, figure):
        if path is not None:
            check_output(path)
    asked = _asked(only)
    start = clock()
    used = backend("torch")
    place = resolve_device(device, used)
    tell = progress or (lambda stage, done, total: None)
    scale = FULL if place == "cuda" else SMALL
    with exact_convolutions():
        off, crashed = _gradients(asked, SMALL, place, seed, tell)
    ran = [trick for trick in asked if trick.name not in crashed]
    times, failed = _times(ran, scale, place, seed, repeats, tell, clock)
    crashed |= failed
    ran = [trick for trick in ran if trick.name not in failed]
    predicted = _predicted(ran, card, seed, peaks_at, tell)
    found = {name: peak[1] for name, peak in predicted.items()}
    if place == "cuda":
        found = _measured(ran, predicted, seed, tell)
    rows = [_row(trick, predicted, found, times, off, crashed, place) for trick in asked]
    made = Explained(
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

        draw(Path(figure), made)
    if output is not None:
        made.save(output)
    return made


def judged(
    *, peak: int | None, baseline: int, error: float | None, allowed: float, crashed: bool
) -> tuple[Judged, str]:
    """crashes: it raises; wrong: gradients are missing or off by more than rounding; helps: the peak falls by over 3 %."""
    if crashed or peak is None:
        return "crashes", ""
    if error is None or not error <= allowed:
        off = "missing" if error is None else f"off by {error:.2g} of themselves"
        return "wrong", f"gradients are {off}; rounding explains {allowed:.1g}"
    change = peak / baseline - 1
    if change < -MATERIAL:
        return "helps", f"the peak falls by {-change:.0%}"
    return "no effect", f"the peak changes by {change:+.1%}"


def allowed_error(trick: Trick) -> float:
    """How far gradients may be off by rounding: 100 units of the type the networks run in."""
    return min(AT_MOST, ROUNDED * torch.finfo(trick.ways.cast or torch.float32).eps)


def gradient_error(found: Mapping[str, Tensor | None], true: Mapping[str, Tensor | None]) -> float:
    """Relative L2 over each network's gradients, a missing one as zeros; the worst of the three."""
    worst = 0.0
    for part in PARTS:
        names = [name for name in true if name.startswith(f"{part}.")]
        wrong, size = 0.0, 0.0
        for name in names:
            want, got = true[name], found[name]
            assert want is not None, f"the baseline gives {name} no gradient"
            size += float(want.double().square().sum())
            wrong += float((want.double() - (0.0 if got is None else got.double())).square().sum())
        error = math.sqrt(wrong / size)
        worst = error if not error <= worst else worst  # one that is not a number stays
    return worst


def _asked(only: Sequence[str] | None) -> list[Trick]:
    unknown = sorted(set(only or ()) - set(tricks.NAMES))
    if unknown:
        raise BadInput(f"unknown trick {unknown[0]!r}", hint=f"use some of: {', '.join(tricks.NAMES)}")
    return [trick for trick in TRICKS if only is None or trick.name in ("baseline", *only)]


def _gradients(
    asked: list[Trick], scale: Scale, device: str, seed: int, tell: Progress
) -> tuple[dict[str, float], dict[str, str]]:
    """Error of each trick's first gradients, and what those that raise said."""
    off: dict[str, float] = {}
    crashed: dict[str, str] = {}
    true: dict[str, Tensor | None] = {}
    for at, trick in enumerate(asked):
        tell("gradients", at, len(asked))
        try:
            found = Iteration(scale, trick.ways, device=device, seed=seed).gradients()
        except (BadInput, RuntimeError) as error:
            if trick.name == "baseline":
                raise
            crashed[trick.name] = str(error).splitlines()[0]
            continue
        true = true or {
            name: None if gradient is None else gradient.clone() for name, gradient in found.items()
        }
        off[trick.name] = gradient_error(found, true)
    return off, crashed


def _times(
    ran: list[Trick], scale: Scale, device: str, seed: int, repeats: int, tell: Progress, clock: Clock
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds of iterations, all tricks in turn, and what those that raise said.

    The first of each is not timed, and on a GPU none that follows another trick's: what that left in the allocator's cache, or
    emptied, is not its own. Every second turn goes the other way round.
    """
    used = backend("torch")
    built = {trick.name: Iteration(scale, trick.ways, device=device, seed=seed) for trick in ran}
    took: dict[str, list[float]] = {trick.name: [] for trick in ran}
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
            except RuntimeError as error:  # no room, at this size
                if name == "baseline":
                    raise
                crashed[name] = str(error).splitlines()[0]
                continue
            took[name].append(clock() - before)
    return {name: values for name, values in took.items() if name not in crashed}, crashed


def _predicted(
    ran: list[Trick], card: str, seed: int, scale: str, tell: Progress
) -> dict[str, tuple[Any, int]]:
    """Forecast and peak of each, by several workers at a time."""
    size = SCALES[scale].batch * SCALES[scale].patch ** 2
    done = 0

    def part(some: list[Trick]) -> dict[str, tuple[Any, int]]:
        nonlocal done
        found = {}
        with Forecaster(TARGET, card=card, seed=seed, settings={"scale": scale}) as forecaster:
            for trick in some:
                made = forecaster.predict(size=size, mode="train", variant=trick.name)
                found[trick.name] = made, made.peak_allocated_bytes
                done += 1
                tell("predicted peaks", done, len(ran))
        return found

    workers = _workers(ran)
    with ThreadPoolExecutor(workers) as pool:
        found: dict[str, tuple[Any, int]] = {}
        for some in pool.map(part, [ran[at::workers] for at in range(workers)]):
            found |= some
    return found


def _measured(
    ran: list[Trick], predicted: dict[str, tuple[Any, int]], seed: int, tell: Progress
) -> dict[str, int]:
    """Peaks, each in a process of its own, as many at one time as the card has room for: none counts another's bytes."""
    gc.collect()
    torch.cuda.empty_cache()  # what the timed iterations held is for the processes now
    needed = max(forecast.total_bytes for forecast, _ in predicted.values())
    room = int(torch.cuda.mem_get_info()[0] // (_SPARE * needed))
    target, found = find(TARGET), {}

    def peak(trick: Trick) -> int:
        made = gpu_measurement.measure(
            target, predicted[trick.name][0], chunk=None, steps=2, seed=seed, timeout_s=300.0
        )
        return made["allocated_bytes"]

    with ThreadPoolExecutor(max(1, min(room, _workers(ran)))) as pool:
        for trick, bytes_ in zip(ran, pool.map(peak, ran), strict=True):
            found[trick.name] = bytes_
            tell("measured peaks", len(found), len(ran))
    return found


def _workers(ran: list[Trick]) -> int:
    """Processes at one time, each with two cores where there are many."""
    return min(len(ran), max(2, (os.cpu_count() or 1) // 2))


def _row(
    trick: Trick,
    predicted: dict[str, tuple[Any, int]],
    peaks: dict[str, int],
    times: dict[str, list[float]],
    off: dict[str, float],
    crashed: dict[str, str],
    device: str,
) -> Row:
    name = trick.name
    peak, base, error = peaks.get(name), peaks["baseline"], off.get(name)
    verdict, reason = judged(
        peak=peak, baseline=base, error=error, allowed=allowed_error(trick), crashed=name in crashed
    )
    took = times.get(name)
    ratio, low, high = (None, None, None) if took is None else ratio_interval(took, times["baseline"])
    if took is None or len(took) < ENOUGH:
        low = high = None
    return Row(
        name,
        trick.said,
        trick.of,
        peak,
        predicted[name][1] if name in predicted else None,
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
    """One iteration with a trick, of a scale by name."""
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
    about="one iteration of the original's GAN with a memory trick",
    modes=("train",),
    settings=(Setting("scale", "full", choices=tuple(SCALES)),),
)
