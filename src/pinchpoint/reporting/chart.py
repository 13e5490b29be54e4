"""Plots as plain data: what plotly.js draws, with colours named by role.

A `Figure` is JSON and nothing else. The page's script turns "@role" and "@role/0.2" (with an
opacity) into the theme's colours under every key that ends in "color". A named trace has an entry
in the plot's key, which the page writes as HTML: it wraps on any width, and hides what is clicked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pinchpoint.core.units import show_bytes
from pinchpoint.reporting.axes import Axis, byte_unit, labelled, linear, plain, words

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
class Key:
    """One entry of a plot's key: a trace's name, its colour and a glyph shaped like its marks."""

    name: str
    role: str
    glyph: str


@dataclass(frozen=True)
class Figure:
    """One plot. `half` lets two share a row; `note` says how to read it."""

    title: str
    data: tuple[Trace, ...]
    layout: dict[str, Any]
    height: int = 330
    note: str = ""
    half: bool = False

    def legend(self) -> list[Key]:
        named = [
            Key(trace["name"], trace["meta"]["role"], trace["meta"]["glyph"])
            for trace in self.data
            if trace.get("name")
        ]
        return list(dict.fromkeys(named)) if len(named) > 1 else []

    def to_dict(self) -> dict[str, Any]:
        return _finite({"data": list(self.data), "layout": {**self.layout, "height": self.height}})


@dataclass(frozen=True)
class Unit:
    """The byte unit an axis is drawn in, chosen by its largest value."""

    name: str
    scale: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Unit:
        return cls(*byte_unit(max((abs(v) for v in values if v is not None), default=0.0)))

    def __call__(self, value: float) -> float:
        # Six figures are more than a plot can show; hover texts are made from the exact bytes.
        return float(f"{value / self.scale:.6g}")


def symbol_of(name: str, names: Sequence[str]) -> str:
    """The mark of the series `name` among `names`; from the ninth on the pairing with the eight colours shifts."""
    place = list(names).index(name)
    return SYMBOLS[(place + place // len(SYMBOLS)) % len(SYMBOLS)]


def hover(title: object, *lines: tuple[str, object]) -> str:
    """What a mark says when pointed at: a bold title and `label: value` lines."""
    return "<br>".join([f"<b>{words(title)}</b>", *(f"{words(k)}: {words(v)}" for k, v in lines)])


def layout(*, x: Axis, y: Axis, **other: Any) -> dict[str, Any]:
    """The look all plots share; `x`, `y` and `other` come on top."""
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
        "xaxis": {**plain(), **x},
        "yaxis": {**plain(), **y},
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
    """Points, joined by a line when a `dash` is given."""
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
    """A line without marks, which says nothing when pointed at unless `other` gives it words."""
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
    """Bars; `orientation="h"` lays them down."""
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


def ranked(
    title: str,
    rows: Sequence[tuple[str, str, int, str]],
    *,
    axis: str,
    note: str = "",
    half: bool = False,
    height: int | None = None,
) -> Figure:
    """Laid bars of bytes, one per (label, role, bytes, hover text), in the order given."""
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
        x=linear(f"{axis} ({unit.name})"),
        y=labelled([label for label, _, _, _ in rows], autorange="reversed"),
        bargap=0.3,
    )
    return Figure(title, (trace,), axes, height=height or 80 + 26 * len(rows), note=note, half=half)


def level(
    value: float, label: str, *, role: str, dash: str = "dash"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A horizontal line across a log plot and its label at the left end, where what grows is low: a shape and an annotation."""
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
        # On a log axis plotly.js wants a shape in data terms and an annotation in powers of ten.
        "y": math.log10(value),
        "yanchor": "bottom",
        "text": words(label),
        "showarrow": False,
        "font": {"color": f"@{role}", "size": 11},
        "bgcolor": "@surface/0.7",
        "borderpad": 1,
    }
    return line, note


def _finite(value: Any) -> Any:
    """JSON has no NaN: a mark that is not a number is not drawn."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
