"""Printing of the numbers in volumetric files: float64 to text, for whole arrays.

Numbers have 11 significant digits in Fortran's E17.11 format (`0.12345678901E+03`, `-.12345678901E+03`) and
are correctly rounded: a file that is read and written again has the same text. Letters: N numbers, R rows, w
bytes per field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

DIGITS = 11
_BIAS = 340  # added to a decimal exponent to look it up
FAR_FROM_HALF = 0.4999  # a scaled number whose fraction is nearer to a half is printed by itself
SMALLEST_SCALED = 1e-280  # the same for smaller numbers, whose scale would overflow
_CHUNK = 8_192  # numbers per chunk, so that temporaries stay in the cache of one core
_LINES = 4_096  # per chunk of `HostPrinter`


@dataclass(frozen=True)
class Tables:
    """Lookup tables of the writer, indexed by exponent + `_BIAS` unless noted."""

    first: np.ndarray  # (2048,), indexed by exponent bits: exponent + _BIAS of the smallest such number
    power: np.ndarray  # 10^exponent: the smallest number whose exponent is one higher
    scale: np.ndarray  # 10^(DIGITS - exponent)
    exponent: np.ndarray  # four characters: E, a sign and two digits, or a sign and three digits
    lead: np.ndarray  # (2,), indexed by sign bit (0 or -1): a blank, 0 or -, and a dot
    four: np.ndarray  # (10000,), indexed by number: its four digits as a little-endian word
    three: np.ndarray  # (1000,), indexed by number: its three digits and an E


@lru_cache(maxsize=2)
def tables_of(wide: bool) -> Tables:
    exponents = np.arange(-_BIAS, _BIAS + 1)
    first = np.floor((np.arange(2048) - 1023) * np.log10(2)) + 1 + _BIAS
    first[0] = _BIAS  # zero; subnormal numbers are printed one by one
    power = np.array([float(f"1e{i}") for i in exponents])
    marks = [f"{i:+04d}" if wide else f"E{i:+03d}" for i in exponents]
    number = np.arange(10_000, dtype=np.uint32)
    digits = [(number // 10 ** (3 - i) % 10 + 48) << np.uint32(8 * i) for i in range(4)]
    four = digits[0] | digits[1] | digits[2] | digits[3]
    three = (four[:1000] >> np.uint32(8)) + np.uint32(ord("E") << 24)
    scale = np.concatenate([power, np.full(DIGITS, np.inf)])[DIGITS:][::-1].copy()
    return Tables(
        first.astype(np.int64),
        power,
        scale,
        _words([m[:4] for m in marks]),
        _words([" 0. ", " -. "]),
        four,
        three,
    )


def _words(texts: list[str]) -> np.ndarray:
    return np.array([text.encode() for text in texts], dtype="S4").view("<u4")


def format_lines(values: np.ndarray, *, per_line: int) -> bytes:
    """Return values (R, n), finite float64, as text with `per_line` numbers per line.

    Each row starts a new line. A field is a blank and 17 characters. If any number needs an exponent of three
    digits, all fields have 18 characters: Fortran would drop the E, and few programs could read the file.
    """
    return characters_of(values, per_line=per_line, wide=needs_wide_fields(values)).tobytes()


def needs_wide_fields(values: np.ndarray) -> bool:
    """Whether any number needs an exponent of three digits."""
    size = np.abs(values)
    return is_wide(size.max(initial=0.0), size.min(initial=1.0, where=size > 0))


def is_wide(largest: float, least: float) -> bool:
    """Whether numbers up to `largest`, the smallest of which above zero is `least`, need wide fields."""
    return bool(largest >= 9.9e98 or least < 1e-99)


def line_chunks(values: Any, per_line: int, lines: int) -> Iterator[Any]:
    """Yield values (N,), of numpy or torch, as rows of `per_line` for so many lines at a time.

    The last chunk has the line that is not full, if there is one.
    """
    full = len(values) // per_line * per_line
    for start in range(0, full, lines * per_line):
        yield values[start : min(start + lines * per_line, full)].reshape(-1, per_line)
    if full < len(values):
        yield values[full:].reshape(1, -1)


class HostPrinter:
    """Prints the numbers of a density.

    density: (nx, ny, nz); x is fastest in the text, and every number is multiplied by `factor`. largest: the
    largest absolute value, infinite or NaN if any number is.
    """

    def __init__(self, density: np.ndarray, factor: float) -> None:
        self.values = np.array(density.transpose(2, 1, 0), dtype=np.float64, order="C").reshape(-1)
        with np.errstate(over="ignore"):
            self.values *= factor
        size = np.abs(self.values)
        self.largest, self.least = float(size.max()), float(size.min(initial=1.0, where=size > 0))

    def chunks(self, *, per_line: int) -> Iterator[memoryview]:
        """Yield the text, `per_line` numbers per line."""
        wide = is_wide(self.largest, self.least)
        for numbers in line_chunks(self.values, per_line, _LINES):
            yield characters_of(numbers, per_line=per_line, wide=wide).reshape(-1).data


def characters_of(values: np.ndarray, *, per_line: int, wide: bool) -> np.ndarray:
    """Return the text of `format_lines` as bytes (R, characters per row). wide: fields of 18 characters."""
    rows, count = values.shape
    text = np.empty((rows, count * (19 if wide else 18) + -(-count // per_line)), dtype=np.uint8)
    if not text.size:
        return text
    tables = tables_of(wide)
    step = max(1, _CHUNK // count)
    for start in range(0, rows, step):
        _write_lines(values[start : start + step], text[start : start + step], per_line, tables, wide)
    return text


def _write_lines(values: np.ndarray, text: np.ndarray, per_line: int, tables: Tables, wide: bool) -> None:
    """Write the lines of values (R, n) to text (R, characters)."""
    rows, count = values.shape
    fields = _fields(np.ascontiguousarray(values, dtype=np.float64).reshape(-1), tables, wide)
    width = fields.shape[1]
    fields = fields.reshape(rows, count * width)
    full, rest = divmod(count, per_line)
    line = per_line * width
    head = text[:, : full * (line + 1)].reshape(rows, full, line + 1)
    head[:, :, :line] = fields[:, : full * line].reshape(rows, full, line)
    head[:, :, line] = ord("\n")
    if rest:
        text[:, full * (line + 1) : -1] = fields[:, full * line :]
        text[:, -1] = ord("\n")


def _fields(values: np.ndarray, tables: Tables, wide: bool) -> np.ndarray:
    """Return the characters (N, w) of values (N,)."""
    size = np.abs(values)
    bits = values.view(np.int64)
    exponent = tables.first[size.view(np.int64) >> 52]
    exponent += (
        size >= tables.power[exponent]
    )  # that of the smallest such number, so it is at most one too low
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = size * tables.scale[exponent]
        whole = np.rint(scaled)
        # The product is rounded once or twice, so near a half its integer part may be wrong. Those few are
        # printed one by one.
        odd = np.abs(scaled - whole) > FAR_FROM_HALF
    if wide:
        odd |= (size < SMALLEST_SCALED) & (size > 0)
    if len(at := np.flatnonzero(odd)):
        whole[at], exponent[at] = exact_digits(size[at])
    over = np.flatnonzero(whole >= 10.0**DIGITS)
    whole[over] = 10.0 ** (DIGITS - 1)
    exponent[over] += 1
    # Quotients of integers below 2^53 are rounded correctly, so their integer parts are exact. Division of
    # int64 is five times as slow.
    top = np.floor(whole / 1000)
    first = np.floor(top / 10_000)
    low, second, first = (part.astype(np.int64) for part in (whole - top * 1000, top - first * 10_000, first))
    # Each word has four characters; if that is one too many, the next word overwrites the last.
    fields = np.empty((len(values), 19 if wide else 18), dtype=np.uint8)
    column(fields, 0, "<u4")[:] = tables.lead.take(bits >> 63, mode="wrap")
    column(fields, 3, "<u4")[:] = tables.four.take(first)
    column(fields, 7, "<u4")[:] = tables.four.take(second)
    column(fields, 11, "<u4")[:] = tables.three.take(low)
    column(fields, 15 if wide else 14, "<u4")[:] = tables.exponent.take(exponent)
    return fields


def exact_digits(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the digits of positive numbers (N,), printed one by one, and their exponents + `_BIAS`."""
    texts = [f"{size:.{DIGITS - 1}E}".partition("E") for size in sizes.tolist()]
    digits = [int(mantissa.replace(".", "")) for mantissa, _, _ in texts]
    return np.array(digits, np.float64), np.array([int(power) + 1 + _BIAS for _, _, power in texts])


def column(fields: np.ndarray, at: int, dtype: str) -> np.ndarray:
    """Return a view (N,) of the numbers at byte `at` of each field."""
    rows, width = fields.shape
    return np.ndarray((rows,), dtype=dtype, buffer=fields.data, offset=at, strides=(width,))
