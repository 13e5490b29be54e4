"""log.csv of a run: a row a step, cut back to the checkpoint when a run is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pinchpoint.systems.common.csv_rows import RowLog


@dataclass(frozen=True)
class Row:
    """One step. loss: as the system defines it; memory_bytes: peak allocated on CUDA, resident on CPU."""

    step: int
    loss: float
    lr: float
    seconds: float
    memory_bytes: int
    validation: float | None = None  # error on what is held back, where it was measured


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
