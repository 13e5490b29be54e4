"""Axes and the words on them: sizes, bytes and times at ticks people read.

Log axes get their ticks spelled out (10k, 256 MiB), because plotly.js knows powers of ten only.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from pinchpoint.core.units import show_seconds

_COUNTS = (("G", 10**9), ("M", 10**6), ("k", 10**3))
_BYTES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_FINE = (1, 1.5, 2, 3, 4, 5, 6, 8)

Axis = dict[str, Any]


def exact(size: int | None) -> str:
    """A size to the last point, short where it is round: 512k, 524,288."""
    if size is None:
        return "-"
    for unit, scale in _COUNTS:
        text = f"{size / scale:g}"
        if (
            size >= scale
            and float(text) * scale == size
            and len(text.replace(".", "")) <= (4 if size >= 10**6 else 3)
        ):
            return text + unit
    return f"{size:,}"


def about(size: float | None) -> str:
    """A size to three figures, for ticks and for what a law says, which is known no better: 29.2k, 1.44G."""
    if size is None:
        return "-"
    rounded = float(f"{size:.3g}")
    unit, scale = next((pair for pair in _COUNTS if rounded >= pair[1]), ("", 1))
    return f"{rounded / scale:.3g}{unit}"


def short_bytes(value: float) -> str:
    """`1.5 GiB`: for ticks, where `show_bytes` is too wide."""
    name, scale = byte_unit(value)
    return f"{value / scale:.3g} {name}"


def byte_unit(value: float) -> tuple[str, int]:
    return next((unit for unit in _BYTES if abs(value) >= unit[1]), _BYTES[-1])


def words(value: object) -> str:
    """Text from a record. plotly.js reads a little HTML in labels and fills in %{...}: neither may come from a record."""
    return html.escape(str(value), quote=False).replace("%{", "%&#123;")


def plain() -> Axis:
    """What every axis looks like."""
    return {
        "automargin": True,
        "gridcolor": "@grid",
        "zerolinecolor": "@line",
        "showline": False,
        "ticks": "",
        "tickfont": {"color": "@muted", "size": 11},
    }


def titled(text: str, **other: Any) -> Axis:
    return {"title": {"text": words(text), "font": {"color": "@muted", "size": 12}, "standoff": 10}, **other}


def linear(title: str, **other: Any) -> Axis:
    return titled(title, rangemode="tozero", **other)


def labelled(labels: Sequence[str], *, longest: int = 34, **other: Any) -> Axis:
    """One row per label, numbered: a category axis would merge rows that share a name."""
    short = [label if len(label) <= longest else "…" + label[1 - longest :] for label in labels]
    rows = list(range(len(labels)))
    ticks = {"tickmode": "array", "tickvals": rows, "ticktext": [words(label) for label in short]}
    return {**ticks, "showgrid": False, "zeroline": False, **other}


def log_sizes(sizes: Sequence[float], title: str) -> Axis:
    """Point counts: 10k, 100k, 1M."""
    low, high = span(sizes)
    return _log(title, low, high, _steps(low, high), about)


def log_bytes(values: Sequence[float], title: str) -> Axis:
    """Bytes at powers of two: 256 MiB, 1 GiB, 4 GiB. Draw plain bytes on it."""
    low, high = span(values)
    ticks = [2.0**power for power in range(51) if low <= 2.0**power <= high]
    return _log(title, low, high, ticks[:: max(1, math.ceil(len(ticks) / 7))], short_bytes)


def log_few_bytes(values: Sequence[float], title: str) -> Axis:
    """Bytes of one point at powers of ten: 20 B, 500 B, 2,000 B."""
    low, high = span(values)
    return _log(
        title,
        low,
        high,
        _steps(low, high),
        lambda tick: f"{tick:,.3g} B" if tick < 1000 else f"{tick:,.0f} B",
    )


def log_seconds(values: Sequence[float], title: str) -> Axis:
    low, high = span(values)
    return _log(
        title,
        low,
        high,
        _steps(low, high),
        lambda tick: show_seconds(tick).replace(".00", "").replace(".0 ", " "),
    )


def span(values: Sequence[float]) -> tuple[float, float]:
    """The range of the positive values with room around it."""
    positive = [v for v in values if v > 0] or [1.0]
    low, high = min(positive), max(positive)
    room = max(1.15, (high / low) ** 0.06)
    return low / room, high * room


def _steps(low: float, high: float) -> list[float]:
    steps = (1,) if high / low > 600 else (1, 2, 5) if high / low > 6 else _FINE
    return [
        step * 10.0**power for power in range(-9, 14) for step in steps if low <= step * 10.0**power <= high
    ]


def _log(title: str, low: float, high: float, ticks: list[float], text: Any) -> Axis:
    edges = [math.log10(low), math.log10(high)]
    return titled(
        title,
        type="log",
        range=edges,
        tickmode="array",
        tickvals=ticks,
        ticktext=[text(tick) for tick in ticks],
    )
