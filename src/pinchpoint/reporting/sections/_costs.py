"""What a study's peak is made of, how theory did, and what time is paid for memory."""

from __future__ import annotations

from pinchpoint.core.records import BREAKDOWN, Point, Study
from pinchpoint.core.units import show_bytes
from pinchpoint.reporting import palette
from pinchpoint.reporting.axes import about, exact, linear, log_bytes, log_seconds, log_sizes, titled
from pinchpoint.reporting.chart import Figure, Trace, Unit, bars, hover, layout, path, ranked
from pinchpoint.reporting.record_reader import count, number, share, word
from pinchpoint.reporting.sections._series import Series, known, peak_of

MODULES_SHOWN = 12


def breakdowns(study: Study, series: list[Series]) -> list[Figure]:
    """One stacked plot per variant and mode, of the runs that know their parts."""
    return [figure for line in series if (figure := _breakdown(study, line))]


def _breakdown(study: Study, line: Series) -> Figure | None:
    points = [p for p in line.done if p.breakdown]
    if not points:
        return None
    found = {name for p in points for name, size in (p.breakdown or {}).items() if size}
    unit = Unit.of([peak_of(p) for p in points])
    names = [*(name for name in BREAKDOWN if name in found), *sorted(found - set(BREAKDOWN))]
    data = [_part(name, points, unit) for name in names]
    # Sizes grow geometrically: equal steps along the axis, each labelled with its size.
    ticks = {
        "tickmode": "array",
        "tickvals": list(range(len(points))),
        "ticktext": [about(p.size) for p in points],
    }
    x = titled(f"size ({study.axis})", **ticks, showgrid=False, zeroline=False)
    axes = layout(x=x, y=linear(f"peak allocated ({unit.name})"), barmode="stack", bargap=0.15)
    return Figure(f"Parts of the peak: {line.name}", tuple(data), axes, height=300, half=True)


def _part(name: str, points: list[Point], unit: Unit) -> Trace:
    sizes = [(p.breakdown or {}).get(name, 0) for p in points]
    texts = [
        hover(
            name,
            ("size", exact(p.size)),
            ("bytes", show_bytes(held)),
            ("share", f"{share(held, peak_of(p)):.1%}"),
        )
        for p, held in zip(points, sizes, strict=True)
    ]
    return bars(
        name, range(len(points)), [unit(held) for held in sizes], role=palette.of_source(name), texts=texts
    )


def theory(study: Study, series: list[Series]) -> list[Figure]:
    """Theory (the fake run) against measured, and what is left between them. Nothing for a study that is theory itself."""
    pairs = [
        (line, points)
        for line in series
        if (points := [p for p in line.done if p.peak_allocated_bytes and p.theory_bytes])
    ]
    if study.on == "fake" or not pairs:
        return []
    both = known([v for _, points in pairs for p in points for v in (p.theory_bytes, p.peak_allocated_bytes)])
    diagonal = path([min(both), max(both)], [min(both), max(both)], role="muted", width=1, dash="dot")
    against = [
        line.marks(points, lambda p: p.peak_allocated_bytes, x=lambda p: p.theory_bytes, lines=False)
        for line, points in pairs
    ]
    left = [line.marks(points, _missed) for line, points in pairs]
    widest = max(0.5, 1.25 * max(abs(y) for trace in left for y in trace["y"]))
    residuals = layout(
        x=log_sizes([p.size for p in study.points], f"size ({study.axis})"),
        y=titled("measured / theory - 1", ticksuffix=" %", range=[-widest, widest], zerolinecolor="@muted"),
    )
    square = layout(x=log_bytes(both, "theory (fake run)"), y=log_bytes(both, "measured"))
    return [
        Figure(
            "Theory against measured",
            (diagonal, *against),
            square,
            note="On the dotted line, theory is right.",
            half=True,
        ),
        Figure(
            "What theory missed",
            tuple(left),
            residuals,
            note="Above zero, more was needed than theory said.",
            half=True,
        ),
    ]


def _missed(point: Point) -> float:
    return 100 * (share(point.peak_allocated_bytes or 0, point.theory_bytes or 0) - 1)


def trade_off(series: list[Series]) -> Figure | None:
    """Step time against peak, one line per variant and mode through its sizes: lower left is better."""
    pairs = [(line, points) for line in series if (points := [p for p in line.done if p.time_s])]
    if not pairs:
        return None
    times = known([p.time_s for _, points in pairs for p in points])
    peaks = known([peak_of(p) for _, points in pairs for p in points])
    data = [line.marks(points, peak_of, x=lambda p: p.time_s) for line, points in pairs]
    axes = layout(x=log_seconds(times, "step time"), y=log_bytes(peaks, "peak allocated"))
    note = "Each line runs through the sizes; lower and further left is better."
    return Figure("Time against memory", tuple(data), axes, height=380, note=note)


def modules(series: list[Series]) -> Figure | None:
    """What each module holds at the largest size of the first series that knows its modules."""
    known_points = (
        (p, line)
        for line in series
        for p in reversed(line.done)
        if any(number(m, "bytes") for m in p.modules)
    )
    point, line = next(known_points, (None, None))
    if point is None or line is None:
        return None
    pairs = [(word(module, "name") or "(root)", count(module, "bytes") or 0) for module in point.modules]
    pairs.sort(key=lambda pair: -pair[1])
    whole = peak_of(point)
    rows = [
        (name, line.role, size, hover(name, ("bytes", f"{size:,}"), ("share", f"{share(size, whole):.1%}")))
        for name, size in pairs[:MODULES_SHOWN]
    ]
    return ranked(
        "Bytes by module", rows, axis="held at the peak", note=f"{line.name}, size {exact(point.size)}."
    )
