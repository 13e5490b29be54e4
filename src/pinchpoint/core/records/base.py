"""`Record`: the base of every record, which converts it from and to JSON.

`save` writes under a temporary name and renames, so that a record is complete or absent.
"""

from __future__ import annotations

import dataclasses
import html
import json
import pkgutil
import shlex
import sys
import types
import typing
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Self

from pinchpoint.core.files import parse_json, write_text

SCHEMA = 1


def script_command() -> str:
    """Return the command of the running script; files with absolute paths appear by their names."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    return shlex.join(["python", *words])


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Record(ABC):
    """The base of every record: conversion from and to JSON, and a table in notebooks."""

    kind: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        data = dataclasses.asdict(self)  # pyright: ignore[reportArgumentType]
        return {"kind": self.kind, "schema": SCHEMA, **data}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        return _decode(cls, data)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls.from_dict(parse_json(text))

    def save(self, path: str | Path) -> Path:
        return write_text(path, self.to_json() + "\n")

    @abstractmethod
    def summary(self) -> list[tuple[str, str]]:
        """Pairs of label and value that a reader needs first."""

    def _ipython_display_(self) -> None:
        # By name: records are the lowest layer, and how they are drawn belongs to reporting.
        pkgutil.resolve_name("pinchpoint.reporting.notebook:display_record")(self)

    def _repr_html_(self) -> str:
        align_left = "style='text-align:left'"
        rows = "".join(
            f"<tr><th {align_left}>{html.escape(label)}</th><td {align_left}>{html.escape(value)}</td></tr>"
            for label, value in self.summary()
        )
        return f"<table><caption>{html.escape(self.kind)}</caption>{rows}</table>"


def _decode(kind: Any, value: Any) -> Any:
    """Rebuild a value of type `kind` from plain JSON: dataclasses, tuples, optionals."""
    if value is None:
        return None
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        names = {f.name for f in dataclasses.fields(kind) if f.name in value}
        return kind(**{name: _decode(hints[name], value[name]) for name in names})  # pyright: ignore[reportCallIssue]
    if origin is tuple:
        item = args if Ellipsis not in args else [args[0]] * len(value)
        return tuple(_decode(t, v) for t, v in zip(item, value, strict=True))
    if origin in (types.UnionType, typing.Union):
        return _decode(next(a for a in args if a is not type(None)), value)
    return value
