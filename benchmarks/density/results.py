"""The record of the comparison: a file that grows, the merging of its parts, and its table.

about          what must be equal for two parts to belong together: data, settings, device
superposition  errors of superposed atoms
tuned          "painn" -> the validation error of each learning rate, and the best rate
runs           "painn:0" -> model and seed: errors on test grids and held-out molecules, losses, time
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pinchpoint.core import machine
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_text
from pinchpoint.core.records import now, script_command
from pinchpoint.core.units import show_seconds

Part = dict[str, Any]
WHAT = "density against PaiNN"
BARS = {"test": 0.010, "heldout": 0.030}


def new(about: dict[str, Any]) -> Part:
    return {
        "what": WHAT,
        "commands": [script_command()],
        "created": now(),
        "machines": [machine.describe()],
        "about": about,
        "superposition": {},
        "tuned": {},
        "runs": {},
    }


def read(path: Path) -> Part:
    try:
        part = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{path} cannot be read: {error}.", hint="Give a file written by `compare.py run`."
        ) from error
    if not isinstance(part, dict) or part.get("what") != WHAT:
        raise BadInput(
            f"{path} is not a part of this comparison.", hint="Give a file written by `compare.py run`."
        )
    return part


def save(path: Path, part: Part) -> None:
    write_text(path, json.dumps(part, indent=1, allow_nan=False) + "\n")


def merge_parts(first: Part, *others: Part) -> Part:
    """Merge all parts. If two contain the same piece of work, that of the first is kept."""
    result = json.loads(json.dumps(first))
    for other in others:
        differ = sorted(
            key
            for key in result["about"].keys() | other["about"]
            if result["about"].get(key) != other["about"].get(key)
        )
        if differ:
            raise BadInput(
                f"The parts belong to different comparisons: {differ[0]} is {result['about'].get(differ[0])} "
                "in one and "
                f"{other['about'].get(differ[0])} in another.",
                hint="Merge parts made with the same data and options.",
            )
        for group in ("superposition", "tuned", "runs"):
            result[group] = other[group] | result[group]
        for group in ("commands", "machines"):
            result[group] += [one for one in other[group] if one not in result[group]]
    return result


def means(part: Part, name: str) -> dict[str, tuple[float, float, float, int]]:
    """Return the mean, minimum and maximum over the seeds of a model, and the number of seeds, per split."""
    result = {}
    for split in BARS:
        own = [run[split]["mean"] for key, run in part["runs"].items() if key.partition(":")[0] == name]
        own = [value for value in own if value is not None]
        if own:
            result[split] = sum(own) / len(own), min(own), max(own), len(own)
    return result


def table(part: Part) -> str:
    about = part["about"]
    lines = [
        "# ours against PaiNN and superposed atoms",
        "",
        f"{about['steps']:,} steps of {about['molecules']} structures with {about['probes']:,} probes each. "
        "NMAE: mean over "
        "the grids of a split.",
        "",
        "| model | seed | parameters | rate | test geometries | held-out molecules | a step |",
        "|---|---|---|---|---|---|---|",
    ]
    if part["superposition"]:
        cells_text = " | ".join(_percent(part["superposition"][split]["mean"]) for split in BARS)
        lines.append(f"| superposed atoms | - | 0 | - | {cells_text} | - |")
    for key, run in sorted(part["runs"].items()):
        name, _, seed = key.partition(":")
        cells_text = " | ".join(_percent(run[split]["mean"]) for split in BARS)
        lines.append(
            f"| {name} | {seed} | {run['parameters']:,} | {run['lr']:g} | {cells_text} | "
            f"{show_seconds(run['step_s'])} |"
        )
    lines += [
        "",
        "| over the seeds | test: mean (low to high) | held out: mean (low to high) |",
        "|---|---|---|",
    ]
    for name in dict.fromkeys(key.partition(":")[0] for key in sorted(part["runs"])):
        result = means(part, name)
        cells = [
            f"{mean:.3%} ({low:.3%} to {high:.3%}, {count} seeds)" if split in result else "-"
            for split in BARS
            for mean, low, high, count in [result.get(split, (0.0, 0.0, 0.0, 0))]
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    ours = means(part, "ours")
    if ours:
        lines += ["", "| bar | worst seed of ours | at most | |", "|---|---|---|---|"]
        for split, most in BARS.items():
            if split in ours:
                worst = ours[split][2]
                lines.append(
                    f"| NMAE, {split} | {worst:.3%} | {most:.1%} | {'holds' if worst <= most else 'missed'} |"
                )
    return "\n".join(lines) + "\n"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.3%}"
