"""From points to a Study: laws, the axis gate and the card table.

Laws are of the allocated peak over the sizes asked for. The card table is of what is reserved,
where that is known, plus the card's context, with a tenth of the card kept in reserve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pinchpoint.core.growth_law import LEAST, Fit, fit, law
from pinchpoint.core.machine import describe
from pinchpoint.core.records import Law, Point, Study
from pinchpoint.forecasting.cards import Card
from pinchpoint.studies import axis_gate
from pinchpoint.studies.request import Ask

RESERVE = 0.1


def partial(
    ask: Ask, points: Sequence[Point], *, notes: Sequence[str], machine: dict[str, Any] | None, took_s: float
) -> Study:
    """An unfinished study: the points alone, for `--resume` to go on from."""
    return Study(
        target=ask.target.text,
        axis=ask.axis,
        on=ask.on,
        points=tuple(points),
        laws=(),
        passed=False,
        gate=(f"not finished: {len(points)} of {len(ask.jobs())} points; go on with --resume",),
        notes=tuple(notes),
        complete=False,
        took_s=took_s,
        seed=ask.seed,
        repeats=_repeats(ask),
        settings=dict(ask.settings),
        machine=machine or describe(),
    )


def whole(
    ask: Ask,
    points: Sequence[Point],
    *,
    boundary: Sequence[dict[str, Any]],
    notes: Sequence[str],
    machine: dict[str, Any] | None,
    took_s: float,
) -> Study:
    """The finished study."""
    ladder = [p for p in points if p.size in ask.sizes]
    laws: list[Law] = []
    rows: list[dict[str, Any]] = []
    said = list(notes)
    for variant, mode in dict.fromkeys((p.variant, p.mode) for p in ladder):
        ran = [p for p in ladder if (p.variant, p.mode, p.status) == (variant, mode, "ok")]
        sizes, peaks, of_theory = _peaks(ran)
        if len(sizes) < LEAST:
            continue
        if of_theory:
            said.append(f"{variant} {mode}: no measured peak to be had on {ask.on}; the law is of theory")
        fitted = fit(sizes, peaks, seed=ask.seed)
        laws.append(law(sizes, peaks, mode=mode, variant=variant, seed=ask.seed, fitted=fitted))
        reserved = [p.peak_reserved_bytes for p in ran]
        known = [value for value in reserved if value is not None]
        within = fit(sizes, known, seed=ask.seed) if len(known) == len(sizes) else fitted
        grows = laws[-1].slope_low > 0
        rows += [
            _row(one, mode, variant, _largest(within, _room(one), grows), sizes[-1]) for one in ask.cards
        ]
    if rows and ask.device == "cpu":
        said.append(
            "card sizes are from CPU tensors: what a GPU's allocator caches and cuBLAS takes is not in them"
        )
    claims = {
        name: axis_gate.Claim(line.flat, line.chunk)
        for name, line in ask.lines.items()
        if line.flat is not None
    }
    reasons = axis_gate.judge(ladder, laws, flat=claims)
    return Study(
        target=ask.target.text,
        axis=ask.axis,
        on=ask.on,
        points=tuple(points),
        laws=tuple(laws),
        passed=not reasons,
        gate=reasons,
        cards=tuple(rows),
        boundary=tuple(boundary),
        notes=(*said, *axis_gate.notes(ladder, laws, flat=claims)),
        took_s=took_s,
        seed=ask.seed,
        repeats=_repeats(ask),
        settings=dict(ask.settings),
        machine=machine or describe(),
    )


def _peaks(ran: Sequence[Point]) -> tuple[list[int], list[int], bool]:
    """Sizes and allocated peaks; theory where no framework counter could tell."""
    found = [(p.size, p.peak_allocated_bytes) for p in ran if p.peak_allocated_bytes]
    if found:
        return [size for size, _ in found], [peak for _, peak in found], False
    theory = [(p.size, p.theory_bytes) for p in ran if p.theory_bytes]
    return [size for size, _ in theory], [peak for _, peak in theory], True


def _room(one: Card) -> float:
    return (1 - RESERVE) * one.memory_bytes - one.context_bytes


def _largest(fitted: Fit, room: float, grows: bool) -> tuple[float, float, float]:
    """Where no growth was shown, a slope that is noise must not be stretched to a limit: all fits, or nothing does."""
    if grows:
        return fitted.largest(room)
    size = math.inf if fitted.curve.at(fitted.sizes[-1]) <= room else 0.0
    return size, size, size


def _row(
    one: Card, mode: str, variant: str, largest: tuple[float, float, float], studied: int
) -> dict[str, Any]:
    """size: None where no size is too large; 0 where none fits."""
    size, low, high = (None if math.isinf(value) or value > 1e15 else max(0, int(value)) for value in largest)
    return {
        "card": one.name,
        "memory_bytes": one.memory_bytes,
        "mode": mode,
        "variant": variant,
        "size": size,
        "low": low,
        "high": high,
        "extrapolated": size is None or size > studied,
    }


def _repeats(ask: Ask) -> int:
    return 0 if ask.device == "fake" else ask.repeats
