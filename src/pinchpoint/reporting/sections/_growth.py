"""How a study's peak grows: against size with law and cards, a point, and training against inference."""

from __future__ import annotations

import math

from pinchpoint.core.records import Point, Study
from pinchpoint.core.units import show_bytes
from pinchpoint.reporting.axes import exact, linear, log_bytes, log_few_bytes, log_sizes
from pinchpoint.reporting.chart import Figure, Trace, hover, layout, level, marks, path
from pinchpoint.reporting.record_reader import number, share, word
from pinchpoint.reporting.sections._series import Series, at, curve, describe, known, peak_of

CARD_LINES = 7


def peaks(study: Study, series: list[Series]) -> Figure:
    """Peak against size: points, fitted law, interval, out-of-memory crosses and card lines."""
    data: list[Trace] = []
    for line in series:
        if line.done:
            data += _law(line)
            data.append(line.marks(line.done, peak_of, lines=line.law is None, legendgroup=line.name))
    stopped = [
        (line, p, y) for line in series for p in line.points if p.status != "ok" and (y := _height(line, p))
    ]
    data += _crosses(stopped)
    heights = [*known([peak_of(p) for line in series for p in line.done]), *(y for _, _, y in stopped)]
    levels = card_levels(study, heights)
    drawn = [level(value, label, role="muted", dash="dot") for value, label in levels]
    axes = layout(
        x=log_sizes([p.size for p in study.points], f"size ({study.axis})"),
        y=log_bytes([*heights, *(value for value, _ in levels)], "peak allocated"),
        shapes=[line for line, _ in drawn],
        annotations=[note for _, note in drawn],
    )
    note = "Marks are runs, lines the law, bands its 95 % interval."
    note += " Crosses stand where theory or the law puts the peak." if stopped else ""
    return Figure(f"Peak against {study.axis}", tuple(data), axes, height=440, note=note)


def _law(line: Series) -> list[Trace]:
    if line.law is None:
        return []
    sizes = [float(p.size) for p in line.done]
    xs, ys = curve(line.law, sizes)
    fit = path(xs, [y if y > 0 else None for y in ys], role=line.role, dash=line.dash, legendgroup=line.name)
    if not line.law.band:
        return [fit]
    low = [(x, max(1.0, bottom)) for x, bottom, _ in line.law.band]
    round_trip = [*low, *((x, max(1.0, top)) for x, _, top in reversed(line.law.band))]
    area = path(
        [x for x, _ in round_trip],
        [y for _, y in round_trip],
        role=f"{line.role}/0",
        width=0,
        legendgroup=line.name,
    )
    return [{**area, "fill": "toself", "fillcolor": f"@{line.role}/0.18"}, fit]


def _height(line: Series, point: Point) -> float | None:
    """Where to draw a run that has no peak: where theory or the law puts it."""
    if point.theory_bytes:
        return point.theory_bytes
    expected = at(line.law, point.size) if line.law else 0.0
    return expected if expected > 0 else None


def _crosses(stopped: list[tuple[Series, Point, float]]) -> list[Trace]:
    crosses = []
    for name, role, statuses in (
        ("out of memory", "bad", ("oom",)),
        ("failed or timed out", "warn", ("failed", "timeout")),
    ):
        mine = [(line, point, y) for line, point, y in stopped if point.status in statuses]
        if mine:
            texts = [describe(line, point) for line, point, _ in mine]
            cross = marks(
                name,
                [p.size for _, p, _ in mine],
                [y for *_, y in mine],
                role=role,
                texts=texts,
                symbol="x-thin",
                size=11,
            )
            cross["marker"]["line"] = {"width": 2.6, "color": f"@{role}"}
            crosses.append(cross)
    return crosses


def card_levels(study: Study, heights: list[float]) -> list[tuple[float, str]]:
    """Card lines worth drawing: near the data, and far enough apart that their labels can be read."""
    if not heights:
        return []
    named = {word(item, "card"): value for item in study.cards if (value := number(item, "memory_bytes"))}
    low, high = min(heights), max(heights) * 4
    kept: list[tuple[float, str]] = []
    for name, value in sorted(named.items(), key=lambda pair: pair[1]):
        if low <= value <= high and (not kept or math.log(value / kept[-1][0]) > 0.09 * math.log(high / low)):
            kept.append((value, f"{name}, {show_bytes(value)}"))
    return kept[:CARD_LINES]


def bytes_a_point(study: Study, series: list[Series]) -> Figure:
    """Peak divided by size: it falls to the law's slope as the fixed part fades."""
    data = [
        line.marks(line.done, lambda p: share(peak_of(p), p.size), legendgroup=line.name) for line in series
    ]
    values = known([y for trace in data for y in trace["y"]])
    for line in series:
        # A flat variant heads for zero, which a log axis has no place for.
        if line.law and len(line.done) > 1 and line.law.slope_bytes_per_point > min(values) / 5:
            slope, sizes = line.law.slope_bytes_per_point, [p.size for p in line.done]
            text = hover(line.name, ("slope", f"{slope:,.1f} B a point"))
            ends = {"hoverinfo": "text", "hovertext": [text, text], "legendgroup": line.name}
            data.append(
                path(
                    [min(sizes), max(sizes)],
                    [slope, slope],
                    role=f"{line.role}/0.6",
                    width=1,
                    dash="dot",
                    **ends,
                )
            )
            values.append(slope)
    axes = layout(
        x=log_sizes([p.size for p in study.points], f"size ({study.axis})"),
        y=log_few_bytes(values, "peak / size"),
    )
    return Figure(
        "Bytes a point",
        tuple(data),
        axes,
        note="Dotted: the slope of the law, where each line is heading.",
        half=True,
    )


def ratios(study: Study, series: list[Series]) -> Figure | None:
    """Training's peak over inference's, at the sizes both reached."""
    inferred = {(s.variant, p.size): peak_of(p) for s in series if s.mode == "infer" for p in s.done}
    data: list[Trace] = []
    for line in series:
        both = [p for p in line.done if inferred.get((line.variant, p.size))] if line.mode == "train" else []
        if both:
            values = [share(peak_of(p), inferred[line.variant, p.size]) for p in both]
            pairs = zip(both, values, strict=True)
            texts = [
                hover(line.variant, ("size", exact(p.size)), ("train / infer", f"{ratio:.3f}"))
                for p, ratio in pairs
            ]
            sizes = [p.size for p in both]
            data.append(
                marks(
                    line.variant, sizes, values, role=line.role, texts=texts, symbol=line.symbol, dash="solid"
                )
            )
    if not data:
        return None
    top = max(y for trace in data for y in trace["y"])
    axes = layout(
        x=log_sizes([p.size for p in study.points], f"size ({study.axis})"),
        y=linear("peak of train / peak of infer", range=[0, top * 1.12], ticksuffix="x"),
    )
    return Figure(
        "Training against inference",
        tuple(data),
        axes,
        note="How much more a training step needs.",
        half=True,
    )
