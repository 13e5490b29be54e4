"""Evaluation of the runs of `robustness.py`: means with intervals, differences seed by seed, and the bars.

Scores are mIoU in points (0 to 100), by default under uniform thinning. Intervals are Student's 95 %
intervals. The verdict on a bar is held or missed if the whole interval lies on one side of it, and open
otherwise.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

DENSITIES = (1.0, 0.5, 0.25, 0.1, 0.05)
# Student's 97.5 % quantiles by degrees of freedom.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
# density, regime (None: both), least difference from dense in mIoU points
BARS: tuple[tuple[float, str | None, float], ...] = (
    (0.1, None, 15.0),
    (1.0, "points", -3.0),
    (1.0, "steps", -4.5),
)
# Pairs of recipes whose difference, first minus second, is listed. Dense is listed under equal steps, and is
# the same at equal points.
PAIRS = (
    ("log-uniform", "dense"),
    ("dense+log-uniform", "dense"),
    ("three", "dense"),
    ("three+consistency", "three"),
)


def table_of(runs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row per recipe, regime and thinning: the mean mIoU over the seeds, with its interval."""
    rows = []
    for recipe, regime in dict.fromkeys((run["recipe"], run["regime"]) for run in runs.values()):
        matching = [run for run in runs.values() if (run["recipe"], run["regime"]) == (recipe, regime)]
        for row in matching[0]["rows"]:
            thinning = row["thinning"], row["density"]
            mean, low, high = interval([100 * miou_of(run, *thinning) for run in matching])
            rows.append(
                {
                    "recipe": recipe,
                    "regime": regime,
                    "thinning": thinning[0],
                    "density": thinning[1],
                    "miou": mean,
                    "low": low,
                    "high": high,
                    "seeds": len(matching),
                    "steps": matching[0]["steps"],
                    "points_seen": statistics.mean(o["points_seen"] for o in matching),
                }
            )
    return rows


def bars_of(runs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every bar for every recipe except dense: the difference seed by seed, and the verdict."""
    rows = []
    for recipe, regime in dict.fromkeys(
        (run["recipe"], run["regime"]) for run in runs.values() if run["recipe"] != "dense"
    ):
        for density, only, minimum in BARS:
            differences = (
                _differences(runs, recipe, "dense", regime, density) if only in (None, regime) else []
            )
            if not differences:
                continue
            mean, low, high = interval(differences)
            verdict = (
                "open"
                if low is None or high is None
                else "held"
                if low >= minimum
                else "missed"
                if high < minimum
                else "open"
            )
            bar = f"at {density:.0%}, equal {regime}, {minimum:+g} mIoU against dense or better"
            rows.append(
                {
                    "recipe": recipe,
                    "regime": regime,
                    "bar": bar,
                    "least": minimum,
                    "difference": mean,
                    "low": low,
                    "high": high,
                    "seeds": len(differences),
                    "verdict": verdict,
                }
            )
    return rows


def differences_of(runs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row per pair of recipes, regime and density: the first minus the second, seed by seed."""
    rows = []
    for recipe, other in PAIRS:
        for regime in dict.fromkeys(run["regime"] for run in runs.values()):
            for density in DENSITIES:
                differences = _differences(runs, recipe, other, regime, density)
                if differences:
                    mean, low, high = interval(differences)
                    rows.append(
                        {
                            "recipe": recipe,
                            "less": other,
                            "regime": regime,
                            "density": density,
                            "difference": mean,
                            "low": low,
                            "high": high,
                            "seeds": len(differences),
                        }
                    )
    return rows


def _differences(runs: dict[str, Any], recipe: str, other: str, regime: str, density: float) -> list[float]:
    """Return the mIoU of one recipe minus that of another, for each seed that both have."""
    first, second = (_by_seed(runs, name, "steps" if name == "dense" else regime) for name in (recipe, other))
    return [
        100 * (miou_of(first[seed], "uniform", density) - miou_of(second[seed], "uniform", density))
        for seed in sorted(set(first) & set(second))
    ]


def _by_seed(runs: dict[str, Any], recipe: str, regime: str) -> dict[int, dict[str, Any]]:
    return {run["seed"]: run for run in runs.values() if (run["recipe"], run["regime"]) == (recipe, regime)}


def interval(values: list[float]) -> tuple[float, float | None, float | None]:
    """Return the mean and its Student's 95 % interval, which is None for a single value."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, None, None
    freedom = len(values) - 1
    # With more seeds than the table covers, use its last quantile: the interval is slightly too wide, never
    # too narrow.
    half = STUDENT[min(freedom, len(STUDENT)) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def markdown(table: list[dict[str, Any]]) -> str:
    """Return the table of uniform thinning, with a line per recipe and regime."""
    lines = [
        "| recipe | equal | " + " | ".join(f"{density:.0%}" for density in DENSITIES) + " |",
        "|---" * 7 + "|",
    ]
    for recipe, regime in dict.fromkeys((row["recipe"], row["regime"]) for row in table):
        cells = []
        for density in DENSITIES:
            row = next(
                row
                for row in table
                if (row["recipe"], row["regime"], row["thinning"], row["density"])
                == (recipe, regime, "uniform", density)
            )
            spread = "" if row["low"] is None else f" ± {row['miou'] - row['low']:.1f}"
            cells.append(f"{row['miou']:.1f}{spread}")
        lines.append(f"| {recipe} | {regime if recipe != 'dense' else 'both'} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def miou_of(run: dict[str, Any], thinning: str, density: float | None) -> float:
    return next(
        row["miou"] for row in run["rows"] if (row["thinning"], row["density"]) == (thinning, density)
    )


def markdown_of_differences(rows: list[dict[str, Any]]) -> str:
    """Return the table of differences with intervals, with a line per pair of recipes and regime."""
    lines = [
        "| | equal | seeds | " + " | ".join(f"{density:.0%}" for density in DENSITIES) + " |",
        "|---" * 8 + "|",
    ]
    for key in dict.fromkeys((row["recipe"], row["less"], row["regime"], row["seeds"]) for row in rows):
        matching = [row for row in rows if (row["recipe"], row["less"], row["regime"], row["seeds"]) == key]
        cells = [
            f"{row['difference']:+.1f}"
            + ("" if row["low"] is None else f" [{row['low']:+.1f}, {row['high']:+.1f}]")
            for row in matching
        ]
        lines.append(f"| {key[0]} less {key[1]} | {key[2]} | {key[3]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
