"""The size check: was the requested size applied, and does memory grow with it as declared?

A study of a workload that ignores its axis would fit a meaningless law. The number of points processed
must therefore equal the requested size, and the slope's interval must lie above zero. A variant that
declares itself flat makes the opposite claim and is judged by it: `flat` maps its name to its `Claim`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pinchpoint.core.growth_law import LEAST
from pinchpoint.core.records import Law, Point
from pinchpoint.core.units import show_bytes, show_size

STEP_PARTS = ("activations", "temporaries")
MATERIAL = 0.01  # growth of a flat variant below 1 % of its peak is ignored


@dataclass(frozen=True)
class Claim:
    """What a flat variant declares: the bytes per point it may store (0 for none), and its chunk if known."""

    held_bytes: float = 0.0
    chunk: int | None = None

    def text(self) -> str:
        return f"grows by no more than {self.held_bytes:g} B/point" if self.held_bytes else "is flat"

    def is_tested(self, points: Sequence[Point]) -> bool:
        """Return whether the last two sizes lie beyond the chunk, up to which every variant grows."""
        return self.chunk is None or _last_two(points)[0][0] >= self.chunk


def judge(points: Sequence[Point], laws: Sequence[Law], *, flat: Mapping[str, Claim]) -> tuple[str, ...]:
    """Return the reasons why the study fails, or nothing if it passes."""
    reasons: list[str] = []
    laws_by_line = {(law.variant, law.mode): law for law in laws}
    for (variant, mode), members in _lines(points).items():
        name = f"{variant} {mode}"
        ok_points = [p for p in members if p.status == "ok"]
        reasons += _axis(name, ok_points)
        law = laws_by_line.get((variant, mode))
        reasons += _step(name, ok_points)
        if law is None and len(ok_points) >= LEAST:
            reasons.append(f"{name}: the peaks are not known, so growth cannot be judged")
        elif law is None:
            reasons.append(
                f"{name}: {len(ok_points)} of {len(members)} sizes ran, but judging growth takes at least"
                f" {LEAST}"
            )
        elif variant in flat:
            reasons += _flat(name, law, ok_points, flat[variant])
        elif law.slope_low <= 0:
            reasons.append(
                f"{name}: memory does not grow with the size: the 95 % interval of its slope,"
                f" [{law.slope_low:,.4g}, {law.slope_high:,.4g}] bytes per unit of size, is not above zero;"
                " the size may not reach the computation"
            )
    return tuple(reasons)


def gate_notes(points: Sequence[Point], laws: Sequence[Law], *, flat: Mapping[str, Claim]) -> tuple[str, ...]:
    """Return what the gate could not check, and the flat claims that it confirmed."""
    lines = _lines(points)
    notes = []
    for law in laws:
        ok_points, claim = lines[law.variant, law.mode], flat.get(law.variant)
        if claim is None or _flat("", law, ok_points, claim):
            continue
        name = f"{law.variant} {law.mode}"
        if claim.is_tested(ok_points) and not _is_within(ok_points, claim):
            notes.append(
                f"these sizes do not show whether {name} {claim.text()}: between the last two it grows by"
                f" {_last_slope(ok_points):,.4g} B/point ({_last_step(ok_points)}), over all by"
                f" {_slope(law)}; study more sizes"
            )
        elif claim.is_tested(ok_points):
            notes.append(f"{name} {claim.text()}, as declared: {_last_step(ok_points)}")
        else:
            chunk = claim.chunk or 0
            notes.append(
                f"these sizes do not show whether {name} {claim.text()}, because memory grows up to its"
                " chunk of"
                f" {show_size(chunk)}; study --sizes {show_size(2 * chunk)}:{show_size(16 * chunk)}"
            )
    if any(p.status == "ok" and p.processed is None for p in points):
        notes.append("the size that was processed was not observed; it is judged by the slope alone")
    return tuple(notes)


def _lines(points: Sequence[Point]) -> dict[tuple[str, str], list[Point]]:
    lines: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        lines.setdefault((point.variant, point.mode), []).append(point)
    return lines


def _axis(name: str, ok_points: Sequence[Point]) -> list[str]:
    wrong = [p for p in ok_points if p.processed is not None and p.processed != p.size]
    if not wrong:
        return []
    first = wrong[0]
    return [
        f"{name}: {first.processed:,} were processed where {first.size:,} were requested"
        f" (at {len(wrong)} of {len(ok_points)} sizes): the size was not applied"
    ]


def _step(name: str, ok_points: Sequence[Point]) -> list[str]:
    """Check that the step itself grows if points were not counted: inputs may grow without being read."""
    if any(p.processed is not None or p.breakdown is None for p in ok_points) or len(ok_points) < LEAST:
        return []
    step_bytes = [
        sum(size for part, size in (p.breakdown or {}).items() if part in STEP_PARTS) for p in ok_points
    ]
    if step_bytes[-1] > (1 + MATERIAL) * step_bytes[0]:
        return []
    return [
        f"{name}: only the inputs grow with the size, not what a step computes from them: the size may not"
        " reach the computation; a step that processes its inputs in chunks should report their number as"
        " step.processed"
    ]


def _flat(name: str, law: Law, ok_points: Sequence[Point], claim: Claim) -> list[str]:
    """Check that a flat variant grows, beyond its chunk, only by the bytes per point that it declares.

    The last two sizes are checked in addition to the law: a short ladder is too short to show the break at
    the chunk.
    """
    if not claim.is_tested(ok_points):
        return []
    limit = claim.held_bytes
    if law.slope_low <= limit or _is_within(ok_points, claim):
        return []
    large = _last_two(ok_points)[1][0]
    claim_text = f"declared to grow by no more than {limit:g} B/point" if limit else "declared flat"
    beyond = (
        ""
        if claim.chunk is not None
        else "; it may grow up to its chunk, so also study"
        f" --sizes {show_size(large)}:{show_size(16 * large)}"
    )
    return [f"{name}: {claim_text}, but it grows by {_slope(law)} ({_last_step(ok_points)}){beyond}"]


def _is_within(ok_points: Sequence[Point], claim: Claim) -> bool:
    """Whether the last two sizes differ by no more than a flat variant declares."""
    (small, before), (large, last) = _last_two(ok_points)
    return last - before <= max(MATERIAL * last, claim.held_bytes * (large - small))


def _last_two(ok_points: Sequence[Point]) -> tuple[tuple[int, int], tuple[int, int]]:
    peaks = [(p.size, p.peak_allocated_bytes or p.theory_bytes or 0) for p in ok_points if p.status == "ok"]
    return peaks[-2], peaks[-1]


def _last_step(ok_points: Sequence[Point]) -> str:
    (small, before), (large, last) = _last_two(ok_points)
    return f"{show_bytes(before)} at {show_size(small)}, {show_bytes(last)} at {show_size(large)}"


def _last_slope(ok_points: Sequence[Point]) -> float:
    """Bytes per point between the last two sizes."""
    (small, before), (large, last) = _last_two(ok_points)
    return (last - before) / (large - small)


def _slope(law: Law) -> str:
    return f"{law.slope_bytes_per_point:,.4g} B/point, 95 % [{law.slope_low:,.4g}, {law.slope_high:,.4g}]"
