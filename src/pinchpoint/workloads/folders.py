"""Folders of data sets, runs and evaluations: each has one of its own, known by a file in it."""

from __future__ import annotations

from pathlib import Path

from pinchpoint.core.errors import BadInput

KINDS = {"index.json": "a data set", "config.json": "a run", "evaluation.json": "an evaluation", "scan.json": "a scan"}


def refuse_others(folder: Path, *, own: str, mend: str = "choose another folder with -o") -> None:
    """Refuse a folder that belongs to another kind of thing. own: the file that the asking kind is known by."""
    for name, kind in KINDS.items():
        if name != own and (folder / name).exists():
            raise BadInput(f"{folder} is the folder of {kind}: {name} is in it", mend=mend)
