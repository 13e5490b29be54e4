"""The axis gate: was the axis applied, and does memory grow along it as claimed?

A study of a workload that ignores its axis draws a fine line through nothing. So the points really
processed must be those asked for, and the slope's interval must lie above zero. A variant that
declares itself flat makes the opposite claim, and is held to that: `flat` maps its name to its `Claim`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pinchpoint.core.growth_law import LEAST
from pinchpoint.core.records import Law, Point
from pinchpoint.core.units import show_bytes, show_size

STEP_PARTS = ("activations", "temporaries")
MATERIAL = 0.01  # growth of a flat variant below 1 % of its peak is not held against it


@dataclass(frozen=True)
class Claim:
    """What a flat variant says of itself: the bytes a point it may hold, 0 for none, and its chunk where it is known."""

    held_bytes: float = 0.0
    chunk: int | None = None

    def text(self) -> str:
        return f"grows by no more than {self.held_bytes:g} B/point" if self.held_bytes else "is flat"

    def is_tested(self, ran: Sequence[Point]) -> bool:
        """Do the last two sizes lie beyond a chunk, up to which everything grows?"""
        return self.chunk is None or _last_two(ran)[0][0] >= self.chunk


def judge(points: Sequence[Point], laws: Sequence[Law], *, flat: Mapping[str, Claim]) -> tuple[str, ...]:
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


def notes(points: Sequence[Point], laws: Sequence[Law], *, flat: Mapping[str, Claim]) -> tuple[str, ...]:
    """What the gate could not see, or found to be as a flat variant claims."""
    lines = _lines(points)
    said = []
    for law in laws:
        ran, claim = lines[law.variant, law.mode], flat.get(law.variant)
        if claim is None or _flat("", law, ran, claim):
            continue
        name = f"{law.variant} {law.mode}"
        if claim.is_tested(ran):
            said.append(f"{name} {claim.text()}, as declared: {_last_step(ran)}")
        else:
            chunk = claim.chunk or 0
            said.append(
                f"whether {name} {claim.text()} is not shown: it grows up to its chunk, {show_size(chunk)};"
                f" study --sizes {show_size(2 * chunk)}:{show_size(16 * chunk)}"
            )
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


def _flat(name: str, law: Law, ran: Sequence[Point], claim: Claim) -> list[str]:
    """A flat variant may grow up to its chunk; by the largest sizes only what it says it must hold may still grow.

    The last two sizes are asked beside the law: a short ladder has no room for the break at the chunk.
    """
    if not claim.is_tested(ran):
        return []
    (small, before), (large, last) = _last_two(ran)
    held = claim.held_bytes
    if law.slope_low <= held or last - before <= max(MATERIAL * last, held * (large - small)):
        return []
    declared = f"declared to grow by no more than {held:g} B/point" if held else "declared flat"
    beyond = (
        ""
        if claim.chunk is not None
        else f"; up to a chunk it may: study --sizes {show_size(large)}:{show_size(16 * large)} too"
    )
    return [f"{name}: {declared}, but grows by {_slope(law)} ({_last_step(ran)}){beyond}"]


def _last_two(ran: Sequence[Point]) -> tuple[tuple[int, int], tuple[int, int]]:
    known = [(p.size, p.peak_allocated_bytes or p.theory_bytes or 0) for p in ran if p.status == "ok"]
    return known[-2], known[-1]


def _last_step(ran: Sequence[Point]) -> str:
    (small, before), (large, last) = _last_two(ran)
    return f"{show_bytes(before)} at {show_size(small)}, {show_bytes(last)} at {show_size(large)}"


def _slope(law: Law) -> str:
    return f"{law.slope_bytes_per_point:,.4g} B/point, 95 % [{law.slope_low:,.4g}, {law.slope_high:,.4g}]"
