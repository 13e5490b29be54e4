"""Records in notebooks: the answer and tables as HTML, then a static picture as PNG.

Both are plain outputs of a cell, so JupyterLab, VS Code and GitHub show them alike, without JavaScript. A
record calls `display_record` by its name when a notebook asks it to show itself.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pinchpoint.core.records import (
    BREAKDOWN,
    KINDS,
    Check,
    Checkpointing,
    Forecast,
    Plan,
    Record,
    Study,
    Trace,
    Verdict,
)
from pinchpoint.core.units import show_bytes, show_seconds, show_size
from pinchpoint.reporting import palette
from pinchpoint.reporting.answers import answer
from pinchpoint.reporting.figures import peak, style
from pinchpoint.reporting.html import Html, prose, tag
from pinchpoint.reporting.record_reader import number, share, word

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES_SHOWN = 6
DPI = 110


def display_record(record: Record) -> None:
    """Show a record as the outputs of a notebook's cell."""
    from IPython.display import HTML, Image, display

    display(HTML(record_html(record)))
    png = picture(record)
    if png is not None:
        display(Image(png, format="png"))


def record_html(record: Record) -> str:
    """The answer, what to change, the summary, and the table that belongs to the kind of record."""
    if record.kind not in KINDS:
        return tag("div", _table((), record.summary()))  # a system's record
    result = answer(record)
    parts = [tag("p", tag("strong", result.text))]
    if result.changes:
        parts.append(tag("ul", *(tag("li", prose(change)) for change in result.changes)))
    parts.append(_table((), record.summary()))
    columns, rows = _details(record)
    if rows:
        parts.append(_table(columns, rows))
    return tag("div", *parts)


def picture(record: Record) -> bytes | None:
    """A PNG of the record; None if it has nothing to draw."""
    draw = _PICTURES.get(type(record))
    with style.figure_style():
        figure = draw(record) if draw else None
        if figure is None:
            return None
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    left = {"style": "text-align:left"}
    head = tag("tr", *(tag("th", column, **left) for column in columns)) if columns else None
    first = [tag("th" if not columns else "td", row[0], **left) for row in rows]
    body = [
        tag("tr", cell, *(tag("td", value, **left) for value in row[1:]))
        for cell, row in zip(first, rows, strict=True)
    ]
    return tag("table", tag("thead", head) if head else None, tag("tbody", *body))


def _details(record: Record) -> tuple[Sequence[str], list[Sequence[str]]]:
    if isinstance(record, Forecast):
        lines = sorted(record.lines, key=lambda line: -line.bytes)[:LINES_SHOWN]
        whole = record.peak_allocated_bytes
        return ("line", "code", "phase", "at the peak", "share"), [
            (
                f"{line.file.rpartition('/')[2]}:{line.line}",
                line.code,
                line.phase,
                show_bytes(line.bytes),
                f"{share(line.bytes, whole):.0%}",
            )
            for line in lines
        ]
    if isinstance(record, Plan) and len(record.choices) > 1:
        return ("variant", record.axis, "chunk", "predicted peak"), [
            (
                word(choice, "variant"),
                *(show_size(round(n)) if (n := number(choice, key)) else "-" for key in ("size", "chunk")),
                show_bytes(number(choice, "peak_bytes")),
            )
            for choice in record.choices
        ]
    if isinstance(record, Trace):
        steps = max(record.steps - 1, 1)
        return ("phase", "per step", "share"), [
            (phase.name, show_seconds(phase.host_s / steps), f"{phase.share:.0%}") for phase in record.phases
        ]
    return (), []


def _draw_forecast(record: Forecast) -> Figure | None:
    rows = 2 if record.timeline else 1
    ratios = {"height_ratios": [2.4, 1]} if rows == 2 else {}
    figure, grid = style.canvas(rows=rows, height=3.9 if rows == 2 else 1.5, gridspec_kw=ratios)
    if record.timeline:
        _draw_timeline(grid[0][0], record)
    _draw_parts(grid[-1][0], record)
    return figure


def _draw_timeline(axes: Axes, record: Forecast) -> None:
    x = [event for event, _, _ in record.timeline]
    top = max(size for _, size, _ in record.timeline)
    scale, unit = style.byte_unit(top)
    heights = [size / scale for _, size, _ in record.timeline]
    for phase in dict.fromkeys(phase for _, _, phase in record.timeline):
        inside = [p == phase for _, _, p in record.timeline]
        colour = palette.LIGHT[palette.of_phase(phase)]
        axes.fill_between(
            x, heights, where=inside, step="post", color=colour, alpha=0.65, label=style.drawable(phase)
        )
    axes.step(x, heights, where="post", color=style.INK, linewidth=0.8)
    axes.set_ylim(0, top / scale * 1.12)
    axes.set_ylabel(f"allocated ({unit})")
    axes.set_xlabel("allocations and frees, in their order")
    axes.set_title(f"Memory through the steps: {style.drawable(style.elide(record.target, 26))}")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1.0), ncols=6, columnspacing=1, handlelength=1)


def _draw_parts(axes: Axes, record: Forecast) -> None:
    names = [name for name in (*BREAKDOWN, *record.breakdown) if record.breakdown.get(name)]
    parts = [(name, record.breakdown[name], palette.of_source(name)) for name in dict.fromkeys(names)]
    unused = (record.peak_reserved_bytes or record.peak_allocated_bytes) - record.peak_allocated_bytes
    parts += [("unused", unused, "idle"), ("context", record.context_bytes, "idle-2")]
    scale, unit = style.byte_unit(record.total_bytes)
    left = 0.0
    for name, size, role in parts:
        width = size / scale
        axes.barh(
            0, width, left=left, color=palette.LIGHT[role], height=0.7, edgecolor="white", linewidth=0.6
        )
        if size > 0.06 * record.total_bytes:
            axes.text(
                left + width / 2, 0, style.drawable(name), ha="center", va="center", fontsize=7.5, rotation=0
            )
        left += width
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"memory at the peak ({unit}), from the weights to the driver's total")


def _draw_plan(record: Plan) -> Figure | None:
    runs = [run for run in record.tried if number(run, "total_bytes") and number(run, "size")]
    if not runs:
        return None
    figure, grid = style.canvas(height=3.0)
    axes = grid[0][0]
    names = list(dict.fromkeys(word(run, "variant") for run in runs))
    for name in names:
        colour = palette.LIGHT[palette.of_series(name, names)]
        own = sorted(
            (run for run in runs if word(run, "variant") == name), key=lambda run: number(run, "size") or 0
        )
        for fits, marker in ((True, "o"), (False, "x"), (None, "d")):
            group = [run for run in own if run.get("fits") is fits]
            label = (style.drawable(name) or "runs") if fits or (group and len(group) == len(own)) else None
            axes.plot(
                [number(run, "size") or 0 for run in group],
                [number(run, "total_bytes") or 0 for run in group],
                marker,
                color=colour,
                label=label,
            )
    axes.axhline(record.budget_bytes, color=style.BAD, linewidth=1)
    axes.annotate(
        f"budget {show_bytes(record.budget_bytes)}",
        (0.01, record.budget_bytes),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        color=style.BAD,
        fontsize=8,
    )
    style.size_axis(axes, record.axis)
    style.byte_axis(axes, "predicted total")
    axes.set_title(f"Sizes tried: {style.drawable(style.elide(record.target, 50))} (a cross does not fit)")
    style.legend(axes)
    return figure


def _draw_verdict(record: Verdict) -> Figure | None:
    pairs: list[tuple[str, float, float, Callable[[float], str]]] = []
    if record.peak_before_bytes is not None and record.peak_after_bytes is not None:
        pairs.append(
            (f"peak, {record.peaks_are}", record.peak_before_bytes, record.peak_after_bytes, show_bytes)
        )
    if record.baseline_s is not None and record.variant_s is not None:
        pairs.append(("step", record.baseline_s, record.variant_s, show_seconds))
    if not pairs:
        return None
    figure, grid = style.canvas(columns=len(pairs), height=1.6)
    for axes, (name, before, after, show) in zip(grid[0], pairs, strict=True):
        axes.barh([0, 1], [before, after], color=[palette.LIGHT["idle-2"], palette.LIGHT["s1"]], height=0.7)
        for row, value in enumerate((before, after)):
            axes.annotate(
                show(value), (value, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
            )
        axes.set_yticks([0, 1], [style.drawable(record.baseline), style.drawable(record.variant)])
        axes.set_xlim(0, 1.35 * max(before, after))
        axes.set_xticks([])
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.set_title(name, fontsize=10)
    return figure


def _draw_trace(record: Trace | None) -> Figure | None:
    if record is None or not record.timeline:
        return None
    figure, grid = style.canvas(height=2.6)
    axes = grid[0][0]
    rows = record.timeline
    steps = [round(number(row, "step") or 0) + 1 for row in rows]
    bottom = [0.0] * len(rows)
    for name in dict.fromkeys(name for row in rows for name in row.get("phases") or {}):
        values = [(number(row.get("phases") or {}, name) or 0.0) * 1e3 for row in rows]
        axes.bar(
            steps,
            values,
            bottom=bottom,
            label=style.drawable(name),
            color=palette.LIGHT[palette.of_phase(name)],
        )
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("step")
    axes.set_ylabel("host time (ms)")
    axes.set_title(f"Steps: {style.drawable(style.elide(record.target, 50))}")
    style.legend(axes, many=6)
    return figure


def _draw_checkpointing(record: Checkpointing) -> Figure | None:
    rows = [("as it is", record.before_bytes, "idle-2"), ("recomputed", record.peak_bytes, "s1")]
    figure, grid = style.canvas(height=1.6)
    axes = grid[0][0]
    scale, unit = style.byte_unit(max(record.before_bytes, record.budget_bytes))
    for place, (_, size, role) in enumerate(rows):
        axes.barh(place, size / scale, color=palette.LIGHT[role], height=0.7)
    axes.axvline(record.budget_bytes / scale, color=style.BAD, linewidth=1.2)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"predicted total ({unit}); the line is the budget, {show_bytes(record.budget_bytes)}")
    return figure


_PICTURES: dict[type[Record], Callable[[Any], Figure | None]] = {
    Forecast: _draw_forecast,
    Plan: _draw_plan,
    Checkpointing: _draw_checkpointing,
    Study: peak.draw,
    Verdict: _draw_verdict,
    Trace: _draw_trace,
    Check: lambda check: _draw_trace(check.trace),
}
