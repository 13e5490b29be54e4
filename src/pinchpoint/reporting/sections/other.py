"""The section of records that have no section of their own, such as trainings and evaluations of a system."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.reporting.answers import Answer
from pinchpoint.reporting.html import Column, panel, table
from pinchpoint.reporting.other_records import OtherRecord
from pinchpoint.reporting.section import Entry, Headline

KIND = "other"
TITLE = "Other records"
NOUNS = ("other record", "other records")
ABOUT = "Records of the systems: their values as they are stored."
ORDER = 90

ROWS_SHOWN = 200
ITEMS_SHOWN = 8  # of a list


def entry(record: OtherRecord) -> Entry:
    rows = list(_rows(record.values))
    note = f"The first {ROWS_SHOWN} of {len(rows):,} values." if len(rows) > ROWS_SHOWN else ""
    return Entry(
        title=record.target,
        headline=Headline(record.name, "record"),
        answer=Answer("plain", f"A record of the kind {record.name}, with its {len(rows):,} values."),
        tags=(record.name,),
        tiles=(),
        blocks=(
            panel("Values", table((Column("name", "code"), Column("value")), rows[:ROWS_SHOWN]), note=note),
        ),
    )


def _rows(values: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and text of every value; names of nested ones are joined by dots."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from _rows(value, f"{name}.{key}" if name else str(key))
    elif isinstance(values, (list, tuple)) and any(isinstance(item, (dict, list, tuple)) for item in values):
        for place, item in enumerate(values):
            yield from _rows(item, f"{name}[{place}]")
    elif isinstance(values, (list, tuple)):
        more = f" and {len(values) - ITEMS_SHOWN} more" if len(values) > ITEMS_SHOWN else ""
        yield name, ", ".join(_text(name, item) for item in values[:ITEMS_SHOWN]) + more
    else:
        yield name, _text(name, values)


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "-" if value is None else str(value)
    if name.endswith("_bytes"):
        return show_bytes(value)
    return show_seconds(value) if name.endswith(("_s", "seconds")) else f"{value:,.6g}"
