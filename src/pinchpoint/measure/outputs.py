"""The folder of a Study: record, tables, figures and verdict, each written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from pinchpoint.core.files import write_bytes, write_text
from pinchpoint.core.records import Study
from pinchpoint.measure.tables import cards_csv, points_csv
from pinchpoint.measure.words import verdict
from pinchpoint.render.figures import gallery

RECORD = "study.json"


def write(study: Study, folder: Path) -> list[Path]:
    """Write everything and give the paths, the record first."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = gallery.draw_all(study)
    paths = [study.save(folder / RECORD), write_text(folder / "study.csv", points_csv(study))]
    if study.cards:
        paths.append(write_text(folder / "cards.csv", cards_csv(study)))
    else:
        (folder / "cards.csv").unlink(missing_ok=True)
    for name in gallery.file_names():
        # A figure of an earlier study in this folder would be taken for one of this.
        if name not in drawn:
            (folder / name).unlink(missing_ok=True)
    paths += [write_bytes(folder / name, data) for name, data in drawn.items()]
    pictures = [name for name in drawn if name.endswith(".png")]
    order = {
        name: i for i, name in enumerate(("peak", "per_point", "cards", "breakdown", "modules", "ratio", "theory", "tradeoff"))
    }
    pictures.sort(key=lambda name: order.get(name.removesuffix(".png"), len(order)))
    paths.append(write_text(folder / "verdict.md", verdict(study, figures=pictures)))
    return paths
