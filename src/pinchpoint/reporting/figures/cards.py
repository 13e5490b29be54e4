"""The card table as a figure: the largest size that fits each card, with its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinchpoint.core.records import Study
from pinchpoint.core.units import show_size
from pinchpoint.reporting.axes import size_title
from pinchpoint.reporting.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(study: Study) -> Figure | None:
    rows = [row for row in study.cards if row["size"]]
    if not rows:
        return None
    cards = list(dict.fromkeys((row["memory_bytes"], row["card"]) for row in study.cards))
    lines = list(dict.fromkeys((row["variant"], row["mode"]) for row in rows))
    figure, grid = style.canvas(height=1.5 + 0.13 * len(cards) * (len(lines) + 1.4))
    axes = grid[0][0]
    for order, (variant, mode) in enumerate(lines):
        look = style.look(study, variant, mode)
        in_legend = False
        for row in (r for r in rows if (r["variant"], r["mode"]) == (variant, mode)):
            place = cards.index((row["memory_bytes"], row["card"])) + 0.8 * ((order + 0.5) / len(lines) - 0.5)
            low, high = row["low"] or row["size"], row["high"] or row["size"]
            axes.plot(
                [low, high],
                [place, place],
                color=look["color"],
                linewidth=2.2,
                alpha=0.45,
                solid_capstyle="round",
            )
            axes.plot(
                row["size"],
                place,
                linestyle="none",
                label=None if in_legend else style.name_of(study, variant, mode),
                **{k: v for k, v in look.items() if k != "linestyle"},
            )
            in_legend = True
            axes.annotate(
                show_size(_three(row["size"])),
                (high, place),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
                color=style.INK,
            )
    sizes = [row["size"] for row in rows]
    axes.set_xlim(style.spread(sizes)[0], style.spread(sizes, 0.16)[1])
    style.size_axis(axes, study.axis)
    axes.set_yticks(
        range(len(cards)),
        [f"{style.drawable(name)}  {style.short_bytes(memory)}" for memory, name in cards],
    )
    axes.set_ylim(len(cards) - 0.45, -0.55)
    axes.grid(visible=False, axis="y")
    largest = max(p.size for p in study.points)
    axes.axvspan(largest, axes.get_xlim()[1], color=style.GRID, alpha=0.5, zorder=0, linewidth=0)
    axes.set_xlabel(
        f"largest {style.drawable(size_title(study.axis))} (10 % of the card left free;"
        " shaded: beyond the studied sizes)"
    )
    style.title(axes, study, "Largest size per card")
    if len(lines) > 1:
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def _three(size: int) -> int:
    """Round to three digits, because the interval is wider than a fourth digit could show."""
    return round(size, -max(0, len(str(size)) - 3))
