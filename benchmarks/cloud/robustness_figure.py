"""Figure of a merged record of `robustness.py`: mIoU by density, with a line and an interval per recipe.

python benchmarks/cloud/robustness_figure.py benchmarks/results/cloud_robustness_h200.json -o
docs/images/cloud-robustness.png
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from typing import Any

from robustness_table import DENSITIES

from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.core.files import check_output, write_bytes
from pinchpoint.reporting import palette
from pinchpoint.reporting.figures import style

LOOKS = {
    "log-uniform": ("-", "o"),
    "dense": ("-", "s"),
    "dense+log-uniform": ((0, (5, 2)), "^"),
    "three": ((0, (1, 1.5)), "D"),
    "three+consistency": ((0, (3, 1.5, 1, 1.5)), "v"),
}


def plot(path: Path, table: list[dict[str, Any]]) -> Path:
    """Write a PNG with equal steps and equal points side by side. table: see `robustness_table.table_of`."""
    with style.figure_style():
        figure, axes = style.canvas(columns=2, width=9.6, height=4.6, sharey=True)
        for panel, regime in zip(axes[0], ("steps", "points"), strict=True):
            for recipe in LOOKS:
                _line(
                    panel,
                    recipe,
                    [
                        row
                        for row in table
                        if row["recipe"] == recipe and row["regime"] in (regime, _regime_of(recipe))
                    ],
                )
            panel.set_title(f"equal {regime}")
            _density_axis(panel)
        axes[0][0].set_ylabel("mIoU, %")
        axes[0][0].set_ylim(bottom=0)
        handles, names = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), handlelength=3)
        data = io.BytesIO()
        figure.savefig(data, format="png")
    return write_bytes(path, data.getvalue())


def _regime_of(recipe: str) -> str | None:
    """Return steps for dense, which is the same in both regimes and listed under steps; otherwise None."""
    return "steps" if recipe == "dense" else None


def _line(axes: Any, recipe: str, rows: list[dict[str, Any]]) -> None:
    curve = sorted((row for row in rows if row["thinning"] == "uniform"), key=lambda row: row["density"])
    if not curve:
        return
    shares, (stroke, marker) = [100 * row["density"] for row in curve], LOOKS[recipe]
    colour = palette.LIGHT[palette.of_series(recipe, list(LOOKS))]
    axes.plot(
        shares, [row["miou"] for row in curve], linestyle=stroke, marker=marker, color=colour, label=recipe
    )
    if all(row["low"] is not None for row in curve):
        low, high = [row["low"] for row in curve], [row["high"] for row in curve]
        axes.fill_between(shares, low, high, color=colour, alpha=0.18, linewidth=0)


def _density_axis(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    axes.set_xscale("log")
    axes.set_xticks([100 * density for density in DENSITIES])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("points kept, %")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("record", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(arguments)
    try:
        check_output(args.output)
        try:
            table = json.loads(args.record.read_text(encoding="utf-8"))["table"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"There is no table in {args.record}: {error}",
                hint="Give a file written by `robustness.py merge`.",
            ) from error
        plot(args.output, table)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
