"""A verdict on a variant: is it the same computation as its baseline, and is it better?

Results first (values and gradients, or distributions where the workload is random), then times in
turn, then peaks. Nothing is claimed of a variant whose results differ: its speed is not measured.
"""

from __future__ import annotations

import time
from typing import Any, Literal, cast

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core import targets
from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Verdict
from pinchpoint.core.settings import Overrides
from pinchpoint.core.units import check_seconds, parse_size, show_bytes
from pinchpoint.core.workload import Mode, Workload
from pinchpoint.studies.timing import Clock
from pinchpoint.verification.comparison import Comparison
from pinchpoint.verification.evidence import Evidence, Progress, of_draws, of_values
from pinchpoint.verification.peaks import Change, Forecasts, compare_peaks
from pinchpoint.verification.permutation_tests import MOST_SEEDS
from pinchpoint.verification.probes import Bench, Way, ways
from pinchpoint.verification.speed import Speed, compare_speed

DRAWS = 16
CLEARLY = 0.01  # a peak that moves by less than this share has not moved


def verify(
    target: str | Workload,
    *,
    variant: str | None = None,
    size: int | str | None = None,
    mode: str | None = None,
    device: str = "auto",
    seed: int = 0,
    repeats: int = 30,
    draws: int = DRAWS,
    limit_s: float = 60.0,
    settings: Overrides | None = None,
    clock: Clock = time.perf_counter,
    forecaster: Forecasts | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Hold `variant` (may be left out where there is only one) against the workload's baseline.

    repeats: timed pairs of steps, fewer where they would take longer than `limit_s`. draws: seeds
    of a random workload; its verdict refuses a variant that is right once in a hundred times. settings: of a
    workload that declares some.
    """
    workload = _workload(target)
    chosen = _variant(workload, variant)
    values = workload.resolve_settings(settings)
    size = workload.default_size if size is None else parse_size(size)
    wanted = mode or ("train" if "train" in workload.modes else workload.modes[0])
    workload.check_mode(wanted)
    _check_counts(repeats, draws)
    check_seconds("limit", limit_s)
    used = backend(workload.framework)
    where = resolve_device(device, used)
    say = progress or (lambda stage: None)
    bench = Bench(workload, used, where, cast(Mode, wanted), values)
    names = (workload.baseline.name, chosen)
    tried = ways(workload, size, seed)

    evidence = (
        of_draws(bench, names, tried, say, draws) if workload.random else of_values(bench, names, tried, say)
    )
    speed: Speed | None = None
    peaks = Change(None, None, "predicted")
    if not evidence.refused:
        speed = _speed(bench, names, tried[0], say, repeats=repeats, limit_s=limit_s, clock=clock, seed=seed)
        say("peaks")
        peaks = compare_peaks(target, bench, names, tried[0], forecaster, seed=seed)
    status, reason = judge(evidence, speed, peaks)
    worst = evidence.worst
    notes = [*evidence.notes, *([peaks.why] if peaks.why else [])]
    if speed is not None and speed.repeats < repeats:
        notes.append(f"timed {speed.repeats} pairs instead of {repeats}, to stay near {limit_s:g} s")
    if where == "cpu" and speed is not None:
        notes.append("timed on this CPU; a GPU's ratio may differ")
    return Verdict(
        target=target if isinstance(target, str) else workload.name,
        mode=wanted,
        size=size,
        baseline=names[0],
        variant=chosen,
        status=status,
        reason=reason,
        worst_error=None if worst is None else worst.error,
        where="" if worst is None else _where(worst),
        speedup=speed and speed.speedup,
        speedup_low=speed and speed.low,
        speedup_high=speed and speed.high,
        peak_before_bytes=peaks.before_bytes,
        peak_after_bytes=peaks.after_bytes,
        peaks_are=peaks.how,
        baseline_s=speed and speed.baseline_s,
        variant_s=speed and speed.variant_s,
        repeats=0 if speed is None else speed.repeats,
        comparisons=tuple(c.to_dict() for c in evidence.comparisons),
        device=where,
        seed=seed,
        settings=values,
        notes=tuple(notes),
    )


def verify_all(target: str | Workload, **options: Any) -> list[Verdict]:
    """A verdict for every variant but the baseline, in the workload's order; options as for `verify`."""
    return [verify(target, variant=name, **options) for name in variants_of(target)]


def variants_of(target: str | Workload, variant: str | None = None) -> list[str]:
    """The variants to verify: the one asked for, or every one but the baseline."""
    workload = _workload(target)
    return _others(workload) if variant is None else [_variant(workload, variant)]


def judge(
    evidence: Evidence, speed: Speed | None, peaks: Change
) -> tuple[Literal["pass", "fail", "inconclusive"], str]:
    """Status and reason. Wrong results fail; so does a variant that is slower and no leaner."""
    if evidence.refused:
        first = evidence.worst
        assert first is not None
        others = len(evidence.refused) - 1
        return "fail", f"{first.what} {first.name}: {first.reason}" + (
            f"; {others} more comparisons failed" if others else ""
        )
    if evidence.doubt:
        return "inconclusive", evidence.doubt
    peak, share = _peak_words(peaks), peaks.share
    if speed is None:
        return "inconclusive", "same results; a step is too short for the clock, use a larger size" + (
            f"; {peak}" if peak else ""
        )
    if speed.low <= 1 <= speed.high:
        return "inconclusive", "no measurable change" + (f" in speed, but {peak}" if peak else "")
    if speed.low > 1:
        return "pass", f"same results, {speed.speedup:.2f}x as fast" + (f"; {peak}" if peak else "")
    slower = f"{speed.speedup:.2f}x as fast, which is a slow-down"
    if share is None:
        return "inconclusive", f"same results, {slower}; whether the peak falls is not known"
    if share < -CLEARLY:
        return "pass", f"same results, {slower}; {peak}"
    return "fail", f"same results, but {slower}, and the peak is not lower"


def _peak_words(peaks: Change) -> str:
    share = peaks.share
    if share is None or abs(share) <= CLEARLY:
        return ""
    moved = "falls" if share < 0 else "rises"
    before, after = show_bytes(peaks.before_bytes), show_bytes(peaks.after_bytes)
    return f"the {peaks.how} peak {moved} by {abs(share):.0%}, {before} to {after}"


def _where(worst: Comparison) -> str:
    return f"{worst.what} {worst.name}" + (f" {worst.where}" if worst.where else "")


def _speed(
    bench: Bench,
    names: tuple[str, str],
    way: Way,
    say: Progress,
    *,
    repeats: int,
    limit_s: float,
    clock: Clock,
    seed: int,
) -> Speed | None:
    say("times, in turn")
    before, after = (bench.case(name, way) for name in names)
    return compare_speed(
        before,
        after,
        wait=lambda result: bench.backend.wait(bench.device, result),
        repeats=repeats,
        limit_s=limit_s,
        clock=clock,
        seed=seed,
        text=f"{bench.workload.name} at {way}",
    )


def _workload(target: str | Workload) -> Workload:
    loaded = targets.load(targets.find(target)) if isinstance(target, str) else target
    if not isinstance(loaded, Workload):
        name = target if isinstance(target, str) else getattr(target, "__name__", repr(target))
        raise BadInput(
            f"{name} is a plain factory: there is nothing to hold it against",
            hint="make a pinchpoint.Workload of it, with the baseline as its first variant and a probe in its Case",
        )
    return loaded


def _others(workload: Workload) -> list[str]:
    names = [v.name for v in workload.variants[1:]]
    if not names:
        raise BadInput(
            f"{workload.name} has one variant, {workload.baseline.name}: there is nothing to hold against it",
            hint="add a second Variant to the workload; the first is the baseline",
        )
    return names


def _variant(workload: Workload, asked: str | None) -> str:
    others = _others(workload)
    if asked is None:
        if len(others) > 1:
            hint = f"say which: {', '.join(others)}; or use verify_all"
            raise BadInput(f"{workload.name} has {len(others)} variants beside its baseline", hint=hint)
        return others[0]
    chosen = workload.variant(asked).name
    if chosen == workload.baseline.name:
        raise BadInput(f"{chosen} is the baseline itself", hint=f"verify one of: {', '.join(others)}")
    return chosen


def _check_counts(repeats: int, draws: int) -> None:
    if repeats < 8:
        raise BadInput(f"{repeats} repeats give no interval", hint="time at least 8 pairs; 30 is the default")
    if not 8 <= draws <= MOST_SEEDS:
        raise BadInput(f"{draws} draws", hint=f"use 8 to {MOST_SEEDS} seeds; {DRAWS} is the default")
