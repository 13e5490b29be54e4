"""log.csv of a run: a row a step, cut back to the checkpoint when a run is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from pinchpoint.systems.common.csv_rows import RowLog


@dataclass(frozen=True)
class Row:
    """One step. energy_ha, variance: of the local energies of all walkers; seconds: of training up to it."""

    step: int
    energy_ha: float
    variance: float  # hartree^2
    acceptance: float  # of the moves, a part of 1
    width: float  # of the proposals, bohr
    norm: float  # length of the change of all parameters as it was made: SPRING's is capped
    clipped: float  # part of the local energies
    seconds: float


class Log(RowLog[Row]):
    columns = tuple(f.name for f in fields(Row))

    @classmethod
    def row_of(cls, line: Mapping[str, str]) -> Row:
        return Row(int(line["step"]), *(float(line[name]) for name in cls.columns[1:]))

    @classmethod
    def cells_of(cls, row: Row) -> list[Any]:
        step, energy, *others, seconds = astuple(row)
        return [step, f"{energy:.10g}", *(f"{value:.6g}" for value in others), f"{seconds:.4f}"]


def read(path: Path) -> list[Row]:
    """Every whole row."""
    return Log.read(path)
