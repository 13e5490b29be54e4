"""The record of the comparison as a file that grows, merged where it was split, and its table.

about          what must be equal for two parts to belong together: data, settings, device
superposition  errors of superposed atoms
tuned          "painn" -> what each learning rate gave on geometries held back, and the best
runs           "painn:0" -> model and seed: errors on test grids and held-out molecules, losses, time
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from pinchpoint.core import machine
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_text
from pinchpoint.core.records import now
from pinchpoint.core.units import show_seconds

Part = dict[str, Any]
WHAT = "density against PaiNN"
BARS = {"test": 0.010, "heldout": 0.030}


def new(about: dict[str, Any]) -> Part:
    return {
        "what": WHAT,
        "commands": [shlex.join(["python", *sys.argv])],
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
            f"cannot read {path}: {error}", hint="name a file that `compare.py run` wrote"
        ) from error
    if not isinstance(part, dict) or part.get("what") != WHAT:
        raise BadInput(
            f"{path} is no part of this comparison", hint="name a file that `compare.py run` wrote"
        )
    return part


def save(path: Path, part: Part) -> None:
    write_text(path, json.dumps(part, indent=1, allow_nan=False) + "\n")


def merged(first: Part, *others: Part) -> Part:
    """All of them as one. Where two hold the same piece of work, the first one's stays."""
    made = json.loads(json.dumps(first))
    for other in others:
        differ = sorted(
            key
            for key in made["about"].keys() | other["about"]
            if made["about"].get(key) != other["about"].get(key)
        )
        if differ:
            raise BadInput(
                f"parts of different comparisons: {differ[0]} is {made['about'].get(differ[0])} in one and "
                f"{other['about'].get(differ[0])} in another",
                hint="merge parts made with the same data and options",
            )
        for group in ("superposition", "tuned", "runs"):
            made[group] = other[group] | made[group]
        for group in ("commands", "machines"):
            made[group] += [one for one in other[group] if one not in made[group]]
    return made


def means(part: Part, name: str) -> dict[str, tuple[float, float, float, int]]:
    """Of each split: mean over the seeds of a model, the lowest, the highest, and how many seeds."""
    found = {}
    for split in BARS:
        own = [run[split]["mean"] for key, run in part["runs"].items() if key.partition(":")[0] == name]
        own = [value for value in own if value is not None]
        if own:
            found[split] = sum(own) / len(own), min(own), max(own), len(own)
    return found


def table(part: Part) -> str:
    told = part["about"]
    lines = [
        "# ours against PaiNN and superposed atoms",
        "",
        f"{told['steps']:,} steps of {told['molecules']} structures with {told['probes']:,} probes each. NMAE: mean over the "
        "grids of a split.",
        "",
        "| model | seed | parameters | rate | test geometries | held-out molecules | a step |",
        "|---|---|---|---|---|---|---|",
    ]
    if part["superposition"]:
        shown = " | ".join(_percent(part["superposition"][split]["mean"]) for split in BARS)
        lines.append(f"| superposed atoms | - | 0 | - | {shown} | - |")
    for key, run in sorted(part["runs"].items()):
        name, _, seed = key.partition(":")
        shown = " | ".join(_percent(run[split]["mean"]) for split in BARS)
        lines.append(
            f"| {name} | {seed} | {run['parameters']:,} | {run['lr']:g} | {shown} | {show_seconds(run['step_s'])} |"
        )
    lines += [
        "",
        "| over the seeds | test: mean (low to high) | held out: mean (low to high) |",
        "|---|---|---|",
    ]
    for name in dict.fromkeys(key.partition(":")[0] for key in sorted(part["runs"])):
        found = means(part, name)
        cells = [
            f"{mean:.3%} ({low:.3%} to {high:.3%}, {count} seeds)" if split in found else "-"
            for split in BARS
            for mean, low, high, count in [found.get(split, (0.0, 0.0, 0.0, 0))]
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
