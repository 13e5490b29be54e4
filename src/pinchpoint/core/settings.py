"""Settings of a workload: named choices beside its size, checked before anything is built.

A setting's value is text, as it is typed after `--set`; the workload reads it. Nothing here knows
a framework, so that settings are listed and refused without importing one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pinchpoint.core.errors import BadInput

Asked = Mapping[str, str | Sequence[str]]  # name -> value, or the values where several may be given


@dataclass(frozen=True)
class Setting:
    """One choice of a workload: `mlp`, `part`. choices: all values it may have; else pattern: what a whole value must match."""

    name: str
    default: str
    about: str = ""
    choices: tuple[str, ...] = ()
    pattern: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise BadInput(
                f"a setting named {self.name!r}",
                hint="name it with lower-case letters, digits and _: mlp, part",
            )
        if not self.takes(self.default):
            raise BadInput(
                f"setting {self.name} does not take its own default {self.default!r}", hint="fix its default"
            )

    def takes(self, value: str) -> bool:
        if self.choices:
            return value in self.choices
        return bool(re.fullmatch(self.pattern, value)) if self.pattern else bool(value)

    def check(self, value: str) -> str:
        if self.takes(value):
            return value
        like = f"give {self.about or 'a value'}, such as {self.default}"
        known = f"use one of: {', '.join(self.choices)}" if self.choices else like
        raise BadInput(f"setting {self.name} is not {value!r}", hint=known)


def parse_pairs(pairs: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """`key=value` texts to the values of each key, in the order given; a key given again has several."""
    found: dict[str, tuple[str, ...]] = {}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key or not value:
            raise BadInput(f"--set {pair!r} is not KEY=VALUE", hint="write --set mlp=128,128,128")
        found[key] = tuple(dict.fromkeys((*found.get(key, ()), value)))
    return found


def resolve(text: str, declared: Sequence[Setting], asked: Asked | None) -> dict[str, tuple[str, ...]]:
    """The values of every declared setting: those asked for, else the default. text: the target, for errors."""
    wanted = {key: _values(value) for key, value in (asked or {}).items()}
    known = {setting.name: setting for setting in declared}
    unknown = [key for key in wanted if key not in known]
    if unknown:
        hint = f"use one of: {', '.join(known)}" if known else "leave --set out"
        raise BadInput(f"{text} has no setting {unknown[0]!r}", hint=hint)
    empty = [key for key, values in wanted.items() if not values]
    if empty:
        raise BadInput(f"setting {empty[0]} has no value", hint="give one, or leave it out for the default")
    return {
        name: tuple(setting.check(value) for value in wanted.get(name, (setting.default,)))
        for name, setting in known.items()
    }


def resolve_one(text: str, declared: Sequence[Setting], asked: Asked | None) -> dict[str, str]:
    """The same where a setting may have one value only."""
    found = resolve(text, declared, asked)
    for name, values in found.items():
        if len(values) > 1:
            raise BadInput(
                f"setting {name} has {len(values)} values",
                hint="give one of them; only a study takes several",
            )
    return {name: values[0] for name, values in found.items()}


def show_settings(settings: Mapping[str, str]) -> str:
    """`mlp=128,128,128 part=encoder`, as one would type it."""
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _values(given: str | Sequence[str]) -> tuple[str, ...]:
    several = given if isinstance(given, list | tuple) else (given,)
    return tuple(dict.fromkeys(str(value) for value in several))
