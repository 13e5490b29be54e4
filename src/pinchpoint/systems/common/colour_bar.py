"""The colour bar below the plots of a field, for every system that draws one."""

from __future__ import annotations

from typing import Any


def add_colour_bar(
    figure: Any, axes: Any, colours: str, norm: Any, label: str, *, extend: str, ticks: Any = None
) -> None:
    """Draw one colour bar below some axes of a matplotlib figure. norm: maps values to colours."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.ticker import FuncFormatter

    bar = figure.colorbar(
        ScalarMappable(norm, cmap=colours),
        ax=axes.ravel().tolist(),
        location="bottom",
        shrink=0.6,
        aspect=30,
        pad=0.02,
        label=label,
        extend=extend,
        ticks=ticks,
        # A common factor such as 1e-10 at the end of the bar would cover the label.
        format=FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")),
    )
    bar.outline.set_visible(False)
    bar.ax.grid(False)
