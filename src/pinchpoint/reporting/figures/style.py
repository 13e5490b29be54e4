"""The style of all figures: fonts, colours, axes of sizes and bytes, and text that can be drawn.

Nothing here depends on the user's machine: the font ships with matplotlib, numbers are formatted
without a locale, text becomes outlines in SVG, and no matplotlibrc is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pinchpoint.core.records import Law, Point, Study
from pinchpoint.core.units import show_size
from pinchpoint.reporting import palette
from pinchpoint.reporting.axes import size_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, BAD = (palette.LIGHT[role] for role in ("ink", "muted", "grid", "bad"))
WIDTH, HEIGHT = 7.6, 4.8
MAX_TICKS = 5  # labelled powers of two on an axis; more would crowd it
RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.formatter.use_locale": False,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelsize": 9.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "figure.facecolor": "white",
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "svg.fonttype": "path",
    "svg.hashsalt": "pinchpoint",
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply this style, and no other settings of matplotlib, inside the block only."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcParams.update({k: v for k, v in matplotlib.rcParamsDefault.items() if k != "backend"})
        matplotlib.rcParams.update(RC)
        yield


def canvas(
    *, rows: int = 1, columns: int = 1, width: float = WIDTH, height: float = HEIGHT, **options: Any
) -> tuple[Figure, Any]:
    """Return a figure that belongs to no window, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def lines_of(study: Study) -> dict[tuple[str, str], list[Point]]:
    """Return the points of each (variant, mode), smallest size first."""
    lines: dict[tuple[str, str], list[Point]] = {}
    for point in study.points:
        lines.setdefault((point.variant, point.mode), []).append(point)
    return {key: sorted(points, key=lambda p: p.size) for key, points in lines.items()}


def peak_lines_of(study: Study) -> dict[tuple[str, str], list[Point]]:
    """Return the points of each (variant, mode) whose peak is known, smallest size first."""
    return {key: [p for p in points if p.peak_allocated_bytes] for key, points in lines_of(study).items()}


def laws_of(study: Study) -> dict[tuple[str, str], Law]:
    return {(law.variant, law.mode): law for law in study.laws}


def variants_of(study: Study) -> list[str]:
    return list(dict.fromkeys(p.variant for p in study.points))


def look(study: Study, variant: str, mode: str) -> dict[str, Any]:
    """Return colour by variant, and stroke and marker by mode, so that modes differ without colour too."""
    variants = variants_of(study)
    colour = palette.LIGHT[palette.of_series(variant, variants)]
    # Later lines are thinner, so that two lines on top of each other stay visible.
    order = variants.index(variant)
    common = {
        "color": colour,
        "markersize": max(4.0, 7.5 - 1.3 * order),
        "linewidth": max(1.2, 2.2 - 0.4 * order),
    }
    if mode == "train":
        return {**common, "linestyle": "-", "marker": "o", "markerfacecolor": colour}
    return {**common, "linestyle": (0, (4, 2)), "marker": "s", "markerfacecolor": "white"}


def name_of(study: Study, variant: str, mode: str) -> str:
    """Return the name of a line, without the parts that all lines of the study share."""
    lines = lines_of(study)
    parts = []
    if len({v for v, _ in lines}) > 1:
        parts.append(drawable(variant))
    if len({m for _, m in lines}) > 1 or not parts:
        parts.append(mode)
    return ", ".join(parts)


def title(axes: Axes, study: Study, text: str) -> None:
    axes.set_title(f"{text}: {drawable(study.target)}")


def size_axis(axes: Axes, name: str) -> None:
    """Make a log axis of sizes, labelled 1k, 10k, 1M, with 2 and 5 between them over few decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    steps = (1.0,) if math.log10(high / low) > 2.2 else (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: show_size(round(value))))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(drawable(size_title(name)))


def byte_axis(axes: Axes, label: str) -> None:
    """Make a log axis of bytes, with ticks at powers of two over decades and at round numbers otherwise."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(FixedLocator(_byte_ticks(low, high)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_bytes(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(low, high)
    axes.set_ylabel(label)


def _byte_ticks(low: float, high: float) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
    if high / low < 10:
        unit = byte_unit(high)[0]
        ticks = [
            tick * unit
            for tick in MaxNLocator(nbins=MAX_TICKS, steps=[1, 2, 2.5, 5, 10]).tick_values(
                low / unit, high / unit
            )
        ]
    else:
        step = max(1, math.ceil((last - first) / (MAX_TICKS + 1)))
        ticks = [2.0**power for power in range(first - first % step, last + 1, step)]
    return [tick for tick in ticks if low <= tick <= high]


def byte_unit(value: float) -> tuple[int, str]:
    """Return the largest unit that does not exceed the value."""
    return next(
        ((2**power, name) for power, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")) if value >= 2**power),
        (1, "B"),
    )


def short_bytes(value: float) -> str:
    """Format bytes with three digits and a unit, as in `64 MiB`, for ticks and labels."""
    unit, name = byte_unit(value)
    number = value / unit
    return f"{number:,.0f} {name}" if number >= 1000 else f"{number:.3g} {name}"


def legend(axes: Axes, *, many: int = 4, **options: Any) -> None:
    """Draw the legend beside the lines if they are few, and below the axes if they are many."""
    handles, _ = axes.get_legend_handles_labels()
    if len(handles) > many:
        axes.legend(**{**options, "loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 4})
    elif handles:
        axes.legend(**options)


def drawable(text: str) -> str:
    """Escape characters that the font lacks or that matplotlib would interpret as mathematics."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties(family="DejaVu Sans")))
    escaped = "".join(c if font.get_char_index(ord(c)) else f"\\u{ord(c):04x}" for c in text)
    return escaped.replace("$", r"\$")


def elide(text: str, most: int) -> str:
    """Shorten a long dotted name to its end, which distinguishes names best."""
    return text if len(text) <= most else "…" + text[-(most - 1) :]


def spread(values: Sequence[float], margin: float = 0.08) -> tuple[float, float]:
    """Return limits of a log axis that contain the values with a margin."""
    low, high = min(values), max(values)
    room = (math.log(high / low) or 1.0) * margin
    return low * math.exp(-room), high * math.exp(room)
