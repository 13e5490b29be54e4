"""`load`: read a record of any kind from its JSON file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import json_fault, parse_json
from pinchpoint.core.records.base import SCHEMA, Record
from pinchpoint.core.records.check import Check
from pinchpoint.core.records.checkpointing import Checkpointing
from pinchpoint.core.records.results import Forecast, Plan, Study, Verdict
from pinchpoint.core.records.trace import Trace

KINDS: dict[str, type[Record]] = {
    cls.kind: cls for cls in (Forecast, Plan, Checkpointing, Study, Verdict, Trace, Check)
}


def load(path: str | Path) -> Record:
    """Read a record of any kind. Raises `BadInput` for a file that is not a record."""
    try:
        data = parse_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(
            f"Cannot read {path}: {error.strerror}.", hint="Give the path of a record written by pinchpoint."
        ) from error
    except ValueError as error:
        raise BadInput(
            f"{path} is not a pinchpoint record: {json_fault(error)}.",
            hint="Give a record written by pinchpoint with -o.",
        ) from error
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in KINDS:
        why = "it has no kind" if kind is None else f"its kind is {kind!r}"
        raise BadInput(
            f"{path} is not a pinchpoint record: {why}.",
            hint=f"Give a record of one of these kinds: {', '.join(KINDS)}.",
        )
    if data.get("schema") != SCHEMA:
        raise BadInput(
            f"{path} has schema {data.get('schema')!r}, but this pinchpoint reads schema {SCHEMA}.",
            hint="Read it with the version of pinchpoint that wrote it.",
        )
    missing = [f.name for f in dataclasses.fields(KINDS[kind]) if f.name not in data and _is_required(f)]  # pyright: ignore[reportArgumentType]
    if missing:
        raise BadInput(
            f"{path} is a damaged {kind} record: {missing[0]} is missing.", hint="Create the record again."
        )
    try:
        return KINDS[kind].from_dict(data)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{path} is a damaged {kind} record: {error}.", hint="Create the record again."
        ) from error


def _is_required(member: dataclasses.Field[Any]) -> bool:
    return member.default is dataclasses.MISSING and member.default_factory is dataclasses.MISSING
