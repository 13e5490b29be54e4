"""`type_fault`: whether the values of a dataclass, as read from a file, have the types that it declares."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from typing import Any


def type_fault(kind: Any, value: Any, where: str) -> str:
    """Describe the first place where `value` is not a `kind`; return an empty text if there is none."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return ""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(value, kind):
            return _wrong(where, "an object", value)
        hints = typing.get_type_hints(kind)
        return _first(
            type_fault(hints[f.name], getattr(value, f.name), f"{where}.{f.name}")
            for f in dataclasses.fields(kind)
        )
    if origin in (types.UnionType, typing.Union):
        if any(not type_fault(choice, value, where) for choice in inner):
            return ""
        return type_fault(next(choice for choice in inner if choice is not type(None)), value, where)
    if origin is typing.Literal:
        return "" if value in inner else _wrong(where, f"one of {', '.join(map(str, inner))}", value)
    if origin is tuple:
        if not isinstance(value, (tuple, list)):
            return _wrong(where, "a list", value)
        kinds = [inner[0]] * len(value) if Ellipsis in inner else list(inner)
        if len(kinds) != len(value):
            return _wrong(where, f"a list of {len(kinds)}", value)
        return _first(
            type_fault(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True))
        )
    if origin is dict:
        if not isinstance(value, dict):
            return _wrong(where, "an object", value)
        return _first(type_fault(inner[1], v, f"{where}.{k}") for k, v in value.items())
    return _scalar(kind, value, where)


def _scalar(kind: Any, value: Any, where: str) -> str:
    if kind is type(None):
        return "" if value is None else _wrong(where, "null", value)
    if kind in (int, float):
        whole = isinstance(value, int) and not isinstance(value, bool)
        valid = whole or (kind is float and isinstance(value, float) and math.isfinite(value))
        return "" if valid else _wrong(where, "a whole number" if kind is int else "a number", value)
    if kind not in (str, bool):
        return ""  # of a kind that JSON does not have
    return "" if isinstance(value, kind) else _wrong(where, "text" if kind is str else "true or false", value)


def _first(faults: typing.Iterable[str]) -> str:
    return next((fault for fault in faults if fault), "")


def _wrong(where: str, expected: str, value: Any) -> str:
    text = repr(value)
    return f"{where} should be {expected}, not {text if len(text) <= 40 else text[:37] + '...'}"
