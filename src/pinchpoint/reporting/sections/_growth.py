"""Plots of a study's growth: the peak vs size with laws and cards, per point, and training vs inference."""

from __future__ import annotations

import math

from pinchpoint.core.records import Point, Study
from pinchpoint.core.units import show_bytes
from pinchpoint.reporting.axes import (
    exact_size,
    linear_axis,
    log_byte_axis,
    log_point_byte_axis,
    log_size_axis,
    size_title,
)
from pinchpoint.reporting.chart import Figure, Trace, hover, layout, level, marks, path
from pinchpoint.reporting.record_reader import number, share, word
from pinchpoint.reporting.sections._series import Series, at, curve, describe, peak_of, positive

CARD_LINES = 7


def peaks(study: Study, series: list[Series]) -> Figure:
    """Return the peak vs size: points, fitted law, interval, out-of-memory crosses and card lines."""
    data: list[Trace] = []
    for line in series:
        if line.ok_points:
            data += _law(line)
            data.append(line.marks(line.ok_points, peak_of, lines=line.law is None, legendgroup=line.name))
    unfinished = [
        (line, p, y) for line in series for p in line.points if p.status != "ok" and (y := _height(line, p))
    ]
    data += _crosses(unfinished)
    heights = [
        *positive([peak_of(p) for line in series for p in line.ok_points]),
        *(y for _, _, y in unfinished),
    ]
    levels = card_levels(study, heights)
    card_lines = [level(value, label, role="muted", dash="dot") for value, label in levels]
    axes = layout(
        x=log_size_axis([p.size for p in study.points], size_title(study.axis)),
        y=log_byte_axis([*heights, *(value for value, _ in levels)], "peak allocated"),
        shapes=[line for line, _ in card_lines],
        annotations=[note for _, note in card_lines],
    )
    note = "Markers are runs, lines are the fitted laws, and bands are their 95 % intervals."
    note += (
        " Crosses mark runs that did not finish, at the peak predicted by theory or the law."
        if unfinished
        else ""
    )
    return Figure(f"Peak vs {study.axis}", tuple(data), axes, height=440, note=note)


def _law(line: Series) -> list[Trace]:
    if line.law is None:
        return []
    sizes = [float(p.size) for p in line.ok_points]
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
    """Return the height of a run without a peak: the peak by theory or the law."""
    if point.theory_bytes:
        return point.theory_bytes
    height = at(line.law, point.size) if line.law else 0.0
    return height if height > 0 else None


def _crosses(unfinished: list[tuple[Series, Point, float]]) -> list[Trace]:
    crosses = []
    for name, role, statuses in (
        ("out of memory", "bad", ("oom",)),
        ("failed or timed out", "warn", ("failed", "timeout")),
    ):
        runs = [(line, point, y) for line, point, y in unfinished if point.status in statuses]
        if runs:
            texts = [describe(line, point) for line, point, _ in runs]
            cross = marks(
                name,
                [p.size for _, p, _ in runs],
                [y for *_, y in runs],
                role=role,
                texts=texts,
                symbol="x-thin",
                size=11,
            )
            cross["marker"]["line"] = {"width": 2.6, "color": f"@{role}"}
            crosses.append(cross)
    return crosses


def card_levels(study: Study, heights: list[float]) -> list[tuple[float, str]]:
    """Return the card lines near the data, far enough apart that their labels do not overlap."""
    if not heights:
        return []
    memory = {word(item, "card"): value for item in study.cards if (value := number(item, "memory_bytes"))}
    low, high = min(heights), max(heights) * 4
    levels: list[tuple[float, str]] = []
    for name, value in sorted(memory.items(), key=lambda pair: pair[1]):
        if low <= value <= high and (
            not levels or math.log(value / levels[-1][0]) > 0.09 * math.log(high / low)
        ):
            levels.append((value, f"{name}, {show_bytes(value)}"))
    return levels[:CARD_LINES]


def bytes_per_point(study: Study, series: list[Series]) -> Figure:
    """Return the peak divided by the size, which approaches the law's slope as the size grows."""
    data = [
        line.marks(line.ok_points, lambda p: share(peak_of(p), p.size), legendgroup=line.name)
        for line in series
    ]
    values = positive([y for trace in data for y in trace["y"]])
    for line in series:
        # The slope of a flat variant is near zero, which a log axis cannot show.
        if line.law and len(line.ok_points) > 1 and line.law.slope_bytes_per_point > min(values) / 5:
            slope, sizes = line.law.slope_bytes_per_point, [p.size for p in line.ok_points]
            text = hover(line.name, ("slope", f"{slope:,.1f} B per {study.unit}"))
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
        x=log_size_axis([p.size for p in study.points], size_title(study.axis)),
        y=log_point_byte_axis(values, "peak / size"),
    )
    return Figure(
        f"Bytes per {study.unit}",
        tuple(data),
        axes,
        note="The dotted lines are the slopes of the laws, which the curves approach.",
        half=True,
    )


def ratios(study: Study, series: list[Series]) -> Figure | None:
    """Return the ratio of the training to the inference peak, at the sizes that both reached."""
    infer_peaks = {(s.variant, p.size): peak_of(p) for s in series if s.mode == "infer" for p in s.ok_points}
    data: list[Trace] = []
    for line in series:
        both = (
            [p for p in line.ok_points if infer_peaks.get((line.variant, p.size))]
            if line.mode == "train"
            else []
        )
        if both:
            values = [share(peak_of(p), infer_peaks[line.variant, p.size]) for p in both]
            pairs = zip(both, values, strict=True)
            texts = [
                hover(line.variant, ("size", exact_size(p.size)), ("train / infer", f"{ratio:.3f}"))
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
        x=log_size_axis([p.size for p in study.points], size_title(study.axis)),
        y=linear_axis("peak of train / peak of infer", range=[0, top * 1.12], ticksuffix="x"),
    )
    return Figure(
        "Training vs inference",
        tuple(data),
        axes,
        note="The peak of a training step divided by that of an inference step.",
        half=True,
    )
