"""The record of the comparison as a file that grows: one entry for every piece of work, merged where it was split.

about     what must be equal for two parts to belong together: data, configuration, steps, loss
tuning    "ours lr=0.001" -> errors on the bodies held back
chosen    what tuning found: learning rates, GINO's choices
runs      "ours:0" -> model and seed: errors on the test bodies, coarse and fine, losses, time, peak
times     a step of each, in turn, and of GINO with its own reduce
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
            was, now_is = made["about"].get(differ[0]), other["about"].get(differ[0])
            raise BadInput(
                f"parts of different comparisons: {differ[0]} is {was} in one and {now_is} in another",
                hint="merge parts made with the same data and options",
            )
        for group in ("tuning", "runs", "times"):
            made[group] = other[group] | made[group]
        if made["chosen"] and other["chosen"] and made["chosen"] != other["chosen"]:
            raise BadInput(
                "parts tuned apart, with different results", hint="give the first part to the second's --from"
            )
        made["chosen"] = made["chosen"] or other["chosen"]
        for group in ("commands", "machines"):
            made[group] += [one for one in other[group] if one not in made[group]]
    return made
