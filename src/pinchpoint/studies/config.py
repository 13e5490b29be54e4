"""The configuration of a study, checked before anything runs.

Everything that can be wrong without running is refused here: the target, sizes, modes, variants, the
place to run, the cards and the folder. Only the presence of a GPU is checked elsewhere, in a fresh
interpreter (`Session.check_device`): opening it here would take memory of the card to be measured.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from pinchpoint.core import targets
from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.core.settings import Overrides, resolve, show_settings
from pinchpoint.core.units import parse_ladder, parse_size
from pinchpoint.core.workload import MODES, Workload, settings_of
from pinchpoint.forecasting.cards import Card, card, cards, select_cards

PLAIN_VARIANT = "baseline"  # the name of the only variant of a plain factory
# 8, 12, 16, 24, 40, 80 and 141 GB.
DEFAULT_CARDS = ("rtx4060", "rtx3060", "rtx4080", "rtx4090", "a100-40", "h100", "h200")
PLACES = "fake, cpu, cuda or card:24GiB"


@dataclass(frozen=True)
class Line:
    """One line of a study: a variant with one value of every setting.

    flat: the largest growth it declares, in bytes per point; None if it declares nothing.
    chunk: the points it processes at one time, if declared; every variant grows up to that size.
    """

    variant: str | None  # None for a plain factory
    settings: dict[str, str]
    flat: float | None = None
    chunk: int | None = None


@dataclass(frozen=True)
class StudyConfig:
    """The checked input of a study.

    `modes` is (None,) for a plain factory, whose step has no mode to choose.
    """

    target: targets.Target
    framework: str
    axis: str
    sizes: tuple[int, ...]
    modes: tuple[str | None, ...]
    lines: dict[str, Line]  # by the variant name in its points
    settings: dict[str, str]  # those that all lines share
    plain: bool
    on: str
    device: str
    card: Card  # the one that the fake run models
    cap_bytes: int | None
    cards: tuple[Card, ...]  # those of the card table
    repeats: int
    warmup: int
    seed: int
    timeout_s: float
    output: Path | None

    @property
    def point_limit_s(self) -> float:
        """The longest time of one point: a forecast, and a run beside it if it is measured."""
        return self.timeout_s if self.device == "fake" else 2 * self.timeout_s

    def jobs(self) -> list[tuple[str, str | None, int]]:
        """Return (variant, mode, size) of every point, in the order of the runs."""
        return [(variant, mode, size) for variant in self.lines for mode in self.modes for size in self.sizes]


def check_config(
    target: Any,
    *,
    sizes: str | Sequence[int | str],
    modes: str | Sequence[str] | None,
    variants: str | Sequence[str] | None,
    on: str,
    output: str | Path | None,
    repeats: int,
    warmup: int,
    seed: int,
    timeout_s: float,
    card_names: str | Sequence[str] | None,
    settings: Overrides | None = None,
) -> StudyConfig:
    """Return the checked configuration, or raise an error that says what to write instead."""
    ladder = (
        parse_ladder(sizes) if isinstance(sizes, str) else tuple(sorted({parse_size(size) for size in sizes}))
    )
    if not ladder:
        raise BadInput(
            "The study has no sizes.", hint="Give a ladder such as 5k:1M, or a list such as 1k,2k,4k,8k."
        )
    for name, number, least in (("repeats", repeats, 1), ("warmup", warmup, 0), ("timeout", timeout_s, 1)):
        if number < least:
            raise BadInput(
                f"--{name} is {number:g}, but must be at least {least}.",
                hint=f"Set --{name} to {least} or more.",
            )
    place, cap = _place(on)
    table = _cards(card_names)
    folder = _folder(output)
    resolved_target = targets.find(target)
    if resolved_target.kind == "script":
        raise BadInput(
            f"{resolved_target.text} is a script, which has no size to study.",
            hint="Study a function instead: file.py:NAME, where NAME(size, device) returns a step.",
        )
    thing = targets.load(resolved_target)
    plain = not isinstance(thing, Workload)
    if plain:
        settings_of(thing, settings, text=resolved_target.text)
    values = {} if plain else resolve(resolved_target.text, thing.settings, settings)
    lines = _lines(
        None if plain else thing, _variants(resolved_target.text, None if plain else thing, variants), values
    )
    return StudyConfig(
        target=resolved_target,
        framework=targets.framework_of(thing),
        axis="size" if plain else thing.axis,
        sizes=ladder,
        modes=_modes(None if plain else thing, modes),
        lines=lines,
        settings={name: choices[0] for name, choices in values.items() if len(choices) == 1},
        plain=plain,
        on=on,
        device=place,
        card=cap or card("h200"),
        cap_bytes=None if cap is None else cap.usable_bytes,
        cards=table,
        repeats=repeats,
        warmup=warmup,
        seed=seed,
        timeout_s=timeout_s,
        output=folder,
    )


def _place(on: str) -> tuple[str, Card | None]:
    if on in ("fake", "cpu", "cuda"):
        return on, None
    word, colon, text = on.partition(":")
    if word != "card" or not colon or not text:
        raise BadInput(f"A study cannot run on {on!r}.", hint=f"Use --on {PLACES}.")
    cap = card(text)
    if cap.usable_bytes <= 0:
        raise BadInput(f"The card {text} is too small even for the CUDA context.", hint="Name a larger card.")
    return "cuda", cap


def _cards(names: str | Sequence[str] | None) -> tuple[Card, ...]:
    """Return the named cards, every known one for `all`, and by default one of each common size."""
    if names is None:
        by_name = cards()
        return tuple(by_name[name] for name in DEFAULT_CARDS if name in by_name)
    return tuple(select_cards(names))


def _folder(output: str | Path | None) -> Path | None:
    """Return the folder, which may not exist yet but must be one that can be created and written to."""
    if output is None:
        return None
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise BadInput(
            f"{folder} is a file, but -o needs a folder.",
            hint="Give -o a folder; it is created if it does not exist.",
        )
    above = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    try:
        # Permissions do not show a read-only disk or /proc: try to write, and leave nothing behind.
        os.rmdir(tempfile.mkdtemp(dir=above, prefix=".pinchpoint-"))
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be written: {error.strerror}.",
            hint="Choose another folder for -o, or change its permissions.",
        ) from error
    if find_spec("matplotlib") is None:
        raise Missing(
            "The figures of a study need matplotlib, which is not installed.",
            hint="Run `pip install matplotlib`, or leave out -o.",
        )
    return folder


def _modes(workload: Workload | None, modes: str | Sequence[str] | None) -> tuple[str | None, ...]:
    names = _names(modes)
    if workload is None:
        if names is None:
            return (None,)
        for name in names:
            if name not in MODES:
                raise BadInput(f"There is no mode {name!r}.", hint=f"Use one of {', '.join(MODES)}.")
        return names
    for name in names or ():
        workload.check_mode(name)
    return names or workload.modes


def _variants(text: str, workload: Workload | None, variants: str | Sequence[str] | None) -> tuple[str, ...]:
    names = _names(variants)
    if workload is None:
        if names not in (None, ("all",)):
            raise BadInput(
                f"{text} is a plain factory and has no variants.",
                hint="Leave out --variants, or define a Workload.",
            )
        return (PLAIN_VARIANT,)
    if names is None:
        return (workload.baseline.name,)
    if names == ("all",):
        return tuple(v.name for v in workload.variants)
    return tuple(workload.variant(name).name for name in names)


def _lines(
    workload: Workload | None, names: Sequence[str], settings: dict[str, tuple[str, ...]]
) -> dict[str, Line]:
    """Combine every variant with every value of each setting.

    Settings with several values become part of the line's name.
    """
    if workload is None:
        return {PLAIN_VARIANT: Line(None, {})}
    lines: dict[str, Line] = {}
    several = [name for name, values in settings.items() if len(values) > 1]
    for name in names:
        variant = workload.variant(name)
        for values in product(*settings.values()):
            combination = dict(zip(settings, values, strict=True))
            suffix = show_settings({key: combination[key] for key in several})
            lines[f"{name}[{suffix}]" if suffix else name] = Line(
                name, combination, variant.held_bytes if variant.flat else None, variant.chunk
            )
    return lines


def _names(names: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Split a comma-separated list, or take a sequence, of names and drop repeats; if empty, return None."""
    if names is None:
        return None
    parts = names.split(",") if isinstance(names, str) else names
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip())) or None
