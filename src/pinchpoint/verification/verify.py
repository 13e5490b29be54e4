"""The verb `verify`: whether a variant computes the same as its baseline, and whether it is better.

Results are compared first (values and gradients, or distributions if the workload is random), then
times, then peaks. The speed of a variant whose results differ is not measured.
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
from pinchpoint.forecasting.forecaster import Forecasts
from pinchpoint.studies.timing import Clock
from pinchpoint.verification.comparison import Comparison
from pinchpoint.verification.evidence import Evidence, Progress, compare_distributions, compare_values
from pinchpoint.verification.peaks import PeakChange, compare_peaks
from pinchpoint.verification.permutation_tests import MAX_SEEDS
from pinchpoint.verification.probes import CaseBuilder, CaseSpec, case_specs
from pinchpoint.verification.speed import MIN_REPEATS, Speed, compare_speed

DRAWS = 16
MATERIAL = 0.01  # a peak that changes by less than this share is treated as unchanged


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
    """Compare `variant`, which may be omitted if there is only one, with the workload's baseline.

    repeats: timed pairs of steps; fewer if they would take longer than `limit_s`.
    draws: seeds of a random workload, whose verdict refuses a correct variant once in a hundred cases.
    settings: values of the settings that the workload declares.
    """
    workload = _workload(target)
    variant_name = _variant(workload, variant)
    values = workload.resolve_settings(settings)
    size = workload.default_size if size is None else parse_size(size)
    run_mode = mode or ("train" if "train" in workload.modes else workload.modes[0])
    workload.check_mode(run_mode)
    _check_counts(repeats, draws)
    check_seconds("limit", limit_s)
    framework = backend(workload.framework)
    resolved_device = resolve_device(device, framework)
    report = progress or (lambda stage: None)
    builder = CaseBuilder(workload, framework, resolved_device, cast(Mode, run_mode), values)
    names = (workload.baseline.name, variant_name)
    specs = case_specs(workload, size, seed)

    evidence = (
        compare_distributions(builder, names, specs, report, draws)
        if workload.random
        else compare_values(builder, names, specs, report)
    )
    speed: Speed | None = None
    peaks = PeakChange(None, None, "predicted")
    if not evidence.failures:
        speed = _compare_speed(
            builder, names, specs[0], report, repeats=repeats, limit_s=limit_s, clock=clock, seed=seed
        )
        report("peaks")
        peaks = compare_peaks(target, builder, names, specs[0], forecaster, seed=seed)
    status, reason = judge(evidence, speed, peaks)
    worst = evidence.worst
    notes = [*evidence.notes, *([peaks.why] if peaks.why else [])]
    if speed is not None and speed.repeats < repeats:
        notes.append(f"{speed.repeats} pairs instead of {repeats} were timed, to stay near {limit_s:g} s")
    if resolved_device == "cpu" and speed is not None:
        notes.append("the times are those of this CPU; the speed-up on a GPU may differ")
    return Verdict(
        target=target if isinstance(target, str) else workload.name,
        mode=run_mode,
        size=size,
        baseline=names[0],
        variant=variant_name,
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
        device=resolved_device,
        seed=seed,
        settings=values,
        notes=tuple(notes),
    )


def verify_all(target: str | Workload, **options: Any) -> list[Verdict]:
    """Return a verdict for every variant except the baseline, in the workload's order.

    The options are those of `verify`.
    """
    return [verify(target, variant=name, **options) for name in variants_of(target)]


def variants_of(target: str | Workload, variant: str | None = None) -> list[str]:
    """Return the variants to verify: the given one, or every one except the baseline."""
    workload = _workload(target)
    return _others(workload) if variant is None else [_variant(workload, variant)]


def judge(
    evidence: Evidence, speed: Speed | None, peaks: PeakChange
) -> tuple[Literal["pass", "fail", "inconclusive"], str]:
    """Return status and reason. Wrong results fail, and so does a slower variant that saves no memory."""
    if evidence.failures:
        worst = evidence.worst
        assert worst is not None
        others = len(evidence.failures) - 1
        return "fail", f"{worst.what} {worst.name}: {worst.reason}" + (
            f"; {others} more comparisons failed" if others else ""
        )
    if evidence.doubt:
        return "inconclusive", evidence.doubt
    peak, share = _peak_text(peaks), peaks.share
    if speed is None:
        return (
            "inconclusive",
            "the results are the same, but a step is too short for the clock; use a larger size"
            + (f"; {peak}" if peak else ""),
        )
    if speed.low <= 1 <= speed.high:
        return "inconclusive", "the speed does not change measurably" + (f", but {peak}" if peak else "")
    if speed.low > 1:
        return "pass", f"the results are the same, {speed.speedup:.2f}x as fast" + (
            f"; {peak}" if peak else ""
        )
    slower = f"a slow-down to {1 / speed.speedup:.2f}x the time"
    if share is None:
        return (
            "inconclusive",
            f"the results are the same, with {slower}; it is unknown whether the peak falls",
        )
    if share < -MATERIAL:
        return "pass", f"the results are the same, and {peak}, with {slower}"
    return "fail", f"the results are the same, but with {slower}, and the peak is not lower"


def _peak_text(peaks: PeakChange) -> str:
    share = peaks.share
    if share is None or abs(share) <= MATERIAL:
        return ""
    direction = "falls" if share < 0 else "rises"
    before, after = show_bytes(peaks.before_bytes), show_bytes(peaks.after_bytes)
    return f"the {peaks.how} peak {direction} by {abs(share):.0%}, from {before} to {after}"


def _where(worst: Comparison) -> str:
    return f"{worst.what} {worst.name}" + (f" {worst.where}" if worst.where else "")


def _compare_speed(
    builder: CaseBuilder,
    names: tuple[str, str],
    spec: CaseSpec,
    report: Progress,
    *,
    repeats: int,
    limit_s: float,
    clock: Clock,
    seed: int,
) -> Speed | None:
    report("times")
    before, after = (builder.build(name, spec) for name in names)
    return compare_speed(
        before,
        after,
        wait=lambda result: builder.backend.wait(builder.device, result),
        repeats=repeats,
        limit_s=limit_s,
        clock=clock,
        seed=seed,
        text=f"{builder.workload.name} at {spec}",
    )


def _workload(target: str | Workload) -> Workload:
    thing = targets.load(targets.find(target)) if isinstance(target, str) else target
    if not isinstance(thing, Workload):
        name = target if isinstance(target, str) else getattr(target, "__name__", repr(target))
        raise BadInput(
            f"{name} is a plain factory, which has no baseline to compare with.",
            hint="Define a pinchpoint.Workload: the baseline is its first variant, and its Case has a probe.",
        )
    return thing


def _others(workload: Workload) -> list[str]:
    names = [v.name for v in workload.variants[1:]]
    if not names:
        raise BadInput(
            f"{workload.name} has only one variant, {workload.baseline.name}, so there is nothing to"
            " compare.",
            hint="Add a second Variant to the workload; the first is the baseline.",
        )
    return names


def _variant(workload: Workload, name: str | None) -> str:
    others = _others(workload)
    if name is None:
        if len(others) > 1:
            raise BadInput(
                f"{workload.name} has {len(others)} variants besides its baseline, but none is named.",
                hint=f"Name one of {', '.join(others)}, or use verify_all.",
            )
        return others[0]
    known_name = workload.variant(name).name
    if known_name == workload.baseline.name:
        raise BadInput(f"{known_name} is the baseline itself.", hint=f"Verify one of {', '.join(others)}.")
    return known_name


def _check_counts(repeats: int, draws: int) -> None:
    if repeats < MIN_REPEATS:
        raise BadInput(
            f"{repeats} repeats are too few for an interval.",
            hint=f"Time at least {MIN_REPEATS} pairs; the default is 30.",
        )
    if not 8 <= draws <= MAX_SEEDS:
        raise BadInput(
            f"The number of draws is {draws}, but must be between 8 and {MAX_SEEDS}.",
            hint=f"Use 8 to {MAX_SEEDS} draws; the default is {DRAWS}.",
        )
