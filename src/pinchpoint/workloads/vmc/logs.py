"""log.csv of a run: a row a step, cut back to the checkpoint when a run is resumed."""

from __future__ import annotations

import csv
import io
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_text


@dataclass(frozen=True)
class Row:
    """One step. energy_ha, variance: of the local energies of all walkers; seconds: of training up to it."""

    step: int
    energy_ha: float
    variance: float  # hartree^2
    acceptance: float  # of the moves, a part of 1
    width: float  # of the proposals, bohr
    norm: float  # of the change of the parameters, before it was capped
    clipped: float  # part of the local energies
    seconds: float


COLUMNS = tuple(f.name for f in fields(Row))


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
    try:
        return [Row(int(line["step"]), *(float(line[name]) for name in COLUMNS[1:])) for line in lines]
    except ValueError as error:
        raise BadInput(f"{path} is damaged: {error}", mend="restore it, or train again with another -o") from error


def _lines(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        step, energy, *others, seconds = astuple(row)
        writer.writerow([step, f"{energy:.10g}", *(f"{value:.6g}" for value in others), f"{seconds:.4f}"])
    return text.getvalue()
