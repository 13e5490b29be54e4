"""Assembly of a Study from its points: growth laws, the size check and the card table.

A law is fitted to the allocated peaks of the requested sizes. The card table uses the reserved peak
where it is known, adds the card's context, and leaves a tenth of the card free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pinchpoint.core.growth_law import LEAST, Fit, fit, law
from pinchpoint.core.machine import describe
from pinchpoint.core.records import Law, Point, Study
from pinchpoint.forecasting.cards import Card
from pinchpoint.studies import size_check
from pinchpoint.studies.config import StudyConfig

RESERVE = 0.1


def unfinished_study(
    config: StudyConfig,
    points: Sequence[Point],
    *,
    notes: Sequence[str],
    machine: dict[str, Any] | None,
    took_s: float,
) -> Study:
    """Return an unfinished study, which holds only its points, for `--resume` to continue from."""
    return Study(
        target=config.target.text,
        axis=config.axis,
        on=config.on,
        points=tuple(points),
        laws=(),
        passed=False,
        gate=(
            f"the study is not finished: {len(points)} of {len(config.jobs())} points are done;"
            " continue it with --resume",
        ),
        notes=tuple(notes),
        complete=False,
        took_s=took_s,
        seed=config.seed,
        repeats=_repeats(config),
        settings=dict(config.settings),
        machine=machine or describe(),
    )


def finished_study(
    config: StudyConfig,
    points: Sequence[Point],
    *,
    boundary: Sequence[dict[str, Any]],
    notes: Sequence[str],
    machine: dict[str, Any] | None,
    took_s: float,
) -> Study:
    """Return the finished study."""
    ladder = [p for p in points if p.size in config.sizes]
    laws: list[Law] = []
    rows: list[dict[str, Any]] = []
    all_notes = list(notes)
    for variant, mode in dict.fromkeys((p.variant, p.mode) for p in ladder):
        ok_points = [p for p in ladder if (p.variant, p.mode, p.status) == (variant, mode, "ok")]
        sizes, peaks, is_theory = _peaks(ok_points)
        if len(sizes) < LEAST:
            continue
        if is_theory:
            all_notes.append(
                f"{variant} {mode}: no peak can be measured on {config.on}; the law is fitted to theory"
            )
        peak_fit = fit(sizes, peaks, seed=config.seed)
        laws.append(law(sizes, peaks, mode=mode, variant=variant, seed=config.seed, known_fit=peak_fit))
        reserved_peaks = [p.peak_reserved_bytes for p in ok_points]
        known_peaks = [value for value in reserved_peaks if value is not None]
        card_fit = fit(sizes, known_peaks, seed=config.seed) if len(known_peaks) == len(sizes) else peak_fit
        grows = laws[-1].slope_low > 0
        rows += [
            _card_row(card, mode, variant, _largest_size(card_fit, _usable_bytes(card), grows), sizes[-1])
            for card in config.cards
        ]
    if rows and config.device == "cpu":
        all_notes.append(
            "the card table is computed from CPU tensors: it leaves out what a GPU's allocator caches and"
            " the cuBLAS workspace"
        )
    claims = {
        name: size_check.Claim(line.flat, line.chunk)
        for name, line in config.lines.items()
        if line.flat is not None
    }
    reasons = size_check.judge(ladder, laws, flat=claims)
    return Study(
        target=config.target.text,
        axis=config.axis,
        on=config.on,
        points=tuple(points),
        laws=tuple(laws),
        passed=not reasons,
        gate=reasons,
        cards=tuple(rows),
        boundary=tuple(boundary),
        notes=(*all_notes, *size_check.gate_notes(ladder, laws, flat=claims)),
        took_s=took_s,
        seed=config.seed,
        repeats=_repeats(config),
        settings=dict(config.settings),
        machine=machine or describe(),
    )


def _peaks(ok_points: Sequence[Point]) -> tuple[list[int], list[int], bool]:
    """Return sizes, their allocated peaks, and whether the peaks are theory because none were measured."""
    peaks = [(p.size, p.peak_allocated_bytes) for p in ok_points if p.peak_allocated_bytes]
    if peaks:
        return [size for size, _ in peaks], [peak for _, peak in peaks], False
    theory = [(p.size, p.theory_bytes) for p in ok_points if p.theory_bytes]
    return [size for size, _ in theory], [peak for _, peak in theory], True


def _usable_bytes(card: Card) -> float:
    return (1 - RESERVE) * card.memory_bytes - card.context_high_bytes


def _largest_size(peak_fit: Fit, usable_bytes: float, grows: bool) -> tuple[float, float, float]:
    """Return the largest size that fits, and its interval.

    Where the data show no growth, the slope is noise and cannot be extrapolated to a limit: either
    every size fits or none does.
    """
    if grows:
        return peak_fit.largest(usable_bytes)
    size = math.inf if peak_fit.curve.at(peak_fit.sizes[-1]) <= usable_bytes else 0.0
    return size, size, size


def _card_row(
    card: Card, mode: str, variant: str, largest: tuple[float, float, float], largest_studied: int
) -> dict[str, Any]:
    """Return one row of the card table. Its size is None if no size is too large, and 0 if none fits."""
    size, low, high = (None if math.isinf(value) or value > 1e15 else max(0, int(value)) for value in largest)
    return {
        "card": card.name,
        "memory_bytes": card.memory_bytes,
        "mode": mode,
        "variant": variant,
        "size": size,
        "low": low,
        "high": high,
        "extrapolated": size is None or size > largest_studied,
    }


def _repeats(config: StudyConfig) -> int:
    return 0 if config.device == "fake" else config.repeats
