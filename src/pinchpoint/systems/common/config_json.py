"""A configuration of a model as JSON and back: plain values, unknown or missing parts refused. Imports no framework."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Self

from pinchpoint.core.errors import BadInput


class JsonConfig:
    """Mixed into a frozen dataclass whose fields are plain values and tuples of them."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False)  # pyright: ignore[reportArgumentType]

    @classmethod
    def from_json(cls, text: str) -> Self:
        hint = f"give what {cls.__name__}.to_json wrote"
        try:
            data: Any = json.loads(text)
        except json.JSONDecodeError as error:
            raise BadInput(f"a configuration that is no JSON: {error}", hint=hint) from error
        known = {field.name for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
        if not isinstance(data, dict) or not set(data) <= known:
            strange = sorted(set(data) - known) if isinstance(data, dict) else type(data).__name__
            raise BadInput(
                f"a configuration with unknown parts: {strange}",
                hint="it was written by another version: train again",
            )
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        try:
            return cls(**values)
        except TypeError as error:
            raise BadInput(f"a configuration that lacks parts: {error}", hint=hint) from error
