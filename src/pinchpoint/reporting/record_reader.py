"""Checked reading of records: the contents of a file are validated before they are drawn.

A record that is truncated, edited or written by another program must lead to one clear error, not to
a traceback or a meaningless plot. `check_record` validates a record against its own annotations;
`number`, `count` and `word` read the open dictionaries inside it.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Record


def check_record(record: Record, name: str) -> None:
    """Raise if a record's values do not have the types its class declares.

    `name` is its file or description.
    """
    fault = _fault(type(record), record, record.kind)
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


def _fault(kind: Any, value: Any, where: str) -> str:
    """Describe the first place where `value` is not a `kind`; return an empty text if there is none."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return ""
    if dataclasses.is_dataclass(kind):
        if not dataclasses.is_dataclass(value):
            return _wrong(where, "an object", value)
        hints = typing.get_type_hints(kind)
        return _first(
            _fault(hints[f.name], getattr(value, f.name), f"{where}.{f.name}")
            for f in dataclasses.fields(kind)
        )
    if origin in (types.UnionType, typing.Union):
        if any(not _fault(choice, value, where) for choice in inner):
            return ""
        return _fault(next(choice for choice in inner if choice is not type(None)), value, where)
    if origin is typing.Literal:
        return "" if value in inner else _wrong(where, f"one of {', '.join(map(str, inner))}", value)
    if origin is tuple:
        if not isinstance(value, (tuple, list)):
            return _wrong(where, "a list", value)
        kinds = [inner[0]] * len(value) if Ellipsis in inner else list(inner)
        if len(kinds) != len(value):
            return _wrong(where, f"a list of {len(kinds)}", value)
        return _first(
            _fault(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True))
        )
    if origin is dict:
        if not isinstance(value, dict):
            return _wrong(where, "an object", value)
        return _first(_fault(inner[1], v, f"{where}.{k}") for k, v in value.items())
    return _scalar(kind, value, where)


def _scalar(kind: Any, value: Any, where: str) -> str:
    if kind is type(None):
        return "" if value is None else _wrong(where, "null", value)
    if kind in (int, float):
        whole = isinstance(value, int) and not isinstance(value, bool)
        valid = whole or (kind is float and isinstance(value, float) and math.isfinite(value))
        return "" if valid else _wrong(where, "a whole number" if kind is int else "a number", value)
    expected = "text" if kind is str else "true or false"
    return "" if isinstance(value, kind) else _wrong(where, expected, value)


def _first(faults: typing.Iterable[str]) -> str:
    return next((fault for fault in faults if fault), "")


def _wrong(where: str, expected: str, value: Any) -> str:
    text = repr(value)
    return f"{where} should be {expected}, not {text if len(text) <= 40 else text[:37] + '...'}"
