"""The record of the comparison as a growing file with one entry per piece of work; parts can be merged.

about     must be equal for two parts to belong together: data, configuration, steps, loss
tuning    "ours lr=0.001" -> errors on the held-back bodies
chosen    the result of tuning: learning rates, GINO's choices
runs      "ours:0" (model and seed) -> errors on the test bodies, coarse and fine, losses, time, peak
times     steps of both models in turn, and of GINO with its own reduce
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

Part = dict[str, Any]
WHAT = "operator against GINO"


def new(about: dict[str, Any]) -> Part:
    return {
        "what": WHAT,
        "commands": [shlex.join(["python", *sys.argv])],
        "created": now(),
        "machines": [machine.describe()],
        "about": about,
        "tuning": {},
        "chosen": {},
        "runs": {},
        "times": {},
    }


def read(path: Path) -> Part:
    try:
        part = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{path} cannot be read: {error}.", hint="Name a file that `compare.py run` wrote."
        ) from error
    if not isinstance(part, dict) or part.get("what") != WHAT:
        raise BadInput(
            f"{path} is not a part of this comparison.", hint="Name a file that `compare.py run` wrote."
        )
    return part


def save(path: Path, part: Part) -> None:
    write_text(path, json.dumps(part, indent=1, allow_nan=False) + "\n")


def merge(first: Part, *others: Part) -> Part:
    """Merge all parts. If two contain the same piece of work, that of the first is used."""
    result = json.loads(json.dumps(first))
    for other in others:
        differ = sorted(
            key
            for key in result["about"].keys() | other["about"]
            if result["about"].get(key) != other["about"].get(key)
        )
        if differ:
            was, now_is = result["about"].get(differ[0]), other["about"].get(differ[0])
            raise BadInput(
                f"The parts belong to different comparisons: {differ[0]} is {was} in one and {now_is} in "
                "another.",
                hint="Merge parts with the same data and options.",
            )
        for group in ("tuning", "runs", "times"):
            result[group] = other[group] | result[group]
        if result["chosen"] and other["chosen"] and result["chosen"] != other["chosen"]:
            raise BadInput(
                "The parts were tuned separately, with different results.",
                hint="Pass the first part to the --from of the second.",
            )
        result["chosen"] = result["chosen"] or other["chosen"]
        for group in ("commands", "machines"):
            result[group] += [one for one in other[group] if one not in result[group]]
    return result
