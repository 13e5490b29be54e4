"""Settings of a training run: options declared on dataclass fields, the settings all systems share, and their
checks.

No framework is imported here, so that the command line can read defaults and help texts. A field declared
with `option` can be set by the user; any other field follows from the data. A run is resumed only with the
settings it was started with, except for those declared with `may_change`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, Self, TypeVar, get_type_hints

from pinchpoint.core.errors import BadInput
from pinchpoint.core.records.field_types import type_fault

PRECISIONS = ("fp32", "tf32", "bf16")
LARGEST_SEED = 2**32 - 1  # a million times as much is still a valid seed for torch


@dataclass(frozen=True)
class Option:
    """What the command line knows about a field: its help text, its name, and the values it takes.

    main: the field has an option of its own (`--steps`); others are set with `--set KEY=VALUE`.
    default_text: the default in words, where it is computed or depends on other settings.
    """

    help: str
    main: bool = False
    name: str | None = None  # where it is not the field's name
    default_text: str | None = None
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    may_change: bool = False  # may differ when a run is resumed

    def limits(self) -> str:
        """`at least 0 and below 1`; empty where any value is allowed."""
        words = {
            "at least": self.at_least,
            "above": self.above,
            "at most": self.at_most,
            "below": self.below,
        }
        return " and ".join(f"{word} {value:.15g}" for word, value in words.items() if value is not None)

    def allows(self, value: float) -> bool:
        """Whether a number is finite, or an integer of 64 bits, and within the limits. NaN never is."""
        return (
            (abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value))
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )


def option(default: Any = MISSING, help: str = "", **details: Any) -> Any:
    """A dataclass field that the user can set. details: fields of `Option`."""
    metadata = {"option": Option(help, **details)}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def options_of(settings: Any) -> dict[str, Option]:
    """The options of a dataclass or of an instance, by field name."""
    return {f.name: f.metadata["option"] for f in fields(settings) if "option" in f.metadata}


def changeable_options(settings: Any) -> frozenset[str]:
    """The fields whose options declare `may_change`."""
    return frozenset(name for name, declared in options_of(settings).items() if declared.may_change)


def flag(settings: Any, name: str, value: Any = None) -> str:
    """How a field is typed on the command line: `--steps 100` or `--set ema=0.9`.

    Without a value: `--steps` or `--set ema=`.
    """
    declared = options_of(settings).get(name, Option(""))
    key = declared.name or name
    text = "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    if declared.main:
        return f"--{key.replace('_', '-')} {text}".rstrip()
    return f"--set {key}={text}"


def check_options(settings: Any) -> None:
    """Refuse values outside the choices or limits that their options declare. None, where allowed, is no
    value.
    """
    for name, declared in options_of(settings).items():
        value = getattr(settings, name)
        if value is None:
            continue
        key = declared.name or name
        if declared.choices and value not in declared.choices:
            raise BadInput(
                f"The {key} {value!r} is unknown.", hint=f"Use one of: {', '.join(declared.choices)}."
            )
        if isinstance(value, int | float) and not isinstance(value, bool) and not declared.allows(value):
            limits = declared.limits() or "a finite number"
            raise BadInput(
                f"{flag(settings, name, value)} is out of range; the value must be {limits}.",
                hint=f"Give {flag(settings, name)} a value that is {limits}.",
            )


@dataclass(frozen=True)
class TrainSettings:
    """The settings of a run, as config.json holds them; each system adds its own."""

    data: str = ""  # a fingerprint of the dataset, wherever it is stored
    data_path: str = ""  # where it was last, absolute
    data_given: str = ""  # the same as the user typed it
    preset: str = option("small", "Preset of the model.", main=True)
    model: dict[str, Any] = field(default_factory=dict)  # the whole configuration of the model, JSON values
    steps: int = option(2000, "Total number of training steps.", main=True, at_least=1)
    seed: int = option(
        0, "Seed of the weights and of all random draws.", main=True, at_least=0, at_most=LARGEST_SEED
    )
    lr: float = option(2e-3, "Highest learning rate.", main=True, above=0)
    warmup: int = option(
        0,
        "Steps in which the learning rate rises to its highest value; 0: a twentieth of all steps.",
        at_least=0,
        default_text="0, a twentieth of the steps",
    )
    weight_decay: float = option(1e-4, "Weight decay of the matrices.", at_least=0)
    clip: float = option(1.0, "Largest norm of the gradient; longer ones are scaled down.", above=0)
    ema: float = option(
        0.0, "Decay of the averaged weights, such as 0.99; 0: no average is kept.", at_least=0, below=1
    )
    precision: str = option("fp32", "Precision of the matrix products.", main=True, choices=PRECISIONS)
    validation: int | None = option(
        None,
        "How many training samples are held back to choose the best checkpoint.",
        at_least=0,
        default_text="an eighth, at most 4",
    )
    device: str = option("auto", "Device: auto, cpu or cuda.", main=True, may_change=True)
    checkpoint_every: int = option(
        0,
        "Steps between checkpoints; 0: a tenth of all steps.",
        at_least=0,
        default_text="0, a tenth of the steps",
        may_change=True,
    )
    eval_every: int = option(
        0,
        "Steps between evaluations on the samples held back; 0: as often as checkpoints.",
        at_least=0,
        default_text="0, as often as checkpoints",
        may_change=True,
    )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Settings as `to_dict` gives them; other names are ignored. Raises ValueError for a wrong type."""
        hints = get_type_hints(cls)
        values = {name: value for name, value in data.items() if name in {f.name for f in fields(cls)}}
        for name, value in values.items():
            if fault := type_fault(hints[name], value, name):
                raise ValueError(fault)
        return cls(**values)

    @classmethod
    def changeable(cls) -> frozenset[str]:
        """Fields that may differ when a run is resumed: they change where and how a run computes, not what it
        learns.
        """
        return changeable_options(cls) | {"data_path", "data_given"}

    def warmup_steps(self) -> int:
        return min(self.warmup or max(1, self.steps // 20), self.steps)

    def checkpoint_steps(self) -> int:
        return self.checkpoint_every or max(1, self.steps // 10)

    def eval_steps(self) -> int:
        return self.eval_every or self.checkpoint_steps()

    def unscored(self) -> tuple[str, str] | None:
        """Why no checkpoint of this run is ever the best, and the hint; None if checkpoints are scored."""
        if self.validation == 0:
            return (
                "nothing was held back",
                f"Use --checkpoint last, or train with {flag(self, 'validation', 1)} or more.",
            )
        return None

    def rate(self, step: int) -> float:
        """The learning rate at step 1, 2, ...: a linear rise, then half a cosine down to a hundredth."""
        warmup = self.warmup_steps()
        if step <= warmup:
            return self.lr * step / warmup
        share = (step - warmup) / max(1, self.steps - warmup)
        return self.lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share)))

    def check(self) -> None:
        """Refuse settings that no run can have."""
        check_options(self)


S = TypeVar("S", bound=TrainSettings)


def apply_choices(base: S, choices: Mapping[str, Any]) -> S:
    """`base` with some fields replaced, checked."""
    known = [f.name for f in fields(base)]
    unknown = set(choices) - set(known)
    if unknown:
        raise BadInput(
            f"There is no setting {', '.join(sorted(unknown))}.", hint=f"Use one of: {', '.join(known)}."
        )
    settings = replace(base, **choices)
    settings.check()
    return settings


def differences(stored: TrainSettings, choices: Mapping[str, Any]) -> list[str]:
    """`key (was 1, is 2)` for every choice that would change the result of a run that has started.

    choices: only what the user gave, as JSON values; of the model only the settings that are named.
    """
    lines = []
    old = stored.to_dict()
    for name, value in choices.items():
        if name in stored.changeable() or old.get(name) == value:
            continue
        if name == "model":
            lines += changed_values(old[name], value)
        elif name == "data":
            lines.append("data (another dataset)")
        else:
            lines += changed_values(old, {name: value})
    return lines


def changed_values(
    stored: Mapping[str, Any], values: Mapping[str, Any], *, ignore: Collection[str] = ()
) -> list[str]:
    """`key (was 1, is 2)` for every value that differs from the stored one."""
    return [
        f"{name} (was {stored.get(name)}, is {value})"
        for name, value in values.items()
        if name not in ignore and stored.get(name) != value
    ]
