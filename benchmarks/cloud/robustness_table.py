"""What the runs of `robustness.py` say: means with intervals, differences seed by seed, and the bars.

Scores are mIoU in points (0 to 100) under uniform thinning, unless told otherwise. Intervals are Student's,
95 %. A bar is held or missed where the whole interval lies on one side, else open.
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
# Of two recipes: the first less the second. Dense alone stands under equal steps and is both.
COMPARED = (
    ("log-uniform", "dense"),
    ("dense+log-uniform", "dense"),
    ("three", "dense"),
    ("three+consistency", "three"),
)


def table_of(runs: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each recipe, regime and way to thin: mIoU in points with its interval, over the seeds."""
    made = []
    for recipe, regime in dict.fromkeys((one["recipe"], one["regime"]) for one in runs.values()):
        found = [one for one in runs.values() if (one["recipe"], one["regime"]) == (recipe, regime)]
        for row in found[0]["rows"]:
            way = row["thinning"], row["density"]
            mean, low, high = interval([100 * miou_of(one, *way) for one in found])
            made.append(
                {
                    "recipe": recipe,
                    "regime": regime,
                    "thinning": way[0],
                    "density": way[1],
                    "miou": mean,
                    "low": low,
                    "high": high,
                    "seeds": len(found),
                    "steps": found[0]["steps"],
                    "points_seen": statistics.mean(o["points_seen"] for o in found),
                }
            )
    return made


def bars_of(runs: dict[str, Any]) -> list[dict[str, Any]]:
    """Every bar for every recipe beside dense: the difference seed by seed, with what is to be said of it."""
    made = []
    for recipe, regime in dict.fromkeys(
        (one["recipe"], one["regime"]) for one in runs.values() if one["recipe"] != "dense"
    ):
        for density, only, least in BARS:
            apart = _apart(runs, recipe, "dense", regime, density) if only in (None, regime) else []
            if not apart:
                continue
            mean, low, high = interval(apart)
            told = (
                "open"
                if low is None or high is None
                else "held"
                if low >= least
                else "missed"
                if high < least
                else "open"
            )
            bar = f"at {density:.0%}, equal {regime}, {least:+g} mIoU against dense or better"
            made.append(
                {
                    "recipe": recipe,
                    "regime": regime,
                    "bar": bar,
                    "least": least,
                    "difference": mean,
                    "low": low,
                    "high": high,
                    "seeds": len(apart),
                    "verdict": told,
                }
            )
    return made


def differences_of(runs: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each two recipes that are compared, regime and density: the first less the second, seed
    by seed.
    """
    made = []
    for recipe, other in COMPARED:
        for regime in dict.fromkeys(one["regime"] for one in runs.values()):
            for density in DENSITIES:
                apart = _apart(runs, recipe, other, regime, density)
                if apart:
                    mean, low, high = interval(apart)
                    made.append(
                        {
                            "recipe": recipe,
                            "less": other,
                            "regime": regime,
                            "density": density,
                            "difference": mean,
                            "low": low,
                            "high": high,
                            "seeds": len(apart),
                        }
                    )
    return made


def _apart(runs: dict[str, Any], recipe: str, other: str, regime: str, density: float) -> list[float]:
    """mIoU of one recipe less another's, for each seed that both have."""
    first, second = (_by_seed(runs, name, "steps" if name == "dense" else regime) for name in (recipe, other))
    return [
        100 * (miou_of(first[seed], "uniform", density) - miou_of(second[seed], "uniform", density))
        for seed in sorted(set(first) & set(second))
    ]


def _by_seed(runs: dict[str, Any], recipe: str, regime: str) -> dict[int, dict[str, Any]]:
    return {one["seed"]: one for one in runs.values() if (one["recipe"], one["regime"]) == (recipe, regime)}


def interval(values: list[float]) -> tuple[float, float | None, float | None]:
    """Mean and Student's 95 % interval of it; none of a single value."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, None, None
    freedom = len(values) - 1
    # Of more seeds than the table goes the last quantile: an interval a little too wide, never too narrow.
    half = STUDENT[min(freedom, len(STUDENT)) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def markdown(table: list[dict[str, Any]]) -> str:
    """Uniform thinning: a line for each recipe and regime."""
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


def miou_of(one: dict[str, Any], thinning: str, density: float | None) -> float:
    return next(
        row["miou"] for row in one["rows"] if (row["thinning"], row["density"]) == (thinning, density)
    )


def markdown_of_differences(rows: list[dict[str, Any]]) -> str:
    """A line for each two recipes and regime: what the first has more, with its interval."""
    lines = [
        "| | equal | seeds | " + " | ".join(f"{density:.0%}" for density in DENSITIES) + " |",
        "|---" * 8 + "|",
    ]
    for key in dict.fromkeys((row["recipe"], row["less"], row["regime"], row["seeds"]) for row in rows):
        found = [row for row in rows if (row["recipe"], row["less"], row["regime"], row["seeds"]) == key]
        cells = [
            f"{row['difference']:+.1f}"
            + ("" if row["low"] is None else f" [{row['low']:+.1f}, {row['high']:+.1f}]")
            for row in found
        ]
        lines.append(f"| {key[0]} less {key[1]} | {key[2]} | {key[3]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
