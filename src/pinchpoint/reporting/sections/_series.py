"""A study read as series: one line per variant and mode, with one look in every plot, and its law as a curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pinchpoint.core.records import Law, Point, Study
from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.reporting import palette
from pinchpoint.reporting.axes import exact
from pinchpoint.reporting.chart import Trace, hover, marks, symbol_of
from pinchpoint.reporting.record_reader import number, share


@dataclass(frozen=True)
class Series:
    """The points of one variant in one mode, by size. Colour and symbol tell the variant, fill and dash the mode."""

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
    def done(self) -> list[Point]:
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
        """A trace of this series; `x` is the size unless told."""
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
    """The allocated peak; theory's where nothing could measure one, as the law does; 0 where neither is known."""
    return point.peak_allocated_bytes or point.theory_bytes or 0


def series_of(study: Study) -> list[Series]:
    variants = list(dict.fromkeys(p.variant for p in study.points))
    # Training first when it is there: it is the mode people ask about.
    modes = sorted(dict.fromkeys(p.mode for p in study.points), key=lambda mode: mode != "train")
    laws = {(law.variant, law.mode): law for law in study.laws}
    found = []
    for variant in variants:
        for mode in modes:
            points = sorted(
                (p for p in study.points if (p.variant, p.mode) == (variant, mode)), key=lambda p: p.size
            )
            symbol = symbol_of(variant, variants)
            look = (symbol, "solid") if mode == modes[0] else (f"{symbol}-open", "dash")
            if points:
                role = palette.of_series(variant, variants)
                found.append(Series(variant, mode, tuple(points), laws.get((variant, mode)), role, *look))
    return found


def describe(series: Series, point: Point) -> str:
    facts: list[tuple[str, object]] = [("size", exact(point.size))]
    if point.processed is not None and point.processed != point.size:
        facts.append(("processed", exact(point.processed)))
    held = {
        "allocated": point.peak_allocated_bytes,
        "reserved": point.peak_reserved_bytes,
        "total": point.total_bytes,
        "theory": point.theory_bytes,
    }
    facts += [(label, show_bytes(value)) for label, value in held.items() if value is not None]
    if peak_of(point) and point.status == "ok":
        facts.append(("a point", f"{share(peak_of(point), point.size):,.1f} B"))
    if point.time_s is not None:
        facts.append(("step", show_seconds(point.time_s)))
    if point.status != "ok":
        reason = " ".join(point.reason.split())
        facts.append((point.status, reason if len(reason) <= 90 else reason[:87] + "..."))
    return hover(series.name, *facts)


def at(law: Law, size: float) -> float:
    """The law's peak at a size: of the segment that holds it, or of the last."""
    if not law.segments:
        return law.slope_bytes_per_point * size + law.intercept_bytes
    holding = [s for s in law.segments if (end := number(s, "to")) is None or size <= end]
    segment = holding[0] if holding else law.segments[-1]
    return (number(segment, "slope") or 0.0) * size + (number(segment, "intercept") or 0.0)


def curve(law: Law, sizes: Sequence[float]) -> tuple[list[float], list[float]]:
    """The law over the sizes, both sides of every break among them."""
    low, high = min(sizes), max(sizes)
    edges = [edge for b in law.breaks if low < b < high for edge in (b, b * (1 + 1e-9))]
    xs = sorted({*_ladder(low, high), *edges})
    return xs, [at(law, x) for x in xs]


def _ladder(low: float, high: float, count: int = 50) -> list[float]:
    return [low * (high / low) ** (i / (count - 1)) for i in range(count)] if high > low > 0 else [low]


def known(values: Sequence[float | None]) -> list[float]:
    return [v for v in values if v is not None and v > 0 and math.isfinite(v)]
