"""The tables of a Study as CSV: every point, and the card table. The same bytes in any locale."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from pinchpoint.core.records import BREAKDOWN, Study

POINT = (
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
CARD = ("card", "memory_bytes", "variant", "mode", "size", "low", "high", "extrapolated")


def points_csv(study: Study) -> str:
    """One row a point; the parts of the breakdown in columns of their own."""
    header = [*POINT, *(f"{part}_bytes" for part in BREAKDOWN), "reason"]
    rows = (
        [
            *(getattr(point, name) for name in POINT),
            *((point.breakdown or {}).get(part) for part in BREAKDOWN),
            point.reason,
        ]
        for point in study.points
    )
    return _csv(header, rows)


def cards_csv(study: Study) -> str:
    """One row a card, mode and variant; an empty size means that no size is too large."""
    return _csv(CARD, ([row.get(name) for name in CARD] for row in study.cards))


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return text.getvalue()
