"""The folder of a Study: record, CSV tables, figures and verdict, each written completely or not at all.

A list of the files a study wrote is kept beside them. The next study in the folder removes the files
of that list that it does not write again, and nothing else: a file of the same name may be the user's.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes, write_text
from pinchpoint.core.records import BREAKDOWN, Study
from pinchpoint.reporting.figures import gallery
from pinchpoint.studies.summary import verdict

RECORD = "study.json"
CHECKSUMS = "files.sha256"  # in the format of `sha256sum -c`
POINT_COLUMNS = (
    "variant",
    "mode",
    "size",
    "processed",
    "status",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "total_bytes",
    "time_s",
    "time_low_s",
    "time_high_s",
    "theory_bytes",
)
CARD_COLUMNS = ("card", "memory_bytes", "variant", "mode", "size", "low", "high", "extrapolated")
FIGURE_ORDER = ("peak", "per_point", "cards", "breakdown", "modules", "ratio", "theory", "tradeoff")


def refuse_earlier(folder: Path) -> None:
    """Raise if the folder holds the record of a study, which would be lost."""
    if (folder / RECORD).exists():
        raise BadInput(
            f"{folder} already holds a study.",
            hint="Continue it with --resume, replace it with --overwrite, or choose another folder with -o.",
        )


def write(study: Study, folder: Path) -> list[Path]:
    """Write all files and return their paths, the record first."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = gallery.draw_all(study)
    paths = [study.save(folder / RECORD), write_text(folder / "study.csv", points_csv(study))]
    if study.cards:
        paths.append(write_text(folder / "cards.csv", cards_csv(study)))
    paths += [write_bytes(folder / name, data) for name, data in figures.items()]
    pictures = [name for name in figures if name.endswith(".png")]
    order = {name: i for i, name in enumerate(FIGURE_ORDER)}
    pictures.sort(key=lambda name: order.get(name.removesuffix(".png"), len(order)))
    paths.append(write_text(folder / "verdict.md", verdict(study, figures=pictures)))
    # A table or figure left by an earlier study in this folder would be mistaken for one of this study.
    _remove_earlier_files(folder, keep={path.name for path in paths})
    checksums = "".join(f"{_digest(path)}  {path.name}\n" for path in paths)
    paths.append(write_text(folder / CHECKSUMS, checksums))
    return paths


def points_csv(study: Study) -> str:
    """Return one row per point, with a column for each part of the breakdown.

    The text is the same in any locale.
    """
    header = [*POINT_COLUMNS, *(f"{part}_bytes" for part in BREAKDOWN), "reason"]
    rows = (
        [
            *(getattr(point, name) for name in POINT_COLUMNS),
            *((point.breakdown or {}).get(part) for part in BREAKDOWN),
            point.reason,
        ]
        for point in study.points
    )
    return _csv(header, rows)


def cards_csv(study: Study) -> str:
    """Return one row per card, mode and variant; an empty size means that no size is too large."""
    return _csv(CARD_COLUMNS, ([row.get(name) for name in CARD_COLUMNS] for row in study.cards))


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return text.getvalue()


def _remove_earlier_files(folder: Path, *, keep: set[str]) -> None:
    """Remove the files that an earlier study lists, except those changed since, which are the user's."""
    try:
        lines = (folder / CHECKSUMS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        digest, _, name = line.partition("  ")
        path = folder / name
        # Only a bare name counts, so that a tampered list cannot reach another folder.
        if name == Path(name).name and name not in keep and path.is_file() and _digest(path) == digest:
            path.unlink()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
