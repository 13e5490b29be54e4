"""The series of a study, one per variant and mode, with the same look in every plot, and laws as curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pinchpoint.core.records import Law, Point, Study
from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.reporting import palette
from pinchpoint.reporting.axes import exact_size
from pinchpoint.reporting.chart import Trace, hover, marks, symbol_of
from pinchpoint.reporting.record_reader import number, share


@dataclass(frozen=True)
class Series:
    """The points of one variant in one mode, by size.

    Colour and symbol show the variant, fill and dash the mode.
    """

    variant: str
    mode: str
    points: tuple[Point, ...]
    law: Law | None
    role: str
    symbol: str
    dash: str

    @property
    def name(self) -> str:
        return f"{self.variant}, {self.mode}"

    @property
    def ok_points(self) -> list[Point]:
        return [p for p in self.points if p.status == "ok" and p.size > 0 and peak_of(p)]

    def marks(
        self,
        points: Sequence[Point],
        y: Callable[[Point], float | None],
        *,
        x: Callable[[Point], float | None] | None = None,
        lines: bool = True,
        **other: Any,
    ) -> Trace:
        """Return a trace of this series; `x` is the size by default."""
        across = x or (lambda point: point.size)
        return marks(
            self.name,
            [across(p) for p in points],
            [y(p) for p in points],
            role=self.role,
            texts=[describe(self, p) for p in points],
            symbol=self.symbol,
            dash=self.dash if lines else "",
            **other,
        )


def peak_of(point: Point) -> int:
    """Return the allocated peak, else that of theory (as the law does), else 0."""
    return point.peak_allocated_bytes or point.theory_bytes or 0


def series_of(study: Study) -> list[Series]:
    variants = list(dict.fromkeys(p.variant for p in study.points))
    # Training comes first, because it is the mode that most readers look for.
    modes = sorted(dict.fromkeys(p.mode for p in study.points), key=lambda mode: mode != "train")
    laws = {(law.variant, law.mode): law for law in study.laws}
    series = []
    for variant in variants:
        for mode in modes:
            points = sorted(
                (p for p in study.points if (p.variant, p.mode) == (variant, mode)), key=lambda p: p.size
            )
            symbol = symbol_of(variant, variants)
            look = (symbol, "solid") if mode == modes[0] else (f"{symbol}-open", "dash")
            if points:
                role = palette.of_series(variant, variants)
                series.append(Series(variant, mode, tuple(points), laws.get((variant, mode)), role, *look))
    return series


def describe(series: Series, point: Point) -> str:
    facts: list[tuple[str, object]] = [("size", exact_size(point.size))]
    if point.processed is not None and point.processed != point.size:
        facts.append(("processed", exact_size(point.processed)))
    peaks = {
        "allocated": point.peak_allocated_bytes,
        "reserved": point.peak_reserved_bytes,
        "total": point.total_bytes,
        "theory": point.theory_bytes,
    }
    facts += [(label, show_bytes(value)) for label, value in peaks.items() if value is not None]
    if peak_of(point) and point.status == "ok":
        facts.append(("peak / size", f"{share(peak_of(point), point.size):,.1f} B"))
    if point.time_s is not None:
        facts.append(("step", show_seconds(point.time_s)))
    if point.status != "ok":
        reason = " ".join(point.reason.split())
        facts.append((point.status, reason if len(reason) <= 90 else reason[:87] + "..."))
    return hover(series.name, *facts)


def at(law: Law, size: float) -> float:
    """Return the law's peak at a size, by the segment that contains it or else the last."""
    if not law.segments:
        return law.slope_bytes_per_point * size + law.intercept_bytes
    candidates = [s for s in law.segments if (end := number(s, "to")) is None or size <= end]
    segment = candidates[0] if candidates else law.segments[-1]
    return (number(segment, "slope") or 0.0) * size + (number(segment, "intercept") or 0.0)


def curve(law: Law, sizes: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the law as a curve over the sizes, with both sides of every break."""
    low, high = min(sizes), max(sizes)
    edges = [edge for b in law.breaks if low < b < high for edge in (b, b * (1 + 1e-9))]
    xs = sorted({*_ladder(low, high), *edges})
    return xs, [at(law, x) for x in xs]


def _ladder(low: float, high: float, count: int = 50) -> list[float]:
    return [low * (high / low) ** (i / (count - 1)) for i in range(count)] if high > low > 0 else [low]


def positive(values: Sequence[float | None]) -> list[float]:
    return [v for v in values if v is not None and v > 0 and math.isfinite(v)]
