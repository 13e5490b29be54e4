"""Folders of evaluations: evaluation.json and the files it lists, which replace those of an earlier one."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from pinchpoint.core.files import check_folder, make_folder, parse_json
from pinchpoint.systems.common.folders import refuse_others

RECORD = "evaluation.json"


class Evaluation(Protocol):
    """A record that lists the files written with it."""

    @property
    def files(self) -> tuple[str, ...]: ...

    def save(self, path: Path) -> Path: ...


def check_evaluation_folder(output: str | Path) -> Path:
    """Refuse a folder that cannot be created or holds something else; call this before the work."""
    refuse_others(Path(output), own=RECORD)
    return check_folder(output)


def make_evaluation_folder(output: str | Path) -> Path:
    """Create the folder of an evaluation; one that holds something else is refused."""
    refuse_others(Path(output), own=RECORD)
    return make_folder(output)


def save_evaluation(evaluation: Evaluation, folder: Path, *, own: Collection[str]) -> None:
    """Write evaluation.json, and remove the files of an earlier evaluation that this one does not list.

    own: names of the files that such an evaluation may write; no other file is removed.
    """
    outdated = _listed_files(folder).intersection(own).difference(evaluation.files)
    evaluation.save(folder / RECORD)
    for name in outdated:
        (folder / name).unlink(missing_ok=True)


def _listed_files(folder: Path) -> set[str]:
    """Return the files that the evaluation in a folder lists."""
    try:
        return set(parse_json((folder / RECORD).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return set()
