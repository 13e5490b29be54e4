"""A CSV of a row a step that survives a kill: whole lines only, cut back to the checkpoint when a run is resumed."""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping
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
    """Appends rows. A system says what its columns are and how a row is written and read."""

    columns: ClassVar[tuple[str, ...]]

    def __init__(self, path: Path, *, keep_to: int) -> None:
        """Keep the rows of steps up to `keep_to`: what came after the checkpoint will be written again."""
        self.path = path
        rows = [row for row in self.read(path) if row.step <= keep_to] if path.exists() else []
        write_text(path, ",".join(self.columns) + "\n" + self._lines(rows))

    def add(self, rows: list[R]) -> None:
        if rows:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(self._lines(rows))

    @classmethod
    def read(cls, path: Path) -> list[R]:
        """Every whole row. A last line cut off by a kill is left out."""
        with path.open(encoding="utf-8", newline="") as file:
            lines = [
                line for line in csv.DictReader(file) if None not in (line.get(name) for name in cls.columns)
            ]
        try:
            return [cls.row_of(line) for line in lines]
        except ValueError as error:
            raise BadInput(
                f"{path} is damaged: {error}", hint="restore it, or train again with another -o"
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
