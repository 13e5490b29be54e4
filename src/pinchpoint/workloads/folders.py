"""Folders of data sets, runs and evaluations: each has one of its own, known by a file in it."""

from __future__ import annotations

from pathlib import Path

from pinchpoint.core.errors import BadInput

RUN = "config.json"
KINDS = {"index.json": "a data set", RUN: "a run", "evaluation.json": "an evaluation", "scan.json": "a scan"}


def refuse_others(folder: Path, *, own: str, mend: str = "choose another folder with -o") -> None:
    """Refuse a folder that belongs to another kind of thing. own: the file that the asking kind is known by."""
    for name, kind in KINDS.items():
        if name != own and (folder / name).exists():
            raise BadInput(f"{folder} is the folder of {kind}: {name} is in it", mend=mend)


def check_run_folder(folder: Path, *, resume: bool) -> None:
    """Refuse a folder of something else, one that holds a run already, and one that holds none to resume."""
    there = (folder / RUN).exists()
    if not there:
        refuse_others(folder, own=RUN, mend="choose a folder of its own for the run with -o")
    if there and not resume:
        raise BadInput(f"{folder} already holds a run", mend="go on with --resume, or choose another -o")
    if resume and not there:
        raise BadInput(f"no run in {folder} to resume", mend="leave out --resume to begin one, or name the run's folder with -o")
