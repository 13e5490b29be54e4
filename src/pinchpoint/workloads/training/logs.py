"""log.csv of a run: a row a step, cut back to the checkpoint when a run is resumed."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, fields
from pathlib import Path

from pinchpoint.core.files import write_text


@dataclass(frozen=True)
class Row:
    """One step. loss: as the system defines it; memory_bytes: peak allocated on CUDA, resident on CPU."""

    step: int
    loss: float
    lr: float
    seconds: float
    memory_bytes: int
    validation: float | None = None  # error on what is held back, where it was measured


COLUMNS = [f.name for f in fields(Row)]


class Log:
    """Appends rows; whole lines only reach the file."""

    def __init__(self, path: Path, *, keep_to: int) -> None:
        """Keep the rows of steps up to `keep_to`: what came after the checkpoint will be written again."""
        self.path = path
        rows = [row for row in read(path) if row.step <= keep_to] if path.exists() else []
        write_text(path, ",".join(COLUMNS) + "\n" + _lines(rows))

    def add(self, rows: list[Row]) -> None:
        if rows:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(_lines(rows))


def read(path: Path) -> list[Row]:
    """Every whole row. A last line cut off by a kill is left out."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if None not in (line.get(name) for name in COLUMNS)]
    return [_row(line) for line in lines]


def _row(line: dict[str, str]) -> Row:
    return Row(
        int(line["step"]), float(line["loss"]), float(line["lr"]), float(line["seconds"]), int(line["memory_bytes"]),
        float(line["validation"]) if line["validation"] else None,
    )  # fmt: skip


def _lines(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        validation = "" if row.validation is None else f"{row.validation:.6g}"
        writer.writerow([row.step, f"{row.loss:.8g}", f"{row.lr:.6g}", f"{row.seconds:.3f}", row.memory_bytes, validation])
    return text.getvalue()
