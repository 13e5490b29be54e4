"""Settings of a workload: named options beside its size, checked before anything is built.

The value of a setting is text, as typed after `--set`, and the workload interprets it. No framework is
needed, so that settings can be listed and refused without importing one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pinchpoint.core.errors import BadInput

Overrides = Mapping[str, str | Sequence[str]]  # name -> value, or several values where that is allowed


@dataclass(frozen=True)
class Setting:
    """One option of a workload, such as `mlp` or `part`.

    choices: all allowed values. pattern: without choices, a regular expression for the whole value.
    """

    name: str
    default: str
    about: str = ""
    choices: tuple[str, ...] = ()
    pattern: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise BadInput(
                f"A setting cannot be named {self.name!r}.",
                hint="Use lower-case letters, digits and _, as in mlp or part.",
            )
        if not self.takes(self.default):
            raise BadInput(
                f"The default {self.default!r} of the setting {self.name} is not one of its allowed values.",
                hint="Change the default, the choices or the pattern.",
            )

    def takes(self, value: str) -> bool:
        if self.choices:
            return value in self.choices
        return bool(re.fullmatch(self.pattern, value)) if self.pattern else bool(value)

    def check(self, value: str) -> str:
        if self.takes(value):
            return value
        example = f"Give {self.about or 'a value'}, such as {self.default}."
        hint = f"Use one of: {', '.join(self.choices)}." if self.choices else example
        raise BadInput(f"The setting {self.name} cannot be {value!r}.", hint=hint)


def suggest(key: str, keys: Iterable[str]) -> str:
    """The hint for a key that does not exist: the nearest one that does, and all of them."""
    names = list(keys)
    if not names:
        return "Leave out --set: there is nothing to set here."
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    return (f"Did you mean {near[0]}? " if near else "") + f"Use one of: {', '.join(names)}."


def parse_pairs(pairs: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Parse `key=value` texts into the values of each key, in order; a repeated key has several values."""
    values: dict[str, tuple[str, ...]] = {}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key or not value:
            raise BadInput(
                f"--set {pair!r} does not have the form KEY=VALUE.",
                hint="Write, for example, --set mlp=128,128,128.",
            )
        values[key] = tuple(dict.fromkeys((*values.get(key, ()), value)))
    return values


def resolve(
    text: str, declarations: Sequence[Setting], overrides: Overrides | None
) -> dict[str, tuple[str, ...]]:
    """The values of every declared setting, defaults included. text: the target, for error messages."""
    new_values = {key: _values(value) for key, value in (overrides or {}).items()}
    settings = {setting.name: setting for setting in declarations}
    unknown = [key for key in new_values if key not in settings]
    if unknown:
        raise BadInput(f"{text} has no setting {unknown[0]!r}.", hint=suggest(unknown[0], settings))
    empty = [key for key, values in new_values.items() if not values]
    if empty:
        raise BadInput(
            f"The setting {empty[0]} has no value.", hint="Give one, or omit it to use the default."
        )
    return {
        name: tuple(setting.check(value) for value in new_values.get(name, (setting.default,)))
        for name, setting in settings.items()
    }


def resolve_one(text: str, declarations: Sequence[Setting], overrides: Overrides | None) -> dict[str, str]:
    """The value of every declared setting, where each may have one value only."""
    values_of = resolve(text, declarations, overrides)
    for name, values in values_of.items():
        if len(values) > 1:
            raise BadInput(
                f"The setting {name} has {len(values)} values, but only a study takes several.",
                hint="Give one value.",
            )
    return {name: values[0] for name, values in values_of.items()}


def show_settings(settings: Mapping[str, str]) -> str:
    """`mlp=128,128,128 part=encoder`, as typed on the command line."""
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _values(values: str | Sequence[str]) -> tuple[str, ...]:
    several = values if isinstance(values, list | tuple) else (values,)
    return tuple(dict.fromkeys(str(value) for value in several))
