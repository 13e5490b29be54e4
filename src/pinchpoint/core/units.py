"""Sizes, bytes and times: parsing what users type, and formatting what they read.

Sizes are decimal (k = 1,000). Bytes are ints everywhere; GiB exists only in print.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Decimal

from pinchpoint.core.errors import BadInput

_SIZE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_BYTE_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_NUMBER = re.compile(
    r"^\s*([0-9][0-9_,]*\.?[0-9]*(?:e[+-]?[0-9]{1,3})?|\.[0-9]+)\s*([a-z]*)\s*$", re.IGNORECASE
)

MIB = 2**20
GIB = 2**30
BOHR_A = 0.529177210903  # angstrom, CODATA 2018


def check_seconds(name: str, seconds: float) -> None:
    """Raise if a time limit is not positive."""
    if not seconds > 0:
        raise BadInput(
            f"--{name} is {seconds:g} s, but it must be positive.", hint=f"Give --{name} more than 0 seconds."
        )


def parse_size(text: str | int, *, what: str | None = None) -> int:
    """`512k` -> 512000. Raises for zero, negative numbers and anything that is not a whole number of points.

    what: the option to name in errors, which need not count points.
    """
    name, number, example = (
        ("The size", "number of points", "a size") if what is None else (what, "number", "a number")
    )
    match = _NUMBER.match(str(text))
    unit = match.group(2).lower() if match else None
    if match is None or unit not in _SIZE_UNITS:
        raise BadInput(
            f"{name} {text!r} is not a {number}.", hint="Give a whole number above 0, such as 512k or 1M."
        )
    value = _number(match) * _SIZE_UNITS[unit]
    if value >= 2**63:
        raise BadInput(f"{name} {text!r} is too large.", hint=f"Give {example} such as 1000, 512k or 1M.")
    if value < 1 or value != int(value):
        raise BadInput(
            f"{name} {text!r} is not a whole number above 0.",
            hint=f"Give {example} such as 1000, 512k or 1M.",
        )
    return int(value)


def parse_bytes(text: str | int, *, or_card: bool = False) -> int:
    """`24GiB` -> 25769803776. Text without a unit is refused, because 24 could mean anything.

    or_card: whether the caller also accepts the name of a card, which the hint then says.
    """
    if isinstance(text, int):
        if text <= 0:
            raise BadInput(
                f"{text} is not a positive number of bytes.",
                hint="Give a positive number of bytes, such as 24GiB.",
            )
        return text
    match = _NUMBER.match(text)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in _BYTE_UNITS:
        raise BadInput(
            f"{text!r} is not a number of bytes.",
            hint="Give a number with a unit: 24GiB, 8000MiB or 24GB"
            + (", or the name of a card, such as rtx4090." if or_card else "."),
        )
    value = int(min(_number(match) * _BYTE_UNITS[unit], 2**63))
    if not 0 < value < 2**63:
        raise BadInput(
            f"{text!r} is not a positive number of bytes below 8 EiB.",
            hint="Give a positive number of bytes, such as 24GiB.",
        )
    return value


def _number(match: re.Match[str]) -> Decimal:
    # Decimal, because 1.001M is 1,001,000, and floats give 1,000,999.9999.
    return Decimal(match.group(1).replace(",", "").replace("_", ""))


def parse_ladder(text: str, *, default_count: int = 8) -> tuple[int, ...]:
    """`5k:1M[:12]` -> a geometric ladder of sizes; `1k,2k,4k` -> these sizes. Ascending, without repeats."""
    if ":" not in text:
        return tuple(sorted({parse_size(part) for part in text.split(",")}))
    parts = text.split(":")
    if len(parts) > 3:
        raise BadInput(
            f"The sizes {text!r} have more than three parts.",
            hint="Write FROM:TO or FROM:TO:COUNT, such as 5k:1M:12.",
        )
    low, high = parse_size(parts[0]), parse_size(parts[1])
    count = parse_size(parts[2]) if len(parts) == 3 else default_count
    if low >= high:
        raise BadInput(
            f"The sizes {text!r} must increase.", hint="Write the smaller size first, such as 5k:1M."
        )
    if count < 2:
        raise BadInput(
            f"There is only one size in {text!r}.",
            hint="Ask for at least 2 sizes; 3 or more give a law.",
        )
    step = math.log(high / low) / (count - 1)
    return tuple(sorted({round(low * math.exp(step * i)) for i in range(count - 1)} | {high}))


def show_bytes(value: float | None) -> str:
    if value is None:
        return "-"
    for unit, scale in (("EiB", 2**60), ("PiB", 2**50)):
        if abs(value) >= scale:
            return (
                f"{value / scale:,.0f} {unit}" if abs(value) < 1e6 * scale else f"{value / scale:.0e} {unit}"
            )
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= scale:
            return f"{value / scale:,.2f} {unit}"
    return f"{value:,.0f} B"


def show_size(value: int) -> str:
    for unit, scale in (("M", 10**6), ("k", 10**3)):
        short = f"{value / scale:g}"
        if value >= scale and Decimal(short) * scale == value:
            return short + unit
    return f"{value:,}"


def show_count(value: int, noun: str) -> str:
    """`1 picture`, `2,000 pictures`."""
    return f"{value:,} {noun}" + ("" if value == 1 else "s")


def show_choices(names: Iterable[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def show_seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 1:
        return f"{value:,.2f} s"
    return f"{value * 1e3:,.2f} ms" if value >= 1e-3 else f"{value * 1e6:,.1f} us"


def common_root(modules: Iterable[str]) -> str:
    """`Model.` if all these modules are parts of one model, whose name then says nothing.

    The parts of a sequence are numbers, which need its name.
    """
    parts = [name.partition(".") for name in modules if name]
    roots = {root for root, _, _ in parts}
    named = [rest[0].isalpha() or rest[0] == "_" for _, _, rest in parts if rest]
    return f"{roots.pop()}." if len(roots) == 1 and named and all(named) else ""
