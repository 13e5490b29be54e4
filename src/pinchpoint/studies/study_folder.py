"""The folder of a Study: record, tables, figures and verdict, each written whole or not at all.

What a study made is listed beside it, so that the next one in the folder removes what it does not
make again, and nothing else: a figure of the same name may be the user's own.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from pinchpoint.core.files import write_bytes, write_text
from pinchpoint.core.records import Study
from pinchpoint.reporting.figures import gallery
from pinchpoint.studies.csv_tables import cards_csv, points_csv
from pinchpoint.studies.summary import verdict

RECORD = "study.json"
MADE = "files.sha256"  # as `sha256sum -c` reads it


def write(study: Study, folder: Path) -> list[Path]:
    """Write everything and give the paths, the record first."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = gallery.draw_all(study)
    paths = [study.save(folder / RECORD), write_text(folder / "study.csv", points_csv(study))]
    if study.cards:
        paths.append(write_text(folder / "cards.csv", cards_csv(study)))
    paths += [write_bytes(folder / name, data) for name, data in drawn.items()]
    pictures = [name for name in drawn if name.endswith(".png")]
    order = {
        name: i
        for i, name in enumerate(
            ("peak", "per_point", "cards", "breakdown", "modules", "ratio", "theory", "tradeoff")
        )
    }
    pictures.sort(key=lambda name: order.get(name.removesuffix(".png"), len(order)))
    paths.append(write_text(folder / "verdict.md", verdict(study, figures=pictures)))
    # A table or figure of an earlier study in this folder would be taken for one of this.
    _remove_made(folder, but={path.name for path in paths})
    paths.append(write_text(folder / MADE, "".join(f"{_digest(path)}  {path.name}\n" for path in paths)))
    return paths


def _remove_made(folder: Path, *, but: set[str]) -> None:
    """Files an earlier study lists, as long as they are what it made: one changed since is the user's."""
    try:
        listed = (folder / MADE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    for line in listed:
        digest, _, name = line.partition("  ")
        path = folder / name
        # A name only: a list that was tampered with reaches no other folder.
        if name == Path(name).name and name not in but and path.is_file() and _digest(path) == digest:
            path.unlink()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
