"""Printing of the numbers in volumetric files: float64 to text, for whole arrays.

Numbers have 11 significant digits in Fortran's E17.11 format (`0.12345678901E+03`, `-.12345678901E+03`) and
are correctly rounded: a file that is read and written again has the same text. Letters: N numbers, R rows, w
bytes per field.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

DIGITS = 11
_BIAS = 340  # added to a decimal exponent to look it up
_CHUNK = 8_192  # numbers per chunk, so that temporaries stay in the cache of one core


@dataclass(frozen=True)
class _Tables:
    """Lookup tables of the writer, indexed by exponent + `_BIAS` unless noted; building them takes 0.3 ms."""

    first: np.ndarray  # (2048,), indexed by exponent bits: exponent + _BIAS of the smallest such number
    power: np.ndarray  # 10^exponent: the smallest number whose exponent is one higher
    scale: np.ndarray  # 10^(DIGITS - exponent)
    exponent: np.ndarray  # four characters: E, a sign and two digits, or a sign and three digits
    lead: np.ndarray  # (2,), indexed by sign bit (0 or -1): a blank, 0 or -, and a dot
    four: np.ndarray  # (10000,), indexed by number: its four digits as a little-endian word
    three: np.ndarray  # (1000,), indexed by number: its three digits and an E


def _tables(wide: bool) -> _Tables:
    exponents = np.arange(-_BIAS, _BIAS + 1)
    first = np.floor((np.arange(2048) - 1023) * np.log10(2)) + 1 + _BIAS
    first[0] = _BIAS  # zero; subnormal numbers are printed one by one
    power = np.array([float(f"1e{i}") for i in exponents])
    marks = [f"{i:+04d}" if wide else f"E{i:+03d}" for i in exponents]
    number = np.arange(10_000, dtype=np.uint32)
    digits = [(number // 10 ** (3 - i) % 10 + 48) << np.uint32(8 * i) for i in range(4)]
    four = digits[0] | digits[1] | digits[2] | digits[3]
    three = (four[:1000] >> np.uint32(8)) + np.uint32(ord("E") << 24)
    scale = np.concatenate([power, np.full(DIGITS, np.inf)])[DIGITS:][::-1]
    return _Tables(
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
    return bool(size.max(initial=0.0) >= 9.9e98 or size.min(initial=1.0, where=size > 0) < 1e-99)


def characters_of(values: np.ndarray, *, per_line: int, wide: bool) -> np.ndarray:
    """Return the text of `format_lines` as bytes (R, characters per row). wide: fields of 18 characters."""
    rows, count = values.shape
    text = np.empty((rows, count * (19 if wide else 18) + -(-count // per_line)), dtype=np.uint8)
    if not text.size:
        return text
    tables = _tables(wide)
    step = max(1, _CHUNK // count)
    for start in range(0, rows, step):
        _write_lines(values[start : start + step], text[start : start + step], per_line, tables, wide)
    return text


def _write_lines(values: np.ndarray, text: np.ndarray, per_line: int, tables: _Tables, wide: bool) -> None:
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


def _fields(values: np.ndarray, tables: _Tables, wide: bool) -> np.ndarray:
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
        odd = np.abs(scaled - whole) > 0.4999
    if wide:
        odd |= (size < 1e-280) & (size > 0)
    for i in np.flatnonzero(odd):
        mantissa, _, power = f"{size[i]:.{DIGITS - 1}E}".partition("E")
        whole[i], exponent[i] = int(mantissa.replace(".", "")), int(power) + 1 + _BIAS
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


def column(fields: np.ndarray, at: int, dtype: str) -> np.ndarray:
    """Return a view (N,) of the numbers at byte `at` of each field."""
    rows, width = fields.shape
    return np.ndarray((rows,), dtype=dtype, buffer=fields.data, offset=at, strides=(width,))
