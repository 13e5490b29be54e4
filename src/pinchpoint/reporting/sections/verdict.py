"""The section of a verdict: whether a variant computes the same as its baseline, and its speed and peak."""

from __future__ import annotations

import math
from typing import Any

from pinchpoint.core.records import Verdict
from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.reporting.answers import answer
from pinchpoint.reporting.axes import exact_size, labelled_axis, titled_axis
from pinchpoint.reporting.chart import Figure, Trace, bar_chart, hover, layout, marks
from pinchpoint.reporting.html import (
    Column,
    Html,
    Tile,
    Tone,
    badge,
    folded_details,
    listing,
    number_columns,
    panel,
    table,
    tag,
)
from pinchpoint.reporting.record_reader import number, word
from pinchpoint.reporting.section import Entry, Headline

KIND = "verdict"
TITLE = "Verdicts"
NOUNS = ("verdict", "verdicts")
ABOUT = "Each variant compared with its baseline: values, gradients or distribution, then speed and peak."
ORDER = 40

ROWS_DRAWN = 24
ROWS_SHOWN = 12
_TONES: dict[str, Tone] = {"pass": "good", "fail": "bad", "inconclusive": "warn"}
_MARKS = {"pass": "✓", "fail": "✗", "inconclusive": "?"}

Comparison = dict[str, Any]


def entry(record: Verdict) -> Entry:
    tone, status = _TONES[record.status], f"{_MARKS[record.status]} {record.status}"
    pair = f"{record.variant} vs {record.baseline}"
    return Entry(
        title=record.target,
        answer=answer(record),
        headline=Headline(status, pair, _gain(record), tone),
        tags=(status, record.mode, f"size {exact_size(record.size)}", pair, record.device),
        tiles=_tiles(record),
        blocks=tuple(_blocks(record)),
    )


def _blocks(record: Verdict) -> list[Html | Figure]:
    blocks: list[Html | Figure] = []
    if record.speedup is not None:
        blocks.append(_speed(record, record.speedup))
    if record.peak_before_bytes is not None and record.peak_after_bytes is not None:
        blocks.append(_peaks(record, record.peak_before_bytes, record.peak_after_bytes))
    if record.comparisons:
        blocks += [_errors(record), _comparisons(record)]
    if record.notes:
        blocks.append(panel("Notes", listing(record.notes)))
    return blocks


def _gain(record: Verdict) -> str:
    gains = [f"{record.speedup:.2f}x speed"] if record.speedup is not None else []
    if record.peak_before_bytes and record.peak_after_bytes:
        gains.append(f"{record.peak_after_bytes / record.peak_before_bytes:.0%} of the peak")
    return ", ".join(gains)


def _tiles(record: Verdict) -> tuple[Tile, ...]:
    tiles = [
        Tile(
            "worst error",
            _error(record.worst_error),
            record.where,
            "bad" if record.status == "fail" else "plain",
        )
    ]
    if record.speedup is not None:
        slower = record.speedup < 1
        factor = 1 / record.speedup if slower and record.speedup else record.speedup
        note = f"95 % of baseline / variant: {_interval(record)}" if slower else f"95 %: {_interval(record)}"
        tiles.append(Tile("slow-down" if slower else "speed-up", f"{factor:.2f}x", note, _speed_tone(record)))
    if record.baseline_s is not None and record.variant_s is not None:
        steps = f"{show_seconds(record.baseline_s)} → {show_seconds(record.variant_s)}"
        tiles.append(Tile("step", steps, f"median of {record.repeats}"))
    if record.peak_before_bytes and record.peak_after_bytes is not None:
        change = record.peak_after_bytes / record.peak_before_bytes - 1
        peaks = f"{show_bytes(record.peak_before_bytes)} → {show_bytes(record.peak_after_bytes)}"
        tiles.append(
            Tile(
                f"peak, {record.peaks_are}",
                peaks,
                f"{change:+.1%}",
                "good" if change < 0 else "bad" if change > 0 else "plain",
            )
        )
    return tuple(tiles)


def _interval(record: Verdict) -> str:
    if record.speedup_low is None or record.speedup_high is None:
        return "unknown"
    return f"{record.speedup_low:.2f} to {record.speedup_high:.2f}"


def _speed_tone(record: Verdict) -> Tone:
    """Return good or bad only if the whole interval is on one side of 1."""
    if (
        record.speedup_low is None
        or record.speedup_high is None
        or record.speedup_low <= 1 <= record.speedup_high
    ):
        return "plain"
    return "good" if record.speedup_low > 1 else "bad"


def _speed(record: Verdict, speedup: float) -> Figure:
    low, high, tone = record.speedup_low, record.speedup_high, _speed_tone(record)
    role = "muted" if tone == "plain" else tone
    ends = [v for v in (low, high, speedup, 1.0) if v is not None]
    room = 0.08 * (max(ends) - min(ends) or 1.0)
    facts = (
        ("95 %", _interval(record)),
        ("baseline", show_seconds(record.baseline_s)),
        ("variant", show_seconds(record.variant_s)),
    )
    dot = marks(
        "", [speedup], [0], role=role, texts=[hover(f"{speedup:.3f}x", *facts)], symbol="diamond", size=15
    )
    dot |= {
        "mode": "markers+text",
        "text": [f"{speedup:.2f}x"],
        "textposition": "top center",
        "textfont": {"color": "@ink", "size": 14},
    }
    if low is not None and high is not None:
        reach = {"type": "data", "symmetric": False, "array": [high - speedup], "arrayminus": [speedup - low]}
        dot["error_x"] = {**reach, "color": f"@{role}", "thickness": 3, "width": 9}
    one = {
        "type": "line",
        "x0": 1,
        "x1": 1,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": "@muted", "width": 1.5, "dash": "dash"},
    }
    axes = layout(
        x=titled_axis(
            "speed-up, baseline / variant",
            range=[min(ends) - room, max(ends) + room],
            zeroline=False,
            ticksuffix="x",
        ),
        y={"visible": False, "range": [-1, 1]},
        shapes=[one],
    )
    runs = f"{record.repeats} runs of each, in alternation. " if record.repeats else ""
    return Figure(
        "Speed", (dot,), axes, height=190, note=f"{runs}The dashed line means no change.", half=True
    )


def _peaks(record: Verdict, before: int, after: int) -> Figure:
    rows = [
        (name, role, size, hover(name, ("peak", f"{size:,} B"), ("source", record.peaks_are)))
        for name, role, size in ((record.baseline, "idle-2", before), (record.variant, "s1", after))
    ]
    return bar_chart(
        "Peaks of baseline and variant",
        rows,
        axis="peak",
        note=f"Both peaks are {record.peaks_are}.",
        half=True,
        height=190,
    )


def _error(value: float | None) -> str:
    if value is None:
        return "-"
    return "0 (exact)" if value == 0 else f"{value:.2e}"


def _error_text(item: Comparison) -> str:
    error = number(item, "error")
    return "not a number" if error is None else _error(error)


def _strain(item: Comparison) -> float:
    """Return error / tolerance, or infinity for a comparison that failed or has no number."""
    error, tolerance = number(item, "error"), number(item, "tolerance")
    if error is None or not item.get("ok"):
        return math.inf
    return error / tolerance if tolerance else error


def _errors(record: Verdict) -> Figure:
    items = sorted(record.comparisons, key=_strain, reverse=True)[:ROWS_DRAWN]
    levels = [
        v for item in items for key in ("error", "tolerance") if (v := number(item, key)) and v > 0
    ] or [1.0]
    # A log axis cannot show zero and "not a number": they are drawn at its two ends, with the value on hover.
    low, high = min(levels) / 10, max(levels) * 10
    data: list[Trace] = [
        marks(
            "tolerance",
            [number(i, "tolerance") for i in items],
            range(len(items)),
            role="muted",
            texts=[],
            symbol="line-ns",
            size=15,
        )
    ]
    for name, role, symbol, is_ok in (("within", "good", "circle", True), ("beyond", "bad", "x", False)):
        group = [(row, item) for row, item in enumerate(items) if bool(item.get("ok")) is is_ok]
        if group:
            at = [
                high if (error := number(item, "error")) is None else min(max(error, low), high)
                for _, item in group
            ]
            data.append(
                marks(
                    name,
                    at,
                    [row for row, _ in group],
                    role=role,
                    texts=[_text(i) for _, i in group],
                    symbol=symbol,
                    size=11,
                )
            )
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    ticks = [10.0**power for power in powers][:: max(1, len(powers) // 8)]
    edges = [math.log10(low) - 0.2, math.log10(high) + 0.2]
    x = titled_axis(
        "relative error",
        type="log",
        range=edges,
        tickmode="array",
        tickvals=ticks,
        ticktext=[f"{tick:.0e}" for tick in ticks],
    )
    labels = [f"{word(item, 'what')} {word(item, 'name')}".strip() for item in items]
    axes = layout(x=x, y=labelled_axis(labels, showgrid=True, range=[len(items) - 0.4, -0.6]))
    omitted = len(record.comparisons) - len(items)
    note = "The vertical bar is the tolerance of each error. Exact results are at the left edge."
    note += f" {omitted} smaller errors are omitted." if omitted else ""
    return Figure("Errors", tuple(data), axes, height=86 + 24 * len(items), note=note)


def _text(item: Comparison) -> str:
    facts = (
        ("error", _error_text(item)),
        ("tolerance", _error(number(item, "tolerance"))),
        ("worst at", word(item, "where")),
    )
    return hover(f"{word(item, 'what')} {word(item, 'name')}", *facts)


def _comparisons(record: Verdict) -> Html:
    items = sorted(record.comparisons, key=_strain, reverse=True)

    def row(item: Comparison) -> tuple[object, ...]:
        ok = badge("within", "good") if item.get("ok") else badge("beyond", "bad")
        labels = (tag("code", word(item, "name")), word(item, "what"))
        return (*labels, _error_text(item), _error(number(item, "tolerance")), ok, word(item, "where"))

    columns = (
        Column("name", "code"),
        Column("what"),
        *number_columns("error", "tolerance"),
        Column(""),
        Column("worst at"),
    )
    failing = sum(not item.get("ok") for item in items)
    row_count = max(ROWS_SHOWN, failing)
    body = [table(columns, [row(item) for item in items[:row_count]])]
    if items[row_count:]:
        rest = table(columns, [row(item) for item in items[row_count:]])
        body.append(folded_details(f"{len(items) - row_count} more, all within tolerance", rest))
    note = (
        f"{failing} of {len(items)} comparisons exceed their tolerance."
        if failing
        else f"All {len(items)} comparisons are within their tolerance."
    )
    return panel("Comparisons", *body, note=note)
