"""The settings a user types: `--set KEY=VALUE` and options, parsed by the types of dataclass fields.

`parse_overrides` is the one parser of `--set` for all systems. It tells fields of the model from fields of
the training by their names. Imports no framework.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pinchpoint.core.errors import BadInput
from pinchpoint.core.settings import parse_pairs, suggest
from pinchpoint.core.units import parse_size
from pinchpoint.systems.common.settings import flag, options_of


@dataclass(frozen=True)
class Overrides:
    """What the user set, by field name, and nothing else."""

    training: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)

    def choices(self) -> dict[str, Any]:
        """Fields of the training, with those of the model under `model` where there are any."""
        return {**self.training, "model": self.model} if self.model else dict(self.training)


def parse_overrides(
    texts: Sequence[str] | None,
    *,
    training: Sequence[type] = (),
    model: type | None = None,
    main: bool = False,
) -> Overrides:
    """`KEY=VALUE` texts to typed values of the fields of a model and of its training.

    A key that both have means the model's field if the training's has an option of its own.
    main: for a command without such options; `--set` then takes those fields too.
    """
    keys = _keys(training, model, main=main)
    own = {key for config in training for key in _options(config) if key not in keys}
    derived = {f.name for config in _configs(training, model) for f in fields(config)} - own - set(keys)
    overrides = Overrides()
    for key, values in parse_pairs(texts or ()).items():
        if key in own:
            raise BadInput(
                f"--set {key}={values[0]} is not possible, because {key} has an option of its own.",
                hint=f"Write --{key.replace('_', '-')} {values[0]}.",
            )
        if key in derived:
            raise BadInput(
                f"--set {key}={values[0]} is not possible, because {key} follows from the data and other "
                "settings.",
                hint=f"Leave out --set {key}.",
            )
        if key not in keys:
            raise BadInput(f"--set {key}={values[0]} is not a known setting.", hint=suggest(key, keys))
        if len(values) > 1:
            raise BadInput(
                f"--set {key} is given {len(values)} times: {', '.join(values)}.",
                hint="Give each setting once.",
            )
        config, name = keys[key]
        part = overrides.model if config is model else overrides.training
        part[name] = parse_field(config, name, values[0])  # pyright: ignore[reportGeneralTypeIssues]
    return overrides


def settable(config: type, *, main: bool = False) -> dict[str, str]:
    """The keys of `--set` for one dataclass, with the field each one sets. main: also fields with an option
    of their own.
    """
    return {
        declared.name or name: name
        for name, declared in options_of(config).items()
        if main or not declared.main
    }


def parse_field(config: type, name: str, text: str) -> Any:
    """The value of a field, as its annotation tells to read the text."""
    return parse_value(get_type_hints(config)[name], text.strip(), written=flag(config, name, text))


def parse_value(kind: Any, text: str, *, written: str) -> Any:
    """A number, a switch, a name or a list of those. written: what the user typed, for errors."""
    if get_origin(kind) in (UnionType, Union):
        some = [part for part in get_args(kind) if part is not NoneType]
        return None if text == "none" else parse_value(some[0], text, written=written)
    if get_origin(kind) in (tuple, list):
        return get_origin(kind)(_parse_list(get_args(kind), text, written))
    if kind is bool:
        if text not in ("true", "false"):
            raise _invalid(written, text, "neither true nor false", "Write true or false.")
        return text == "true"
    if kind is int:
        return _parse_int(text, written)
    if kind is float:
        return _parse_float(text, written)
    return Path(text) if kind is Path else text


def _keys(training: Sequence[type], model: type | None, *, main: bool) -> dict[str, tuple[type, str]]:
    """Every key of `--set`, with the dataclass and the field it sets."""
    keys: dict[str, tuple[type, str]] = {}
    for config in _configs(training, model):
        for key, name in settable(config, main=main).items():
            assert key not in keys, (
                f"{key} is a setting of both {keys[key][0].__name__} and {config.__name__}"
            )
            keys[key] = config, name
    return keys


def _configs(training: Sequence[type], model: type | None) -> list[type]:
    return [*training, *([] if model is None else [model])]


def _options(config: type) -> list[str]:
    return [declared.name or name for name, declared in options_of(config).items()]


def _parse_list(kinds: tuple[Any, ...], text: str, written: str) -> list[Any]:
    parts = [] if text == "none" else [part.strip() for part in text.split(",") if part.strip()]
    if len(kinds) > 1 and kinds[-1] is not ...:
        if len(parts) != len(kinds):
            raise _invalid(
                written,
                text,
                f"not a list of {len(kinds)} values",
                f"Give {len(kinds)} values with commas between.",
            )
        return [parse_value(kind, part, written=written) for kind, part in zip(kinds, parts, strict=True)]
    return [parse_value(kinds[0], part, written=written) for part in parts]  # pyright: ignore[reportGeneralTypeIssues]


def _parse_int(text: str, written: str) -> int:
    value = None
    with suppress(ValueError):
        value = int(text)
    if value is not None and abs(value) < 2**63:
        return value
    try:
        return parse_size(text)
    except BadInput:
        raise _invalid(
            written,
            text,
            "not a whole number of 64 bits" if value else "not a whole number",
            "Give a whole number, such as 8 or 20k.",
        ) from None


def _parse_float(text: str, written: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _invalid(written, text, "not a finite number", "Give a number, such as 0.25 or 1e-3.")
    return value


def _invalid(written: str, text: str, what: str, hint: str) -> BadInput:
    return BadInput(f"{written} is not valid: {text!r} is {what}.", hint=hint)
