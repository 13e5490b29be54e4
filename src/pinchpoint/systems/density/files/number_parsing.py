"""Parsing of the numbers in volumetric files: text to float64, for whole arrays.

Fixed columns as written by VASP, ASE and pymatgen are read with integer arithmetic; any other layout is read
with numpy's own parser, which is about five times slower. Both return the float64 nearest to the printed
number. Letters: N numbers, w bytes per field.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass

import numpy as np

from pinchpoint.systems.density.files.number_printing import column

_CHUNK = 16_384  # numbers per chunk, so that temporaries stay in the cache of one core
_EXACT = 22  # the largest power of ten that is exact in float64
_WRONG = 1 << 50
_NO_LEAD = int.from_bytes(b" 0.", "little")
_E_PLUS = np.uint32(int.from_bytes(b"E+00", "little"))
_FIELD = re.compile(rb" *[ -]?[0-9-]\.(\d{8,12})E[+-](\d{2,3})")
_PLAIN = b"0123456789eE+-. \t\r\n"
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class NotNumbers(ValueError):
    """The text does not contain the expected numbers. at: byte offset of the problem, -1 if unknown."""

    def __init__(self, what: str, at: int = -1) -> None:
        super().__init__(what)
        self.at = at


@dataclass(frozen=True)
class _Layout:
    """Fixed columns: a full line has `per_line` fields of `width` bytes, and `ending` more bytes."""

    per_line: int
    width: int
    ending: int
    decimals: int  # digits after the dot, 8 to 12
    powers: int  # digits of the exponent, 2 or 3

    @property
    def dot(self) -> int:
        return self.width - self.powers - 3 - self.decimals


def parse_numbers(data: np.ndarray, count: int) -> tuple[np.ndarray, int]:
    """Return the first `count` numbers of a text, (count,) float64, and the offset after their last line.

    data: (bytes,) uint8. All lines have the same number of numbers, except perhaps the last. Raises
    NotNumbers.
    """
    ends = np.flatnonzero(data[:4096] == ord("\n"))
    if len(ends) == 0:
        return parse_any(data, count), len(data)
    sample = data[: ends[0] + 1].tobytes()
    layout = _layout(sample)
    per_line = layout.per_line if layout else len(sample.split())
    if per_line == 0:
        raise NotNumbers("expected numbers, but found a blank line", 0)
    values = _parse_columns(data, count, layout) if layout else None
    if values is None:
        return _parse_by_lines(data, count, per_line, layout)
    at = len(values) // per_line * len(sample)
    if len(values) == count:
        return values, at
    try:
        rest, length = _parse_by_lines(data[at:], count - len(values), per_line, layout)
    except NotNumbers:  # parse again from the start, to count the numbers and locate the problem
        return _parse_by_lines(data, count, per_line, layout)
    return np.concatenate([values, rest]), at + length


def _layout(line: bytes) -> _Layout | None:
    """Return the fixed columns of a line, or None if `_parse_columns` does not support its layout."""
    body = line.rstrip()
    tokens = list(re.finditer(rb" *[^ ]+", body))
    width = len(tokens[0].group()) if tokens else 0
    match = _FIELD.fullmatch(tokens[0].group()) if tokens else None
    if match is None or any(len(token.group()) != width for token in tokens):
        return None
    layout = _Layout(len(tokens), width, len(line) - len(body), len(match[1]), len(match[2]))
    return layout if layout.dot >= 2 else None


def _parse_columns(data: np.ndarray, count: int, layout: _Layout) -> np.ndarray | None:
    """Return the numbers of all full lines; None if a line has another layout.

    The slow parser then reports the problem.
    """
    full = count // layout.per_line
    length = layout.per_line * layout.width + layout.ending
    if len(data) < full * length:
        return None
    lines = data[: full * length].reshape(full, length)
    numbers = np.empty(full * layout.per_line)
    tables = _tables(layout.decimals)
    step = max(1, _CHUNK // layout.per_line)
    for i in range(0, full, step):
        part = lines[i : i + step]
        if (part[:, length - layout.ending :] != lines[0, length - layout.ending :]).any():
            return None
        fields = np.ascontiguousarray(part[:, : length - layout.ending]).reshape(-1, layout.width)
        out = numbers[i * layout.per_line :][: len(fields)]
        if not _read_fields(fields, layout, tables, out):
            return None
    return numbers


@dataclass(frozen=True)
class _Tables:
    """Lookup tables of the reader."""

    # (65536,), indexed by the two characters before the dot as a little-endian word: the digit, or _WRONG.
    lead: np.ndarray
    # (65536,), same index: +1.0 or -1.0.
    sign: np.ndarray
    # (220,), indexed by exponent, + 120 if negative: the power of ten to divide by; NaN if not in float64.
    over: np.ndarray


def _tables(decimals: int) -> _Tables:
    lead = np.full(65_536, _WRONG, dtype=np.int64)
    sign = np.ones(65_536)
    for first, second in ((" ", "0123456789-"), ("-", "0123456789")):
        for char in second:
            at = ord(first) + ord(char) * 256
            lead[at] = 0 if char == "-" else int(char)
            sign[at] = -1.0 if "-" in first + char else 1.0
    power = decimals - np.concatenate([np.arange(120), -np.arange(100)])
    # Parsed from text: numpy's own powers are not always the nearest float64.
    exact = np.array([float(f"1e{i}") for i in range(_EXACT + 1)])
    over = np.where((power >= 0) & (power <= _EXACT), exact[power.clip(0, _EXACT)], np.nan)
    return _Tables(lead, sign, over)


def _read_fields(fields: np.ndarray, layout: _Layout, tables: _Tables, out: np.ndarray) -> bool:
    """Parse (N, w) characters into out: (N,). Returns False where any field has another layout.

    The fraction is read as its first digits, up to four in one word, and its last eight in another.
    """
    dot, mark = layout.dot, layout.width - layout.powers - 2
    lead = column(fields, dot - 2, "<u4") & np.uint32(0xFFFFFF)
    if (fields[:, : dot - 2] != ord(" ")).any():
        return False
    before = None
    if (lead != _NO_LEAD).any():
        if (lead >> np.uint32(16) != ord(".")).any():
            return False
        before = lead.astype(np.int64) & 0xFFFF
    last = column(fields, mark - 8, "<u8") ^ np.uint64(0x3030303030303030)
    # A byte above 9 is not a digit: adding 118 sets its highest bit, unless that is set already.
    if np.bitwise_or.reduce(last | (last + np.uint64(0x7676767676767676))) & np.uint64(0x8080808080808080):
        return False
    # Combine neighbouring digits into numbers of two digits, then four, then eight, all within one word.
    last *= np.uint64(10 * 2**8 + 1)
    last >>= np.uint64(8)
    last &= np.uint64(0x00FF00FF00FF00FF)
    last *= np.uint64(100 * 2**16 + 1)
    last >>= np.uint64(16)
    last &= np.uint64(0x0000FFFF0000FFFF)
    last *= np.uint64(10_000 * 2**32 + 1)
    last >>= np.uint64(32)
    number = last.view(np.int64)
    if layout.decimals > 8:
        first = column(fields, dot + 1, "<u4") ^ np.uint32(0x30303030)
        # Shift the characters after the digits out of the word; zeros come in before them.
        first <<= np.uint32(8 * (12 - layout.decimals))
        if np.bitwise_or.reduce(first | (first + np.uint32(0x76767676))) & np.uint32(0x80808080):
            return False
        first *= np.uint32(10 * 2**8 + 1)
        first >>= np.uint32(8)
        first &= np.uint32(0x00FF00FF)
        first *= np.uint32(100 * 2**16 + 1)
        first >>= np.uint32(16)
        number += first * np.int64(10**8)
    if before is not None:
        digit = tables.lead[before]
        if digit.max(initial=0) == _WRONG:
            return False
        number += digit * 10**layout.decimals
    power = _powers(fields, mark, layout.powers)
    if power is None:
        return False
    # Both are exact, so the quotient is rounded only once: it is the float64 nearest to the text.
    out[:] = number
    out /= tables.over[power]
    if before is not None:
        out *= tables.sign[before]
    far = np.flatnonzero(np.isnan(out))
    if len(far):
        blank = np.full((len(far), 1), ord(" "), dtype=np.uint8)
        out[far] = parse_any(np.concatenate([blank, fields[far]], axis=1).reshape(-1), len(far))
    return True


def _powers(fields: np.ndarray, mark: int, digits: int) -> np.ndarray | None:
    """Return the exponents (N,) as indices of `_Tables.over`, 119 for unknown ones; None unless E, sign,
    digits.
    """
    if digits == 3:
        if (fields[:, mark] != ord("E")).any() or not np.isin(
            fields[:, mark + 1], (ord("+"), ord("-"))
        ).all():
            return None
        each = fields[:, mark + 2 :] - np.uint8(ord("0"))
        if each.max(initial=0) > 9:
            return None
        power = each @ np.array([100, 10, 1])
        return np.where(power > 99, 119, power + 120 * (fields[:, mark + 1] == ord("-")))
    word = column(fields, mark, "<u4") ^ _E_PLUS
    # In the second byte, 0 is + and 6 is -: only bits 1 and 2 may be set, and they must be equal. The rest is
    # as above.
    unlike = ((word ^ (word >> np.uint32(1))) >> np.uint32(9)) & np.uint32(1)
    if np.bitwise_or.reduce(word | (word + np.uint32(0x76760000)) | unlike) & np.uint32(0x8080F9FF):
        return None
    word >>= np.uint32(8)
    # The third byte becomes the two digits as a number, plus 120 for a minus.
    word *= np.uint32(20 * 2**16 + 10 * 2**8 + 1)
    word >>= np.uint32(16)
    word &= np.uint32(0xFF)
    return word.astype(np.int64)


def _parse_by_lines(
    data: np.ndarray, count: int, per_line: int, layout: _Layout | None
) -> tuple[np.ndarray, int]:
    lines = -(-count // per_line)
    ends = np.flatnonzero(data == ord("\n"))
    end = int(ends[lines - 1]) + 1 if len(ends) >= lines else len(data)
    values = parse_any(data[:end], count, most=lines * per_line)
    if layout and len(ends) < lines:
        last = data[ends[-1] + 1 if len(ends) else 0 :].tobytes().rstrip()
        if len(last) % layout.width:  # a truncated number would still parse
            raise NotNumbers(
                f"the text ends in the middle of {last.split()[-1].decode()!r}", end - len(last.split()[-1])
            )
    return values, end


def parse_any(data: np.ndarray, count: int, *, most: int | None = None) -> np.ndarray:
    """Return exactly `count` numbers separated by blanks, in any format of Fortran or C.

    data: (bytes,) uint8. most: zeros may follow up to this many numbers, where a last line was filled up.
    """
    text = data.tobytes()
    if text.translate(None, _PLAIN):
        text = re.sub(rb"(?<=[0-9.])[dD](?=[+-]?\d)", b"E", text)
    sign = np.flatnonzero((data == ord("+")) | (data == ord("-")))
    if np.isin(data[sign[sign > 0] - 1], np.frombuffer(b"0123456789.", dtype=np.uint8)).any():
        # Fortran drops the E before an exponent of three digits.
        text = re.sub(rb"(?<=[0-9.])(?=[+-]\d{3}(\s|$))", b"E", text)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        try:
            values = np.fromstring(text, dtype=np.float64, sep=" ")
        except (DeprecationWarning, ValueError):
            raise _first_odd(text) from None
    solid = data > ord(" ")
    tokens = int(np.count_nonzero(solid[1:] & ~solid[:-1])) + int(solid[:1].sum())
    if len(values) != tokens or not np.isfinite(values).all():
        raise _first_odd(text)
    if count < len(values) <= (most or count) and not values[count:].any():
        return values[:count]
    if len(values) != count:
        raise NotNumbers(f"there are {len(values):,} numbers, but {count:,} are expected")
    return values


def _first_odd(text: bytes) -> NotNumbers:
    """Return why numpy could not read a text, and where."""
    for token in re.finditer(rb"\S+", text):
        if not _NUMBER.fullmatch(token[0]) or not np.isfinite(float(token[0])):
            return NotNumbers(_why(token[0].decode("latin-1")), token.start())
    return NotNumbers("the numbers cannot be separated")


def _why(token: str) -> str:
    if "*" in token:
        return f"{token!r} stands for a number that was too large for its column"
    if "nan" in token.lower():
        return f"{token!r} is not a number"
    if _NUMBER.fullmatch(token.encode("latin-1")):
        return f"{token!r} is too large for float64"
    return f"expected a number, but found {token!r}"
