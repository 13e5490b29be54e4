"""One look for all figures: fonts, colours, axes of sizes and bytes, names that can be drawn.

Nothing here depends on the reader's machine: the font ships with matplotlib, numbers are formatted
without a locale, text becomes outlines in SVG, and no matplotlibrc is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pinchpoint.core.records import Point, Study
from pinchpoint.core.units import show_size
from pinchpoint.reporting import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, BAD = (palette.LIGHT[role] for role in ("ink", "muted", "grid", "bad"))
WIDTH, HEIGHT = 7.6, 4.8
ENOUGH = 5  # labelled powers of two on an axis; more would crowd it
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
def applied() -> Iterator[None]:
    """matplotlib with this style and nothing else, inside the block only."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcParams.update({k: v for k, v in matplotlib.rcParamsDefault.items() if k != "backend"})
        matplotlib.rcParams.update(RC)
        yield


def canvas(
    *, rows: int = 1, columns: int = 1, width: float = WIDTH, height: float = HEIGHT, **options: Any
) -> tuple[Figure, Any]:
    """A figure that belongs to no window, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def lines_of(study: Study) -> dict[tuple[str, str], list[Point]]:
    """The points of each (variant, mode), smallest size first."""
    found: dict[tuple[str, str], list[Point]] = {}
    for point in study.points:
        found.setdefault((point.variant, point.mode), []).append(point)
    return {key: sorted(points, key=lambda p: p.size) for key, points in found.items()}


def variants_of(study: Study) -> list[str]:
    return list(dict.fromkeys(p.variant for p in study.points))


def look(study: Study, variant: str, mode: str) -> dict[str, Any]:
    """Colour by variant, stroke and marker by mode: the two are told apart without colour as well."""
    variants = variants_of(study)
    colour = palette.LIGHT[palette.of_series(variant, variants)]
    # Later lines are thinner, so that one drawn over another leaves both to be seen.
    order = variants.index(variant)
    shared = {
        "color": colour,
        "markersize": max(4.0, 7.5 - 1.3 * order),
        "linewidth": max(1.2, 2.2 - 0.4 * order),
    }
    if mode == "train":
        return {**shared, "linestyle": "-", "marker": "o", "markerfacecolor": colour}
    return {**shared, "linestyle": (0, (4, 2)), "marker": "s", "markerfacecolor": "white"}


def name_of(study: Study, variant: str, mode: str) -> str:
    """As short as the study allows: what all lines share is not said."""
    lines = lines_of(study)
    parts = []
    if len({v for v, _ in lines}) > 1:
        parts.append(drawable(variant))
    if len({m for _, m in lines}) > 1 or not parts:
        parts.append(mode)
    return ", ".join(parts)


def title(axes: Axes, study: Study, text: str) -> None:
    axes.set_title(f"{text}: {drawable(study.target)}")


def size_axis(axes: Axes, study: Study) -> None:
    """A log axis of sizes, labelled 1k, 10k, 1M, and 2 and 5 between them where few decades are shown."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    steps = (1.0,) if math.log10(high / low) > 2.2 else (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: show_size(round(value))))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"{drawable(study.axis)} (size)" if study.axis != "size" else "size")


def byte_axis(axes: Axes, label: str) -> None:
    """A log axis of bytes: ticks at powers of two over decades, at round numbers of one unit over less."""
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
        found = [
            tick * unit
            for tick in MaxNLocator(nbins=ENOUGH, steps=[1, 2, 2.5, 5, 10]).tick_values(
                low / unit, high / unit
            )
        ]
    else:
        step = max(1, math.ceil((last - first) / (ENOUGH + 1)))
        found = [2.0**power for power in range(first - first % step, last + 1, step)]
    return [tick for tick in found if low <= tick <= high]


def byte_unit(value: float) -> tuple[int, str]:
    """The unit a value is best told in."""
    return next(
        ((2**power, name) for power, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")) if value >= 2**power),
        (1, "B"),
    )


def short_bytes(value: float) -> str:
    """Three digits and a unit, `64 MiB`: for ticks and labels."""
    unit, name = byte_unit(value)
    number = value / unit
    return f"{number:,.0f} {name}" if number >= 1000 else f"{number:.3g} {name}"


def legend(axes: Axes, *, many: int = 4, **options: Any) -> None:
    """Beside the lines where they are few, below the axes where they are many."""
    handles, _ = axes.get_legend_handles_labels()
    if len(handles) > many:
        axes.legend(**{**options, "loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 4})
    elif handles:
        axes.legend(**options)


def drawable(text: str) -> str:
    """Text with nothing in it the font lacks or matplotlib would take for mathematics."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties(family="DejaVu Sans")))
    shown = "".join(c if font.get_char_index(ord(c)) else f"\\u{ord(c):04x}" for c in text)
    return shown.replace("$", r"\$")


def elide(text: str, most: int) -> str:
    """The end of a long dotted name, which tells names apart."""
    return text if len(text) <= most else "…" + text[-(most - 1) :]


def spread(values: Sequence[float], margin: float = 0.08) -> tuple[float, float]:
    """Limits of a log axis that holds the values with some room."""
    low, high = min(values), max(values)
    room = (math.log(high / low) or 1.0) * margin
    return low * math.exp(-room), high * math.exp(room)
