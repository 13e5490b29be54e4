"""What a study was asked for, checked before anything runs.

All that can be known to be wrong is refused here: the target, sizes, modes, variants, the place to
run, the cards, the folder. Whether there is a GPU is asked of a fresh interpreter (`Session.check`):
opening it here would take memory of the very card to be measured.
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
from pinchpoint.forecasting.cards import Card, card, cards

PLAIN = "baseline"  # what the one variant of a plain factory is called
USUAL = (
    "rtx4060",
    "rtx3060",
    "rtx4080",
    "rtx4090",
    "a100-40",
    "h100",
    "h200",
)  # 8, 12, 16, 24, 40, 80, 141 GB
PLACES = "fake, cpu, cuda or card:24GiB"


@dataclass(frozen=True)
class Line:
    """One line of a study: a variant with one value of every setting. flat: what it claims of its growth, in bytes a point.

    chunk: points it takes at one time, where it says so: up to there it grows whatever it claims.
    """

    variant: str | None  # None for a plain factory
    settings: dict[str, str]
    flat: float | None = None
    chunk: int | None = None


@dataclass(frozen=True)
class Ask:
    """A study's checked input. `modes` is (None,) for a plain factory: its step does what it does."""

    target: targets.Target
    framework: str
    axis: str
    sizes: tuple[int, ...]
    modes: tuple[str | None, ...]
    lines: dict[str, Line]  # by the name its points have
    settings: dict[str, str]  # the same on every line
    plain: bool
    on: str
    device: str
    card: Card  # modelled by the fake run
    cap_bytes: int | None
    cards: tuple[Card, ...]  # of the card table
    repeats: int
    warmup: int
    seed: int
    timeout_s: float
    output: Path | None

    def jobs(self) -> list[tuple[str, str | None, int]]:
        """(variant, mode, size) of every point, in the order they are run."""
        return [(variant, mode, size) for variant in self.lines for mode in self.modes for size in self.sizes]


def check(
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
    cards_wanted: str | Sequence[str] | None,
    settings: Overrides | None = None,
) -> Ask:
    """An `Ask`, or the error that says what to write instead."""
    ladder = (
        parse_ladder(sizes) if isinstance(sizes, str) else tuple(sorted({parse_size(size) for size in sizes}))
    )
    if not ladder:
        raise BadInput("no sizes", hint="give a ladder such as 5k:1M, or a list such as 1k,2k,4k,8k")
    for name, number, least in (("repeats", repeats, 1), ("warmup", warmup, 0), ("timeout", timeout_s, 1)):
        if number < least:
            raise BadInput(f"{name} {number:g} is below {least}", hint=f"give --{name} of at least {least}")
    place, cap = _place(on)
    table = _cards(cards_wanted)
    folder = _folder(output)
    found = targets.find(target)
    if found.kind == "script":
        raise BadInput(
            f"{found.text} is a script, which has no size",
            hint="study file.py:NAME, where NAME(size, device) returns a step",
        )
    loaded = targets.load(found)
    plain = not isinstance(loaded, Workload)
    if plain:
        settings_of(loaded, settings, text=found.text)
    chosen = {} if plain else resolve(found.text, loaded.settings, settings)
    lines = _lines(
        None if plain else loaded, _variants(found.text, None if plain else loaded, variants), chosen
    )
    return Ask(
        target=found,
        framework=targets.framework_of(loaded),
        axis="size" if plain else loaded.axis,
        sizes=ladder,
        modes=_modes(None if plain else loaded, modes),
        lines=lines,
        settings={name: values[0] for name, values in chosen.items() if len(values) == 1},
        plain=plain,
        on=on,
        device=place,
        card=cap or card("h200"),
        cap_bytes=None if cap is None else cap.memory_bytes - cap.context_bytes,
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
        raise BadInput(f"cannot run on {on!r}", hint=f"use --on {PLACES}")
    capped = card(text)
    if capped.memory_bytes <= capped.context_bytes:
        raise BadInput(f"{text} does not even hold CUDA's context", hint="name a larger card")
    return "cuda", capped


def _cards(wanted: str | Sequence[str] | None) -> tuple[Card, ...]:
    """The cards asked for; `all`; or by default one of each size that people have."""
    known = cards()
    if wanted is None:
        return tuple(known[name] for name in USUAL if name in known)
    if wanted == "all":
        return tuple(known.values())
    names = wanted.split(",") if isinstance(wanted, str) else wanted
    return tuple(sorted((card(name.strip()) for name in names), key=lambda c: c.memory_bytes))


def _folder(output: str | Path | None) -> Path | None:
    """The folder, which may not exist yet, but must be one that can be made and written to."""
    if output is None:
        return None
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file", hint="give -o a folder; it is made if absent")
    above = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    try:
        # Permissions do not tell all (a read-only disk, /proc): try it, and leave nothing behind.
        os.rmdir(tempfile.mkdtemp(dir=above, prefix=".pinchpoint-"))
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be written: {error.strerror}",
            hint="choose another folder for -o, or change its permissions",
        ) from error
    if find_spec("matplotlib") is None:
        raise Missing("figures need matplotlib", hint="pip install matplotlib, or leave -o out")
    return folder


def _modes(workload: Workload | None, modes: str | Sequence[str] | None) -> tuple[str | None, ...]:
    names = _names(modes)
    if workload is None:
        if names is None:
            return (None,)
        for name in names:
            if name not in MODES:
                raise BadInput(f"no mode {name!r}", hint=f"use one of: {', '.join(MODES)}")
        return names
    for name in names or ():
        workload.check_mode(name)
    return names or workload.modes


def _variants(text: str, workload: Workload | None, variants: str | Sequence[str] | None) -> tuple[str, ...]:
    names = _names(variants)
    if workload is None:
        if names not in (None, ("all",)):
            raise BadInput(
                f"{text} is a plain factory and has no variants",
                hint="leave --variants out, or define a Workload",
            )
        return (PLAIN,)
    if names is None:
        return (workload.baseline.name,)
    if names == ("all",):
        return tuple(v.name for v in workload.variants)
    return tuple(workload.variant(name).name for name in names)


def _lines(
    workload: Workload | None, names: Sequence[str], settings: dict[str, tuple[str, ...]]
) -> dict[str, Line]:
    """Every variant with every value of the settings that have several, which are then part of the line's name."""
    if workload is None:
        return {PLAIN: Line(None, {})}
    made: dict[str, Line] = {}
    several = [name for name, values in settings.items() if len(values) > 1]
    for name in names:
        variant = workload.variant(name)
        for values in product(*settings.values()):
            held = dict(zip(settings, values, strict=True))
            told = show_settings({key: held[key] for key in several})
            made[f"{name}[{told}]" if told else name] = Line(
                name, held, variant.held_bytes if variant.flat else None, variant.chunk
            )
    return made


def _names(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """A comma list or a sequence of names, without repeats; None and nothing are the same."""
    if given is None:
        return None
    parts = given.split(",") if isinstance(given, str) else given
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip())) or None
