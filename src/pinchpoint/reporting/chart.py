"""Plots as plain data for plotly.js, with colours named by role.

A `Figure` is plain JSON. The page's script replaces "@role" and "@role/0.2" (with an opacity) by the
theme's colours under every key that ends in "color". A named trace has an entry in the plot's legend,
which the page writes as HTML: it wraps at any width, and a click on an entry hides its trace.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pinchpoint.core.units import show_bytes
from pinchpoint.reporting.axes import Axis, base_axis, byte_unit, escape_label, labelled_axis, linear_axis

GLYPHS = {
    "circle": "●○",
    "square": "■□",
    "diamond": "◆◇",
    "triangle-up": "▲△",
    "pentagon": "⬟⬠",
    "star": "★☆",
    "hexagon": "⬢⬡",
    "triangle-down": "▼▽",
    "x": "✖✖",
    "x-thin": "✕✕",
    "line-ns": "❘❘",
}
SYMBOLS = tuple(GLYPHS)[:8]
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

Trace = dict[str, Any]


@dataclass(frozen=True)
class LegendEntry:
    """One entry of a plot's legend: a trace's name, its colour and a glyph shaped like its markers."""

    name: str
    role: str
    glyph: str


@dataclass(frozen=True)
class Figure:
    """One plot. `half` lets two plots share a row; `note` says how to read the plot."""

    title: str
    data: tuple[Trace, ...]
    layout: dict[str, Any]
    height: int = 330
    note: str = ""
    half: bool = False

    def legend(self) -> list[LegendEntry]:
        entries = [
            LegendEntry(trace["name"], trace["meta"]["role"], trace["meta"]["glyph"])
            for trace in self.data
            if trace.get("name")
        ]
        return list(dict.fromkeys(entries)) if len(entries) > 1 else []

    def to_dict(self) -> dict[str, Any]:
        return _finite({"data": list(self.data), "layout": {**self.layout, "height": self.height}})


@dataclass(frozen=True)
class Unit:
    """The byte unit of an axis, chosen by its largest value."""

    name: str
    scale: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Unit:
        return cls(*byte_unit(max((abs(v) for v in values if v is not None), default=0.0)))

    def __call__(self, value: float) -> float:
        # Six digits are more than a plot can show; hover texts use the exact bytes.
        return float(f"{value / self.scale:.6g}")


def symbol_of(name: str, names: Sequence[str]) -> str:
    """Return the symbol of the series `name` among `names`.

    From the ninth series on, a symbol comes with another colour.
    """
    place = list(names).index(name)
    return SYMBOLS[(place + place // len(SYMBOLS)) % len(SYMBOLS)]


def hover(title: object, *lines: tuple[str, object]) -> str:
    """Return the hover text of a marker: a bold title and `label: value` lines."""
    return "<br>".join(
        [f"<b>{escape_label(title)}</b>", *(f"{escape_label(k)}: {escape_label(v)}" for k, v in lines)]
    )


def layout(*, x: Axis, y: Axis, **other: Any) -> dict[str, Any]:
    """Return the layout that all plots share, with `x`, `y` and `other` added."""
    return {
        "font": {"family": FONT, "size": 12, "color": "@muted"},
        "paper_bgcolor": "@surface",
        "plot_bgcolor": "@surface",
        "margin": {"l": 12, "r": 16, "t": 10, "b": 8},
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": "@sunken",
            "bordercolor": "@line",
            "align": "left",
            "font": {"color": "@ink", "size": 12},
        },
        "xaxis": {**base_axis(), **x},
        "yaxis": {**base_axis(), **y},
        **other,
    }


def marks(
    name: str,
    x: Sequence[Any],
    y: Sequence[Any],
    *,
    role: str,
    texts: Sequence[str],
    symbol: str = "circle",
    dash: str = "",
    size: float = 8,
    **other: Any,
) -> Trace:
    """Return a trace of points, joined by a line if `dash` is given."""
    stroke = {"color": f"@{role}", "width": 1.8}
    glyph = GLYPHS[symbol.removesuffix("-open")][symbol.endswith("-open")]
    return {
        "type": "scatter",
        "mode": "lines+markers" if dash else "markers",
        "name": name,
        "meta": {"role": role, "glyph": glyph},
        "x": list(x),
        "y": list(y),
        "line": {**stroke, "dash": dash or "solid"},
        "marker": {"color": f"@{role}", "symbol": symbol, "size": size, "line": stroke},
        "hoverinfo": "text",
        "hovertext": list(texts),
        **other,
    }


def path(
    x: Sequence[float],
    y: Sequence[float | None],
    *,
    role: str,
    dash: str = "solid",
    width: float = 1.6,
    **other: Any,
) -> Trace:
    """Return a line without markers, and without hover text unless `other` provides one."""
    line = {"color": f"@{role}", "width": width, "dash": dash}
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(x),
        "y": list(y),
        "line": line,
        "hoverinfo": "skip",
        **other,
    }


def bars(
    name: str, x: Sequence[Any], y: Sequence[Any], *, role: str, texts: Sequence[str], **other: Any
) -> Trace:
    """Return a trace of bars; `orientation="h"` makes them horizontal."""
    marker = {"color": f"@{role}", "line": {"color": "@surface", "width": 0.8}}
    return {
        "type": "bar",
        "name": name,
        "meta": {"role": role, "glyph": "■"},
        "x": list(x),
        "y": list(y),
        "marker": marker,
        "hoverinfo": "text",
        "hovertext": list(texts),
        **other,
    }


def bar_chart(
    title: str,
    rows: Sequence[tuple[str, str, int, str]],
    *,
    axis: str,
    note: str = "",
    half: bool = False,
    height: int | None = None,
) -> Figure:
    """Return a plot of horizontal bars, one per (label, role, bytes, hover text), in the given order."""
    unit = Unit.of([size for _, _, size, _ in rows])
    trace = bars(
        "",
        [unit(size) for _, _, size, _ in rows],
        range(len(rows)),
        role="s1",
        texts=[text for _, _, _, text in rows],
        orientation="h",
        text=[show_bytes(size) for _, _, size, _ in rows],
        textposition="auto",
        textfont={"size": 12},
        cliponaxis=False,
    )
    trace["marker"]["color"] = [f"@{role}" for _, role, _, _ in rows]
    axes = layout(
        x=linear_axis(f"{axis} ({unit.name})"),
        y=labelled_axis([label for label, _, _, _ in rows], autorange="reversed"),
        bargap=0.3,
    )
    return Figure(title, (trace,), axes, height=height or 80 + 26 * len(rows), note=note, half=half)


def level(
    value: float, label: str, *, role: str, dash: str = "dash"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a shape and an annotation: a horizontal line across a log plot, labelled at its left end."""
    ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value}
    line = {
        "type": "line",
        **ends,
        "layer": "below",
        "line": {"color": f"@{role}", "width": 1.2, "dash": dash},
    }
    note = {
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        # On a log axis plotly.js takes a shape in data units and an annotation in powers of ten.
        "y": math.log10(value),
        "yanchor": "bottom",
        "text": escape_label(label),
        "showarrow": False,
        "font": {"color": f"@{role}", "size": 11},
        "bgcolor": "@surface/0.7",
        "borderpad": 1,
    }
    return line, note


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by None: such markers are not drawn."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
