"""Axes of the report's plots, with readable ticks for sizes, bytes and times.

The ticks of log axes are spelled out (10k, 256 MiB), because plotly.js only knows powers of ten.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import Any

from pinchpoint.core.units import show_seconds

_COUNTS = (("G", 10**9), ("M", 10**6), ("k", 10**3))
_BYTES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_FINE = (1, 1.5, 2, 3, 4, 5, 6, 8)

Axis = dict[str, Any]


def exact_size(size: int | None) -> str:
    """Format a size exactly, and shortened if it is round: 512k, 524,288."""
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


def rounded_size(size: float | None) -> str:
    """Format a size with three digits, for ticks and for sizes from a law: 29.2k, 1.44G."""
    if size is None:
        return "-"
    rounded = float(f"{size:.3g}")
    unit, scale = next((pair for pair in _COUNTS if rounded >= pair[1]), ("", 1))
    return f"{rounded / scale:.3g}{unit}"


def short_bytes(value: float) -> str:
    """Format bytes as `1.5 GiB`, for ticks, where `show_bytes` is too wide."""
    name, scale = byte_unit(value)
    return f"{value / scale:.3g} {name}"


def byte_unit(value: float) -> tuple[str, int]:
    return next((unit for unit in _BYTES if abs(value) >= unit[1]), _BYTES[-1])


def escape_label(value: object) -> str:
    """Escape text from a record, because plotly.js interprets HTML and %{...} in labels."""
    return html.escape(str(value), quote=False).replace("%{", "%&#123;")


def base_axis() -> Axis:
    """Return the properties that all axes share."""
    return {
        "automargin": True,
        "gridcolor": "@grid",
        "zerolinecolor": "@line",
        "showline": False,
        "ticks": "",
        "tickfont": {"color": "@muted", "size": 11},
    }


def titled_axis(text: str, **other: Any) -> Axis:
    return {
        "title": {"text": escape_label(text), "font": {"color": "@muted", "size": 12}, "standoff": 10},
        **other,
    }


def linear_axis(title: str, **other: Any) -> Axis:
    return titled_axis(title, rangemode="tozero", **other)


def labelled_axis(labels: Sequence[str], *, longest: int = 34, **other: Any) -> Axis:
    """Return an axis with one numbered row per label; a category axis would merge rows that share a name."""
    labels_shown = [label if len(label) <= longest else "…" + label[1 - longest :] for label in labels]
    rows = list(range(len(labels)))
    ticks = {
        "tickmode": "array",
        "tickvals": rows,
        "ticktext": [escape_label(label) for label in labels_shown],
    }
    return {**ticks, "showgrid": False, "zeroline": False, **other}


def size_title(axis: str) -> str:
    """`number of probes`; the name itself for an axis that is not a plural, such as `batch size`."""
    return f"number of {axis}" if axis.endswith("s") else axis


def log_size_axis(sizes: Sequence[float], title: str) -> Axis:
    """Return a log axis of sizes: 10k, 100k, 1M."""
    return _decimal_log_axis(sizes, title, rounded_size)


def log_byte_axis(values: Sequence[float], title: str) -> Axis:
    """Return a log axis of bytes at powers of two: 256 MiB, 1 GiB, 4 GiB. Its values are plain bytes."""
    low, high = span(values)
    ticks = [2.0**power for power in range(51) if low <= 2.0**power <= high]
    return _log_axis(title, low, high, ticks[:: max(1, math.ceil(len(ticks) / 7))], short_bytes)


def log_point_byte_axis(values: Sequence[float], title: str) -> Axis:
    """Return a log axis of bytes per point at powers of ten: 20 B, 500 B, 2,000 B."""
    return _decimal_log_axis(
        values, title, lambda tick: f"{tick:,.3g} B" if tick < 1000 else f"{tick:,.0f} B"
    )


def log_time_axis(values: Sequence[float], title: str) -> Axis:
    return _decimal_log_axis(
        values, title, lambda tick: show_seconds(tick).replace(".00", "").replace(".0 ", " ")
    )


def span(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of the positive values, with a margin."""
    positive = [v for v in values if v > 0] or [1.0]
    low, high = min(positive), max(positive)
    room = max(1.15, (high / low) ** 0.06)
    return low / room, high * room


def _decimal_log_axis(values: Sequence[float], title: str, text: Callable[[float], str]) -> Axis:
    """Return a log axis with ticks at powers of ten, and between them if the range is short."""
    low, high = span(values)
    steps = (1,) if high / low > 600 else (1, 2, 5) if high / low > 6 else _FINE
    ticks = [
        step * 10.0**power for power in range(-9, 14) for step in steps if low <= step * 10.0**power <= high
    ]
    return _log_axis(title, low, high, ticks, text)


def _log_axis(title: str, low: float, high: float, ticks: list[float], text: Callable[[float], str]) -> Axis:
    edges = [math.log10(low), math.log10(high)]
    return titled_axis(
        title,
        type="log",
        range=edges,
        tickmode="array",
        tickvals=ticks,
        ticktext=[text(tick) for tick in ticks],
    )
