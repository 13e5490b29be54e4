"""The axis gate: was the axis applied, and does memory grow along it as claimed?

A study of a workload that ignores its axis draws a fine line through nothing. So the points really
processed must be those asked for, and the slope's interval must lie above zero. A variant that
declares itself flat makes the opposite claim, and is held to that: `flat` maps its name to the bytes
a point it says it may hold, 0 for none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pinchpoint.core.law import LEAST
from pinchpoint.core.records import Law, Point
from pinchpoint.core.units import show_bytes, show_size

STEP_PARTS = ("activations", "temporaries")
MATERIAL = 0.01  # growth of a flat variant below 1 % of its peak is not held against it


def judge(points: Sequence[Point], laws: Sequence[Law], *, flat: Mapping[str, float]) -> tuple[str, ...]:
    """Why the study fails, one line each; empty when it passes."""
    reasons: list[str] = []
    known = {(law.variant, law.mode): law for law in laws}
    for (variant, mode), members in _lines(points).items():
        name = f"{variant} {mode}"
        ran = [p for p in members if p.status == "ok"]
        reasons += _axis(name, ran)
        law = known.get((variant, mode))
        reasons += _step(name, ran)
        if law is None and len(ran) >= LEAST:
            reasons.append(f"{name}: the peaks are not known, so growth cannot be judged")
        elif law is None:
            reasons.append(f"{name}: {len(ran)} of {len(members)} sizes ran; growth needs at least {LEAST}")
        elif variant in flat:
            reasons += _flat(name, law, ran, flat[variant])
        elif law.slope_low <= 0:
            reasons.append(
                f"{name}: memory does not grow with the size: {_slope(law)}"
                " contains zero or less; the axis may not reach the computation"
            )
    return tuple(reasons)


def notes(points: Sequence[Point], laws: Sequence[Law], *, flat: Mapping[str, float]) -> tuple[str, ...]:
    """What the gate could not see, or found to be as a flat variant claims."""
    lines = _lines(points)
    said = [
        f"{law.variant} {law.mode} {_claim(flat[law.variant])}, as declared: {_last_step(lines[law.variant, law.mode])}"
        for law in laws
        if law.variant in flat and not _flat("", law, lines[law.variant, law.mode], flat[law.variant])
    ]
    if any(p.status == "ok" and p.processed is None for p in points):
        said.append("the points really processed were not observed; the axis is judged by the slope alone")
    return tuple(said)


def _lines(points: Sequence[Point]) -> dict[tuple[str, str], list[Point]]:
    found: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        found.setdefault((point.variant, point.mode), []).append(point)
    return found


def _axis(name: str, ran: Sequence[Point]) -> list[str]:
    wrong = [p for p in ran if p.processed is not None and p.processed != p.size]
    if not wrong:
        return []
    first = wrong[0]
    return [
        f"{name}: processed {first.processed:,} points where {first.size:,} were asked for"
        f" (at {len(wrong)} of {len(ran)} sizes): the axis was not applied"
    ]


def _step(name: str, ran: Sequence[Point]) -> list[str]:
    """Where nobody counted the points, what the step itself holds must grow: data alone may lie there unread."""
    if any(p.processed is not None or p.breakdown is None for p in ran) or len(ran) < LEAST:
        return []
    held = [sum(size for part, size in (p.breakdown or {}).items() if part in STEP_PARTS) for p in ran]
    if held[-1] > (1 + MATERIAL) * held[0]:
        return []
    return [
        f"{name}: only its inputs grow with the size, what a step makes of them does not: the axis may not reach"
        " the computation; a step that goes through its points in chunks says how many with step.processed"
    ]


def _claim(held: float) -> str:
    return f"grows by no more than {held:g} B/point" if held else "is flat"


def _flat(name: str, law: Law, ran: Sequence[Point], held: float) -> list[str]:
    """A flat variant may grow up to its chunk; by the largest sizes only what it says it must hold may still grow.

    The last two sizes are asked beside the law: a short ladder has no room for the break at the chunk.
    """
    (small, before), (large, last) = _last_two(ran)
    if law.slope_low <= held or last - before <= max(MATERIAL * last, held * (large - small)):
        return []
    claim = f"declared to grow by no more than {held:g} B/point" if held else "declared flat"
    return [
        f"{name}: {claim}, but grows by {_slope(law)} ({_last_step(ran)});"
        " up to a chunk it may, so study larger sizes before blaming it"
    ]


def _last_two(ran: Sequence[Point]) -> tuple[tuple[int, int], tuple[int, int]]:
    known = [(p.size, p.peak_allocated_bytes or p.theory_bytes or 0) for p in ran if p.status == "ok"]
    return known[-2], known[-1]


def _last_step(ran: Sequence[Point]) -> str:
    (small, before), (large, last) = _last_two(ran)
    return f"{show_bytes(before)} at {show_size(small)}, {show_bytes(last)} at {show_size(large)}"


def _slope(law: Law) -> str:
    return f"{law.slope_bytes_per_point:,.4g} B/point, 95 % [{law.slope_low:,.4g}, {law.slope_high:,.4g}]"
