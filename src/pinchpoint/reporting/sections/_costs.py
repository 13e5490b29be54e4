"""Plots of a study's costs: the breakdown of the peak, the accuracy of theory, and time vs memory."""

from __future__ import annotations

from pinchpoint.core.records import BREAKDOWN, Point, Study
from pinchpoint.core.units import show_bytes
from pinchpoint.reporting import palette
from pinchpoint.reporting.axes import (
    exact_size,
    linear_axis,
    log_byte_axis,
    log_size_axis,
    log_time_axis,
    rounded_size,
    size_title,
    titled_axis,
)
from pinchpoint.reporting.chart import Figure, Trace, Unit, bar_chart, bars, hover, layout, path
from pinchpoint.reporting.modules import merged_modules
from pinchpoint.reporting.record_reader import number, share
from pinchpoint.reporting.sections._series import Series, peak_of, positive

MODULES_SHOWN = 12


def breakdowns(study: Study, series: list[Series]) -> list[Figure]:
    """Return one stacked plot per variant and mode, of the runs with a breakdown."""
    return [figure for line in series if (figure := _breakdown(study, line))]


def _breakdown(study: Study, line: Series) -> Figure | None:
    points = [p for p in line.ok_points if p.breakdown]
    if not points:
        return None
    parts = {name for p in points for name, size in (p.breakdown or {}).items() if size}
    unit = Unit.of([peak_of(p) for p in points])
    names = [*(name for name in BREAKDOWN if name in parts), *sorted(parts - set(BREAKDOWN))]
    data = [_part(name, points, unit) for name in names]
    # Sizes grow geometrically, so they are drawn in equal steps, each labelled with its size.
    ticks = {
        "tickmode": "array",
        "tickvals": list(range(len(points))),
        "ticktext": [rounded_size(p.size) for p in points],
    }
    x = titled_axis(size_title(study.axis), **ticks, showgrid=False, zeroline=False)
    axes = layout(x=x, y=linear_axis(f"peak allocated ({unit.name})"), barmode="stack", bargap=0.15)
    return Figure(f"Breakdown of the peak: {line.name}", tuple(data), axes, height=300, half=True)


def _part(name: str, points: list[Point], unit: Unit) -> Trace:
    sizes = [(p.breakdown or {}).get(name, 0) for p in points]
    texts = [
        hover(
            name,
            ("size", exact_size(p.size)),
            ("bytes", show_bytes(size)),
            ("share", f"{share(size, peak_of(p)):.1%}"),
        )
        for p, size in zip(points, sizes, strict=True)
    ]
    return bars(
        name, range(len(points)), [unit(size) for size in sizes], role=palette.of_source(name), texts=texts
    )


def theory(study: Study, series: list[Series]) -> list[Figure]:
    """Return theory (the fake run) vs measurement and their residuals.

    Return nothing for a study that is itself theory.
    """
    pairs = [
        (line, points)
        for line in series
        if (points := [p for p in line.ok_points if p.peak_allocated_bytes and p.theory_bytes])
    ]
    if study.on == "fake" or not pairs:
        return []
    both = positive(
        [v for _, points in pairs for p in points for v in (p.theory_bytes, p.peak_allocated_bytes)]
    )
    diagonal = path([min(both), max(both)], [min(both), max(both)], role="muted", width=1, dash="dot")
    points_drawn = [
        line.marks(points, lambda p: p.peak_allocated_bytes, x=lambda p: p.theory_bytes, lines=False)
        for line, points in pairs
    ]
    residuals = [line.marks(points, _theory_residual) for line, points in pairs]
    widest = max(0.5, 1.25 * max(abs(y) for trace in residuals for y in trace["y"]))
    residual_axes = layout(
        x=log_size_axis([p.size for p in study.points], size_title(study.axis)),
        y=titled_axis(
            "measured / theory - 1", ticksuffix=" %", range=[-widest, widest], zerolinecolor="@muted"
        ),
    )
    square_axes = layout(x=log_byte_axis(both, "theory (fake run)"), y=log_byte_axis(both, "measured"))
    return [
        Figure(
            "Theory vs measurement",
            (diagonal, *points_drawn),
            square_axes,
            note="On the dotted line, theory equals the measurement.",
            half=True,
        ),
        Figure(
            "Residuals of theory",
            tuple(residuals),
            residual_axes,
            note="Above zero, the run needs more memory than theory predicts.",
            half=True,
        ),
    ]


def _theory_residual(point: Point) -> float:
    return 100 * (share(point.peak_allocated_bytes or 0, point.theory_bytes or 0) - 1)


def trade_off(series: list[Series]) -> Figure | None:
    """Return step time vs peak, with one line per variant and mode through its sizes.

    A point further to the lower left is better.
    """
    pairs = [(line, points) for line in series if (points := [p for p in line.ok_points if p.time_s])]
    if not pairs:
        return None
    times = positive([p.time_s for _, points in pairs for p in points])
    peaks = positive([peak_of(p) for _, points in pairs for p in points])
    data = [line.marks(points, peak_of, x=lambda p: p.time_s) for line, points in pairs]
    axes = layout(x=log_time_axis(times, "step time"), y=log_byte_axis(peaks, "peak allocated"))
    note = "Each line connects the sizes of one variant; lower and further left is better."
    return Figure("Time vs memory", tuple(data), axes, height=380, note=note)


def modules(series: list[Series]) -> Figure | None:
    """Return the bytes of each module at the largest size of the first series with modules."""
    points_with_modules = (
        (p, line)
        for line in series
        for p in reversed(line.ok_points)
        if any(number(m, "bytes") for m in p.modules)
    )
    point, line = next(points_with_modules, (None, None))
    if point is None or line is None:
        return None
    pairs = [(module.label, module.bytes) for module in merged_modules(point.modules)]
    whole = peak_of(point)
    rows = [
        (name, line.role, size, hover(name, ("bytes", f"{size:,}"), ("share", f"{share(size, whole):.1%}")))
        for name, size in pairs[:MODULES_SHOWN]
    ]
    return bar_chart(
        "Bytes per module",
        rows,
        axis="alive at the peak",
        note=f"{line.name}, size {exact_size(point.size)}.",
    )
