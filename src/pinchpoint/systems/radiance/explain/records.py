"""Record of `explain_memory`: one row per trick, as a record, a table and a summary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from pinchpoint.core import machine as _machine
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_bytes, show_seconds

VerdictKind = Literal["helps", "no effect", "changes training", "wrong", "crashes"]


@dataclass(frozen=True)
class Row:
    """Results of one trick. peak_allocated_bytes: measured if possible, otherwise predicted; None if it
    crashes.
    """

    trick: str
    said: str
    of: str  # where the trick comes from: guide, advice or instead
    peak_allocated_bytes: int | None
    predicted_bytes: int | None
    measured_bytes: int | None
    peak_ratio: float | None  # relative to the baseline
    time_s: float | None  # median time of an iteration
    time_ratio: float | None  # relative to the baseline, timed in alternation with it
    time_low: float | None  # 95 % interval of the ratio, if there are enough iterations
    time_high: float | None
    # Relative L2 error against the baseline: the largest of field, super-resolution and discriminator.
    gradient_error: float | None
    verdict: VerdictKind
    reason: str


@dataclass(frozen=True)
class MemoryReport(Record):
    """Result of `radiance explain-memory`."""

    kind: ClassVar[str] = "radiance-memory"
    target: str
    device: str
    card: str  # GPU whose workspaces are modelled
    peaks: str  # predicted or measured: the source of peak_allocated_bytes
    peaks_at: dict[str, Any]  # scale of the peaks
    timed_at: dict[str, Any]  # scale of the times
    compared_at: dict[str, Any]  # scale of the gradients
    repeats: int
    threads: int
    rows: tuple[Row, ...]
    seconds: float
    figure: str | None = None
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def row(self, trick: str) -> Row:
        return next(row for row in self.rows if row.trick == trick)

    def table(self, *, narrow: bool = False) -> tuple[list[str], list[list[str]]]:
        """Column names, and rows of text. narrow: without seconds and descriptions, for 80 characters."""
        columns = [
            "trick",
            "peak",
            "of baseline",
            "time",
            "times",
            "gradients off by",
            "verdict",
            "what it is",
        ]
        rows = [
            [
                row.trick,
                show_bytes(row.peak_allocated_bytes) if row.peak_allocated_bytes else "-",
                _share(row.peak_ratio),
                show_seconds(row.time_s) if row.time_s else "-",
                _times_shown(row, narrow=narrow),
                "-" if row.gradient_error is None else f"{row.gradient_error:.1e}",
                row.verdict,
                row.said,
            ]
            for row in self.rows
        ]
        shown_columns = [
            at for at, name in enumerate(columns) if not (narrow and name in ("time", "what it is"))
        ]
        return [columns[at] for at in shown_columns], [[row[at] for at in shown_columns] for row in rows]

    def summary(self) -> list[tuple[str, str]]:
        at = self.peaks_at
        rays = f"{at['batch']} images of {at['patch']} x {at['patch']} rays, {at['samples']} points per ray"
        names_by_verdict = {
            verdict: [row.trick for row in self.rows if row.verdict == verdict and row.of != "-"]
            for verdict in get_args(VerdictKind)
        }
        return [
            ("peaks", f"{self.peaks}, {rays}"),
            *(
                (what, f"{scale['field']} field, {scale['batch']} images, on {self.device}")
                for what, scale in (("times", self.timed_at), ("gradients", self.compared_at))
            ),
            *((verdict, ", ".join(names)) for verdict, names in names_by_verdict.items() if names),
            ("time", show_seconds(self.seconds)),
        ]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _times_shown(row: Row, *, narrow: bool) -> str:
    if row.time_ratio is None:
        return "-"
    return f"{row.time_ratio:.2f}x" + (
        "" if narrow or row.time_low is None else f" [{row.time_low:.2f}, {row.time_high:.2f}]"
    )
