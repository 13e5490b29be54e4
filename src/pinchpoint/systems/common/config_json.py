"""Configurations of models as JSON: plain values; unknown or missing fields are refused. Imports no
framework.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Self, get_type_hints

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import json_fault, parse_json
from pinchpoint.core.records.field_types import type_fault


class JsonConfig:
    """A mixin for frozen dataclasses whose fields are plain values and tuples of them."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False)  # pyright: ignore[reportArgumentType]

    @classmethod
    def from_json(cls, text: str) -> Self:
        hint = f"Give JSON that {cls.__name__}.to_json wrote."
        try:
            data: Any = parse_json(text)
        except ValueError as error:
            raise BadInput(f"The configuration is damaged: {json_fault(error)}.", hint=hint) from error
        known = {field.name for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
        if not isinstance(data, dict) or not set(data) <= known:
            unknown = sorted(set(data) - known) if isinstance(data, dict) else type(data).__name__
            raise BadInput(
                f"The configuration has unknown fields: {unknown}.",
                hint="Train again: it was written by another version.",
            )
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        hints = get_type_hints(cls)
        for name, value in values.items():
            if fault := type_fault(hints[name], value, name):
                raise BadInput(f"The configuration has a wrong value: {fault}.", hint=hint)
        try:
            return cls(**values)
        except TypeError as error:
            raise BadInput(f"The configuration lacks fields: {error}.", hint=hint) from error
        except (ValueError, ArithmeticError, AttributeError, LookupError) as error:
            raise BadInput(f"The configuration has a wrong value: {error}.", hint=hint) from error
