"""log.csv of a run: one row per step, and only whole lines count, so that it survives a kill.

When a run is resumed, its log is cut back to the checkpoint. `RowLog` is the file; `Row` and `Log` hold the
columns of torch runs.
"""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_text


class Stepped(Protocol):
    """Anything that belongs to a step."""

    @property
    def step(self) -> int: ...


R = TypeVar("R", bound=Stepped)


class RowLog(ABC, Generic[R]):
    """Appends rows. A subclass names its columns and converts between rows and cells."""

    columns: ClassVar[tuple[str, ...]]

    def __init__(self, path: Path, *, keep_to: int) -> None:
        """Keep the rows of steps up to `keep_to`: later ones are written again."""
        self.path = path
        rows = [row for row in self.read(path) if row.step <= keep_to] if path.exists() else []
        write_text(path, ",".join(self.columns) + "\n" + self._lines(rows))

    def add(self, rows: list[R]) -> None:
        if rows:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(self._lines(rows))

    @classmethod
    def read(cls, path: Path) -> list[R]:
        """Every whole row. A last line that a kill cut off is left out."""
        try:
            with path.open(encoding="utf-8", newline="") as file:
                lines = [
                    line
                    for line in csv.DictReader(file)
                    if None not in (line.get(name) for name in cls.columns)
                ]
            return [cls.row_of(line) for line in lines]
        except (ValueError, csv.Error) as error:
            raise BadInput(
                f"{path} is damaged: {error}.", hint="Restore it, or train again with another -o."
            ) from error

    @classmethod
    def _lines(cls, rows: list[R]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(cls.cells_of(row) for row in rows)
        return text.getvalue()

    @classmethod
    @abstractmethod
    def row_of(cls, line: Mapping[str, str]) -> R: ...

    @classmethod
    @abstractmethod
    def cells_of(cls, row: R) -> list[Any]: ...


@dataclass(frozen=True)
class Row:
    """One step. loss: as the system defines it; memory_bytes: peak allocated on CUDA, resident on a CPU."""

    step: int
    loss: float
    lr: float
    seconds: float
    memory_bytes: int
    validation: float | None = None  # validation error, where it was measured


class Log(RowLog[Row]):
    columns = tuple(f.name for f in fields(Row))

    @classmethod
    def row_of(cls, line: Mapping[str, str]) -> Row:
        return Row(
            int(line["step"]),
            float(line["loss"]),
            float(line["lr"]),
            float(line["seconds"]),
            int(line["memory_bytes"]),
            float(line["validation"]) if line["validation"] else None,
        )

    @classmethod
    def cells_of(cls, row: Row) -> list[Any]:
        validation = "" if row.validation is None else f"{row.validation:.6g}"
        return [
            row.step,
            f"{row.loss:.8g}",
            f"{row.lr:.6g}",
            f"{row.seconds:.3f}",
            row.memory_bytes,
            validation,
        ]


def read(path: Path) -> list[Row]:
    """Every whole row."""
    return Log.read(path)
