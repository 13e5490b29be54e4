"""Verdicts on energies, and the table of energies in docs/systems/vmc.md.

Runs come from a record that `accuracy.py` writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_text
from pinchpoint.systems.vmc.analysis.statistics import LARGEST_RHAT

BEGIN, END = "<!-- energies: made by benchmarks/vmc/accuracy.py table -->", "<!-- energies: end -->"
PICTURE = "images/vmc-h2o.png"  # beside the page
HEADER = (
    "| system | seeds | reference, Ha | farthest seed, Ha | difference of each seed, mHa "
    "| R-hat at most | bar, mHa | verdict |"
)
Run = dict[str, Any]


@dataclass(frozen=True)
class Bar:
    """The conditions under which the runs of a system are right."""

    within_ha: float = 1.6e-3  # of the reference, including the error bar
    widest_ha: float = 0.3e-3  # largest error bar
    seeds: int = 3
    train_s: float | None = None  # at most


# Ten electrons: what a few minutes of training achieve, not chemical accuracy.
BARS = {name: Bar() for name in ("H2", "He", "LiH", "Be")} | {
    "H2O": Bar(10e-3, 1.6e-3, seeds=1, train_s=480.0)
}
CPU_BARS = {"H2": Bar(0.3e-3, train_s=180.0)}  # two cores


def bar_of(run: Run) -> Bar:
    """Return the bar for the system and device of a run."""
    return (CPU_BARS if run.get("device") == "cpu" else BARS).get(run["system"], Bar())


def judge(runs: list[Run], bar: Bar | None = None) -> str:
    """Return `right`, or all conditions that fail. runs: of one system and network, one per seed."""
    bar = bar or bar_of(runs[0])
    if any(one["difference_ha"] is None for one in runs):
        return "no reference"
    # Stated as what must hold, so that NaN fails every condition.
    conditions = {
        f"{len(runs)} of {bar.seeds} seeds": len(runs) >= bar.seeds,
        "seeds of several recipes": all(one["changes"] == runs[0]["changes"] for one in runs),
        "walkers have not mixed": all(one["rhat"] < LARGEST_RHAT for one in runs),
        f"an error bar above {1e3 * bar.widest_ha:g} mHa": all(
            one["error_ha"] <= bar.widest_ha for one in runs
        ),
        "too high": all(one["difference_ha"] + one["error_ha"] <= bar.within_ha for one in runs),
        "too low": all(one["error_ha"] - one["difference_ha"] <= bar.within_ha for one in runs),
        "below the reference": all(one["difference_ha"] >= -3 * one["error_ha"] for one in runs),
    }
    if bar.train_s is not None:
        conditions[f"trained longer than {bar.train_s:g} s"] = all(
            one["train_s"] <= bar.train_s for one in runs
        )
    return "; ".join(what for what, holds in conditions.items() if not holds) or "right"


def by_system(runs: dict[str, Run]) -> dict[str, list[Run]]:
    """Return the runs of each `system:network`, in order of appearance and by seed."""
    groups: dict[str, list[Run]] = {}
    for one in runs.values():
        groups.setdefault(f"{one['system']}:{one['net']}", []).append(one)
    return {name: sorted(group, key=lambda one: one["seed"]) for name, group in groups.items()}


def verdicts(runs: dict[str, Run]) -> dict[str, str]:
    return {name: judge(group) for name, group in by_system(runs).items()}


def table(runs: dict[str, Run]) -> list[str]:
    """Return Markdown lines: a row per system and network with a reference, and systems that were not run."""
    place = {name: at for at, name in enumerate(BARS)}
    judged = verdicts(runs)
    groups = sorted(by_system(runs).items(), key=lambda group: place.get(group[1][0]["system"], len(place)))
    known = [(name, group) for name, group in groups if group[0]["reference_ha"] is not None]
    rows = [_row(group, bar_of(group[0]), judged[name]) for name, group in known]
    left = [name for name in BARS if not any(one["system"] == name for one in runs.values())]
    return [
        HEADER,
        "|---" * (HEADER.count("|") - 1) + "|",
        *rows,
        *(["", f"Not run yet: {', '.join(left)}."] if left else []),
    ]


def _row(runs: list[Run], bar: Bar, verdict: str) -> str:
    far = max(runs, key=lambda one: abs(one["difference_ha"]))
    differences = ", ".join(
        f"{1e3 * one['difference_ha']:+.3f} ± {1e3 * one['error_ha']:.3f}" for one in runs
    )
    limit, seconds = f"{1e3 * bar.within_ha:g}", max(one["train_s"] for one in runs)
    if bar.train_s is not None:
        limit += f" in {bar.train_s:g} s; trained {seconds:.0f} s"
        limit += ", its pretraining not counted" if any(one.get("before_s") for one in runs) else ""
    cells = (
        far["system"],
        f"{len(runs)}",
        f"{far['reference_ha']:.10g}",
        f"{far['energy_ha']:.6f} ± {far['error_ha']:.6f}",
        differences,
        f"{max(one['rhat'] for one in runs):.4f}",
        limit,
        verdict,
    )
    return "| " + " | ".join(cells) + " |"


def into_page(page: Path, lines: list[str]) -> str:
    """Write lines between the two markers of a page, and return the text.

    The plot of H2O is included if it is stored next to the page.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{page} cannot be read: {error}.", hint="Name the page with --page.") from error
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise BadInput(
            f"{page} does not have exactly one place for the table.",
            hint=f"Put these two lines where it belongs: {BEGIN} {END}",
        )
    if (page.parent / PICTURE).is_file():
        lines = [
            *lines,
            "",
            "![Energy of H2O while it is trained, its difference from the reference, and its variance]"
            f"({PICTURE})",
        ]
    text_between = "\n".join(lines)
    head, _, rest = text.partition(BEGIN)
    write_text(page, f"{head}{BEGIN}\n{text_between}\n{END}{rest.partition(END)[2]}")
    return text_between
