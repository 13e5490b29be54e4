"""Named GPUs: the bytes that a process can really use, and what CUDA and cuBLAS take from them.

`memory_bytes` is the total that CUDA reports to a process, which is 1 to 8 % below the nominal size. Where
drivers differ, the smallest reported total is used, so that "fits" is never too optimistic. The context is
what a process takes beside torch's allocator; it is given by two numbers, the usual one and a high one, which
decides what fits. The table is cards.json beside this module; a user's file can add or replace entries.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from pinchpoint.backends.torch import versions
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import parse_json
from pinchpoint.core.units import MIB, parse_bytes, show_choices

CARDS_VARIABLE = "PINCHPOINT_CARDS"
_FIELDS = (
    "title",
    "memory",
    "capability",
    "processors",
    "bandwidth",
    "context",
    "context_high",
    "context_source",
    "cublas_workspace",
    "cublaslt_workspace",
)
ESTIMATED = "estimated from the number of multiprocessors"
# Threads that a multiprocessor runs at one time, by compute capability; 2,048 where not listed.
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
# FLOPs per second of one multiprocessor: in products of 16-bit numbers on its tensor cores, and of 32-bit
# numbers, by the first part of the compute capability. From public data sheets; of cards of one generation,
# which differ by up to a factor of two, a middle one.
_HALF_FLOPS = {7: 1.5e12, 8: 1.9e12, 9: 7.5e12, 10: 15e12, 12: 2e12}
_SINGLE_FLOPS = {7: 0.18e12, 8: 0.35e12, 9: 0.5e12, 10: 0.5e12, 12: 0.6e12}
_BANDWIDTH = 10  # GB/s per multiprocessor of a card whose bandwidth is not given
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
_BYTES = re.compile(r"[0-9][0-9.,_]*\s*([kmgt]i?)?b", re.IGNORECASE)


@dataclass(frozen=True)
class Card:
    """One GPU. Workspaces are the sizes that torch requests per cuBLAS handle and stream."""

    name: str
    title: str
    memory_bytes: int  # total as CUDA reports it
    capability: tuple[int, int]
    processors: int  # streaming multiprocessors, which determine the staging buffers of reductions
    cublas_workspace_bytes: int
    cublaslt_workspace_bytes: int
    context_bytes: int
    context_high_bytes: int
    context_source: str = ESTIMATED  # where the context was observed, if it was
    bandwidth: int = 0  # GB/s of its memory, from the data sheet

    @property
    def half_flops(self) -> float:
        """The most operations per second on 16-bit numbers, roughly."""
        return _HALF_FLOPS.get(self.capability[0], _HALF_FLOPS[8]) * self.processors

    @property
    def single_flops(self) -> float:
        """The most operations per second on 32-bit numbers, roughly."""
        return _SINGLE_FLOPS.get(self.capability[0], _SINGLE_FLOPS[8]) * self.processors

    @property
    def usable_bytes(self) -> int:
        """What is left for torch's allocator under the high end of the context."""
        return self.memory_bytes - self.context_high_bytes

    @property
    def estimated(self) -> bool:
        return self.context_source == ESTIMATED


def cards() -> dict[str, Card]:
    """The built-in cards and those of the user, by name, smallest first."""
    table = resources.files("pinchpoint.forecasting").joinpath("cards.json")
    by_name = _parse(table.read_text(encoding="utf-8"), "cards.json of pinchpoint")
    path = user_file()
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(
                f"Cannot read the card file {path}: {error}.",
                hint=f"Fix the file, or unset {CARDS_VARIABLE}.",
            ) from error
        by_name |= _parse(text, str(path))
    return dict(sorted(by_name.items(), key=lambda item: (item[1].memory_bytes, item[0])))


def select_cards(names: str | Sequence[str]) -> list[Card]:
    """All cards for `all`, otherwise the named ones (a text separates them by commas); smallest first."""
    if names == "all":
        return list(cards().values())
    texts = names.split(",") if isinstance(names, str) else names
    return sorted((card(text.strip()) for text in texts), key=lambda c: c.memory_bytes)


def card(text: str) -> Card:
    """The card with this name (`rtx4090`, `RTX 4090`), or a nameless card (`24GiB`, `card:24GiB`).

    A nameless card is like an H200, or like another with `24GiB like a100-80`.
    """
    by_name = cards()
    text = text.strip().removeprefix("card:")
    memory, like, other_name = text.partition(" like ")
    if like and _BYTES.fullmatch(memory.strip()):
        return nameless(text, parse_bytes(memory), like=card(other_name))
    name = re.sub(r"[\s_]+", "", text.lower())
    if name in by_name:
        return by_name[name]
    for other in by_name.values():  # "RTX 3060 Laptop" is rtx3060-laptop
        if name == other.name.replace("-", ""):
            return other
    if _BYTES.fullmatch(text.strip()):
        return nameless(text.strip(), parse_bytes(text), like=by_name["h200"])
    near = [other for other in by_name if name and name in other] or get_close_matches(name, by_name, n=4)
    raise BadInput(
        f"There is no card {text!r}.",
        hint=f"Did you mean {show_choices(near[:4])}?"
        if near
        else "Run `pinchpoint list cards` to see the names, or give bytes, such as 24GiB.",
    )


def budget_card(budget: str | int) -> Card:
    """The card of a budget: a named card, or one that is known only by its bytes."""
    if isinstance(budget, int) or (budget.strip()[:1].isdigit() and " like " not in budget):
        return card(f"{parse_bytes(budget, or_card=True)}B")
    return card(budget)


def nameless(name: str, memory_bytes: int, *, like: Card) -> Card:
    """A card that is known only by its bytes; workspaces and context are those of `like`."""
    source = f"{ESTIMATED} of the {like.name}"
    return replace(
        like, name=name, title=f"any card of {name}", memory_bytes=memory_bytes, context_source=source
    )


def assumption(card: Card) -> str | None:
    """A note on what is assumed of a card that was given as bytes alone; None for others."""
    if not _BYTES.fullmatch(card.name):
        return None
    return (
        f"{card.name} is taken to be a card like the h200, with its kernels, workspaces, and context; "
        f"for a card like another, give for example '{card.name} like rtx4090'"
    )


def of_capability(capability: tuple[int, int]) -> Card:
    """The largest card of this compute capability; of the next lower one, if there is none."""
    by_capability = {one.capability: one for one in cards().values()}  # smallest first: the largest remains
    at_most = [one for one in by_capability if one <= capability]
    return by_capability[max(at_most) if at_most else min(by_capability)]


def user_file() -> Path | None:
    """The user's card file: $PINCHPOINT_CARDS, or cards.json in the configuration folder if it exists."""
    path_text = os.environ.get(CARDS_VARIABLE)
    if path_text:
        return Path(path_text).expanduser()
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    path = Path(folder).expanduser() / "pinchpoint" / "cards.json"
    return path if path.is_file() else None


def cublas_workspace(capability: tuple[int, int], rules: versions.Rules | None = None) -> int:
    """torch's default per handle: 32 MiB on Hopper and since 2.12 on Blackwell, else `:4096:2:16:8` (KiB).

    rules: those of a version of torch, by default of the installed one.
    """
    majors = (rules or versions.rules()).large_workspace_majors
    return 32 * MIB if capability[0] in majors else (4096 * 2 + 16 * 8) * 1024


def estimated_context(capability: tuple[int, int], processors: int) -> tuple[int, int]:
    """The usual and the high context of a training process on a card where it was not observed.

    CUDA sets aside local memory for every thread that the card can run at one time: on an H200, 527 MiB
    before anything is loaded, which is 2 KiB per thread. Libraries and their kernels come on top. Both laws
    are fitted to the few cards of cards.json that name a source; no observed context is above the high one,
    and on the H200 it also covers cuFFT, cuSOLVER, eight streams, and the profiler.
    """
    threads = _THREADS.get(capability, 2048) * processors
    return int(1.1 * 2048 * threads) + 48 * MIB, int(1.7 * 2048 * threads) + 64 * MIB


def _parse(text: str, where: str) -> dict[str, Card]:
    try:
        table = parse_json(text)
    except ValueError as error:
        raise _damaged(where, f"is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise _damaged(where, "is not an object of cards by name")
    rules = versions.rules()  # once for all cards: torch's version is read from a long file
    return {name: _card(name, entry, where, rules) for name, entry in table.items()}


def _card(name: str, entry: Any, where: str, rules: versions.Rules) -> Card:
    if not _NAME.fullmatch(name):
        raise _damaged(
            where, f"has a card named {name!r}, but names consist of lower-case letters, digits, '-' and '.'"
        )
    if not isinstance(entry, dict) or "memory" not in entry:
        raise _damaged(where, f"has a card {name} without memory")
    unknown = sorted(set(entry) - set(_FIELDS))
    if unknown:
        raise _damaged(
            where, f"has unknown fields of {name}: {', '.join(unknown)} (known: {', '.join(_FIELDS)})"
        )
    capability = entry.get("capability", [8, 0])
    if not (
        isinstance(capability, list)
        and len(capability) == 2
        and all(type(part) is int for part in capability)
    ):
        raise _damaged(
            where, f"gives a bad value for {name}: capability {capability!r} is not a pair such as [8, 9]"
        )
    pair = (capability[0], capability[1])
    processors = _whole_number(entry.get("processors", 108), name, "processors", where)
    bandwidth = _whole_number(entry.get("bandwidth", _BANDWIDTH * processors), name, "bandwidth", where)
    usual, high = estimated_context(pair, processors)
    if "context" in entry:
        usual = _bytes(entry["context"], name, "context", where)
        high = max(usual, high) if "context_source" in entry else usual
    if "context_high" in entry:
        high = _bytes(entry["context_high"], name, "context_high", where)
    if high < usual:
        raise _damaged(where, f"gives a bad value for {name}: context_high is below context")
    return Card(
        name=name,
        title=str(entry.get("title", name)),
        memory_bytes=_bytes(entry["memory"], name, "memory", where),
        capability=pair,
        processors=processors,
        cublas_workspace_bytes=_bytes(
            entry.get("cublas_workspace", cublas_workspace(pair, rules)), name, "cublas_workspace", where
        ),
        cublaslt_workspace_bytes=_bytes(
            entry.get("cublaslt_workspace", MIB), name, "cublaslt_workspace", where
        ),
        context_bytes=usual,
        context_high_bytes=high,
        context_source=str(entry.get("context_source", "the card file" if "context" in entry else ESTIMATED)),
        bandwidth=bandwidth,
    )


def _whole_number(value: Any, name: str, field: str, where: str) -> int:
    if type(value) is not int or value < 1:
        raise _damaged(
            where, f"gives a bad value for {name}: {field} {value!r} is not a whole number above 0"
        )
    return value


def _bytes(value: Any, name: str, field: str, where: str) -> int:
    """Bytes as an int or with a unit. A bool is an int to Python, but it is refused here."""
    try:
        if type(value) not in (int, str):
            raise BadInput(f"{value!r} is not a number of bytes.", hint="")
        return parse_bytes(value)
    except BadInput as error:
        raise _damaged(where, f"gives a bad value for {name}, {field}: {error.what.rstrip('.')}") from error


def _damaged(where: str, why: str) -> BadInput:
    example = '{"mycard": {"memory": "23.5GiB", "capability": [8, 9], "context": "480MiB"}}'
    return BadInput(
        f"The card file {where} is wrong: it {why}.",
        hint=f"Write, for example, {example}; see docs/reference/cards.md.",
    )
