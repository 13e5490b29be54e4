"""Checked reading of records: the contents of a file are validated before they are drawn.

A record that is truncated, edited or written by another program must lead to one clear error, not to
a traceback or a meaningless plot. `check_record` validates a record against its own annotations;
`number`, `count` and `word` read the open dictionaries inside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Record
from pinchpoint.core.records.field_types import type_fault


def check_record(record: Record, name: str) -> None:
    """Raise if a record's values do not have the types its class declares.

    `name` is its file or description.
    """
    fault = type_fault(type(record), record, record.kind)
    if fault:
        raise BadInput(f"{name} is a damaged {record.kind} record: {fault}.", hint="Create the record again.")


def number(item: Mapping[str, Any], key: str) -> float | None:
    """Return a finite number, or None if there is none."""
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def count(item: Mapping[str, Any], key: str) -> int | None:
    value = number(item, key)
    return None if value is None else round(value)


def word(item: Mapping[str, Any], key: str) -> str:
    value = item.get(key)
    return "" if value is None else str(value)


def share(part: float, whole: float) -> float:
    """Return `part / whole`, or 0 if `whole` is 0."""
    return part / whole if whole else 0.0


def shortlist(memory: Mapping[str, float | None], *, step: float = 1.3, most: int = 12) -> list[str]:
    """Return the cards to show first.

    These are all cards if they are few, else each with `step` times the memory of the one before.
    """
    if len(memory) <= most:
        return list(memory)
    names: list[str] = []
    for name, size in sorted(memory.items(), key=lambda pair: pair[1] or 0.0):
        if not names or (size or 0.0) >= step * (memory[names[-1]] or 0.0):
            names.append(name)
    return names
