"""What any training run is told: the choices all systems share, their schedule, and what is refused.

No framework is imported here, so that the command line can read the defaults for its help.
A run is resumed only with the choices it was begun with; those in `FREE` of its kind may change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from types import UnionType
from typing import Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

from pinchpoint.core.errors import BadInput

PRECISIONS = ("fp32", "tf32", "bf16")
LARGEST_SEED = 2**32 - 1  # times a million it is still a seed of torch's


@dataclass(frozen=True)
class Common:
    """The choices of a run, as config.json holds them; a system adds its own."""

    # These change where a run runs and what it says, never what it learns beyond the order of a sum.
    FREE: ClassVar[frozenset[str]] = frozenset({"device", "checkpoint_every", "eval_every"})
    PRECISIONS: ClassVar[tuple[str, ...]] = PRECISIONS

    data: str = ""  # what the data set is, not where
    preset: str = "small"
    model: dict[str, Any] = field(default_factory=dict)  # the whole configuration of the model, JSON values
    steps: int = 2000
    seed: int = 0
    lr: float = 2e-3
    warmup: int = 0  # steps; 0: a twentieth of all
    weight_decay: float = 1e-4
    clip: float = 1.0  # largest norm of all gradients
    ema: float = 0.0  # decay of the averaged weights; 0: none are kept
    precision: str = "fp32"
    validation: int | None = (
        None  # how many of the training split are held back to choose the best checkpoint; None: a few
    )
    device: str = "auto"
    checkpoint_every: int = 0  # steps; 0: a tenth of all
    eval_every: int = 0  # steps; 0: as often as checkpoints

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        known = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})

    def warmup_steps(self) -> int:
        return min(self.warmup or max(1, self.steps // 20), self.steps)

    def checkpoint_steps(self) -> int:
        return self.checkpoint_every or max(1, self.steps // 10)

    def eval_steps(self) -> int:
        return self.eval_every or self.checkpoint_steps()

    def unscored(self) -> tuple[str, str] | None:
        """Why no checkpoint of such a run is ever the best, and the hint; None where they are scored."""
        if self.validation == 0:
            return "nothing was held back", "use --checkpoint last, or train with --validation 1 or more"
        return None

    def rate(self, step: int) -> float:
        """The learning rate of step 1, 2, ...: a straight rise, then half a cosine down to a hundredth."""
        warmup = self.warmup_steps()
        if step <= warmup:
            return self.lr * step / warmup
        share = (step - warmup) / max(1, self.steps - warmup)
        return self.lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share)))

    def check(self) -> None:
        """Refuse choices that make no run."""
        check_among(self, precision=self.PRECISIONS)
        check_counts(self, "steps")
        for name in ("lr", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(f"--{name} {getattr(self, name):g}", hint=f"give --{name} a number above 0")
        for name in ("warmup", "weight_decay", "validation", "checkpoint_every", "eval_every", "seed"):
            if (getattr(self, name) or 0) < 0:
                option = name.replace("_", "-")
                raise BadInput(f"--{option} {getattr(self, name):g}", hint=f"give --{option} 0 or more")
        if self.seed > LARGEST_SEED:
            raise BadInput(f"--seed {self.seed}", hint=f"give at most {LARGEST_SEED}")
        if not 0 <= self.ema < 1:
            raise BadInput(f"--ema {self.ema:g}", hint="give a decay from 0 (none) to below 1, such as 0.99")


Told = TypeVar("Told", bound=Common)


def check_among(told: Common, **known: tuple[str, ...]) -> None:
    """Refuse a choice that is none of those known."""
    for name, names in known.items():
        if getattr(told, name) not in names:
            raise BadInput(f"unknown {name} {getattr(told, name)!r}", hint=f"use one of: {', '.join(names)}")


def check_counts(told: Common, *names: str) -> None:
    """Refuse counts below 1; None, where a count may be left out, is none."""
    for name in names:
        if getattr(told, name) is not None and getattr(told, name) < 1:
            option = f"--{name.replace('_', '-')}"
            raise BadInput(f"{option} {getattr(told, name)}", hint=f"give {option} at least 1")


def chosen(base: Told, choices: Mapping[str, Any]) -> Told:
    """`base` with what was chosen, checked."""
    known = [f.name for f in fields(base)]
    unknown = set(choices) - set(known)
    if unknown:
        raise BadInput(f"unknown choices: {', '.join(sorted(unknown))}", hint=f"known: {', '.join(known)}")
    made = replace(base, **choices)
    made.check()
    return made


def differing(stored: Common, asked: Mapping[str, Any]) -> list[str]:
    """`key (was 1, is 2)` for every choice that would change the result of a run that has begun.

    asked: only what was asked for, JSON values; of the model only the settings that are named.
    """
    found = []
    old = stored.to_dict()
    for name, value in asked.items():
        if name in stored.FREE or old.get(name) == value:
            continue
        if name == "model":
            found += [
                f"{key} (was {old[name].get(key)}, is {new})"
                for key, new in value.items()
                if old[name].get(key) != new
            ]
        elif name == "data":
            found.append("data (another data set)")
        else:
            found.append(f"{name} (was {old.get(name)}, is {value})")
    return found


def overrides(texts: list[str], config: type) -> dict[str, Any]:
    """`key=value` texts to values of a configuration's fields, told by their types; lists have commas between."""
    hints = {f.name: get_type_hints(config)[f.name] for f in fields(config)}
    made: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in hints:
            raise BadInput(
                f"--set {text!r} names no setting of the model",
                hint=f"use NAME=VALUE with one of: {', '.join(hints)}",
            )
        try:
            made[name] = _value(hints[name], value)
        except ValueError as error:
            raise BadInput(
                f"--set {text!r}: {error}", hint="write numbers as 0.25, lists as 64,64, switches as true"
            ) from error
    return made


def _value(kind: Any, text: str) -> Any:
    if get_origin(kind) is UnionType:  # a number, or nothing
        return None if text == "none" else _value(get_args(kind)[0], text)
    if get_origin(kind) is tuple:
        return tuple(_value(get_args(kind)[0], part) for part in text.split(",") if part)
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"{text!r} is neither true nor false")
        return text == "true"
    return kind(text) if kind in (int, float) else text
