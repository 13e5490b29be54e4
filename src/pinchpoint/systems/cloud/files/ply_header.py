"""The header of a PLY file: its original lines and the elements that they declare.

Lines are kept, including comments and their order; only counts may change. No memory is allocated based on
the counts of a header.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np

from pinchpoint.core.errors import BadInput

_TYPES = {
    "char": "i1",
    "uchar": "u1",
    "short": "i2",
    "ushort": "u2",
    "int": "i4",
    "uint": "u4",
    "float": "f4",
    "double": "f8",
    "int8": "i1",
    "uint8": "u1",
    "int16": "i2",
    "uint16": "u2",
    "int32": "i4",
    "uint32": "u4",
    "int64": "i8",
    "uint64": "u8",
    "float32": "f4",
    "float64": "f8",
}
_NAMES = {
    "f4": "float",
    "f8": "double",
    "i4": "int",
    "i2": "short",
    "i1": "char",
    "u4": "uint",
    "u2": "ushort",
    "u1": "uchar",
}
_ORDERS = {"ascii": "<", "binary_little_endian": "<", "binary_big_endian": ">"}
_LONGEST = 2**20  # bytes of the longest header that is accepted
_MOST = 2**40  # the largest count of an element that is accepted
_DIGITS = 20  # of the longest count; Python refuses to convert numbers of thousands of digits
_POINTING = ("face", "edge", "tristrips", "multi_patch")
_HINT = "Write the file again as binary PLY."
_CLASS_COMMENT = re.compile(r"comment\s+class\s+\d+\s")


@dataclass(frozen=True)
class Element:
    name: str
    count: int
    dtype: np.dtype  # structured, without list properties
    lists: tuple[str, ...]  # names of the list properties

    @property
    def points_at_vertices(self) -> bool:
        return self.count > 0 and (bool(self.lists) or self.name in _POINTING)


@dataclass(frozen=True)
class Header:
    lines: tuple[str, ...]  # from "ply" to before "end_header"
    form: str  # "ascii", "binary_little_endian" or "binary_big_endian"
    elements: tuple[Element, ...]

    @property
    def ascii(self) -> bool:
        return self.form == "ascii"

    def place(self, name: str) -> int:
        return [element.name for element in self.elements].index(name)

    def with_count(self, name: str, count: int) -> Header:
        """Return the header with a new count for one element."""
        lines = tuple(
            f"element {name} {count}" if line.split()[:2] == ["element", name] else line
            for line in self.lines
        )
        elements = tuple(
            replace(element, count=count) if element.name == name else element for element in self.elements
        )
        return replace(self, lines=lines, elements=elements)

    def with_columns(self, name: str, add: Mapping[str, str]) -> Header:
        """Return the header with scalar properties at the end of one element, in place of those it has.

        add: NumPy types by name, without the byte order.
        """
        lines, inside = [], False
        for line in self.lines:
            words = line.split()
            if words[:1] == ["element"]:
                if inside:
                    lines += _property_lines(add)
                inside = words[1] == name
            if not (inside and words[:1] == ["property"] and words[-1] in add):
                lines.append(line)
        lines += _property_lines(add) if inside else []
        order = _ORDERS[self.form]
        elements = []
        for element in self.elements:
            if element.name == name:
                others = [(key, element.dtype[key]) for key in element.dtype.names or () if key not in add]
                dtype = np.dtype([*others, *((key, order + kind) for key, kind in add.items())])
                element = replace(element, dtype=dtype)
            elements.append(element)
        return replace(self, lines=tuple(lines), elements=tuple(elements))

    def with_comments(self, comments: Iterable[str]) -> Header:
        """Return the header with comments after the line of the format."""
        place = next(number for number, line in enumerate(self.lines) if line.split()[:1] == ["format"]) + 1
        texts = [f"comment {_header_text(' '.join(comment.splitlines()))}" for comment in comments]
        return replace(self, lines=(*self.lines[:place], *texts, *self.lines[place:]))

    def without_classes(self) -> Header:
        """Return the header without the comments that name the classes of an earlier prediction."""
        lines = [line for line in self.lines if not _CLASS_COMMENT.match(line)]
        return replace(self, lines=tuple(lines))

    def only(self, name: str) -> Header:
        """Return the header without the other elements."""
        lines, inside = [], True
        for line in self.lines:
            words = line.split()
            if words and words[0] == "element":
                inside = words[1] == name
            if inside or not words or words[0] not in ("element", "property"):
                lines.append(line)
        return replace(
            self, lines=tuple(lines), elements=tuple(each for each in self.elements if each.name == name)
        )

    def text(self) -> bytes:
        return "".join(f"{line}\n" for line in (*self.lines, "end_header")).encode("latin-1")


def plain_header(dtype: np.dtype, count: int) -> Header:
    """Return the header of a binary file that contains only vertices of this dtype."""
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {count}"]
    lines += _property_lines({name: dtype[name].str[1:] for name in dtype.names or ()})
    return Header(tuple(lines), "binary_little_endian", (Element("vertex", count, dtype, ()),))


def _property_lines(kinds: Mapping[str, str]) -> list[str]:
    # Names that Latin-1 has may come from another header, and are its bytes.
    names = {name: name if max(name, default="") < "\u0100" else _header_text(name) for name in kinds}
    return [f"property {_NAMES[kind]} {names[name]}" for name, kind in kinds.items()]


def _header_text(text: str) -> str:
    """Return a text whose UTF-8 bytes are written to the header, which is read and written as Latin-1."""
    return text.encode().decode("latin-1")


def read_header(file: BinaryIO, path: str) -> Header:
    """Read the header of an open file, leaving it at the first byte of data."""
    if file.read(3) != b"ply":
        raise BadInput(f"{path} is not a PLY file: it does not start with 'ply'.", hint="Give a PLY file.")
    file.seek(0)
    lines: list[str] = []
    left = _LONGEST
    while True:
        line = file.readline(left)
        left -= len(line)
        if not line.endswith(b"\n"):
            raise BadInput(
                f"The header of {path} is truncated: it has no end_header.",
                hint="Copy or write the file again.",
            )
        text = line.decode("latin-1").rstrip("\r\n")
        if text.strip() == "end_header":
            return _parse_lines(tuple(lines), path)
        lines.append(text)


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= _DIGITS and int(text) <= _MOST


def _parse_lines(lines: tuple[str, ...], path: str) -> Header:
    form = ""
    heads: list[tuple[str, int]] = []
    properties: list[list[tuple[str, str]]] = []
    lists: list[list[str]] = []
    for number, line in enumerate(lines[1:], start=2):
        # Split as bytes: some bytes of UTF-8 are spaces in Latin-1.
        match [word.decode("latin-1") for word in line.encode("latin-1").split()]:
            case [] | ["comment" | "obj_info", *_]:
                pass
            case ["format", kind, _] if kind in _ORDERS and not form:
                form = kind
            case ["element", name, count] if _is_count(count) and name not in dict(heads):
                heads.append((name, int(count)))
                properties.append([])
                lists.append([])
            case ["property", "list", size, kind, name] if heads and size in _TYPES and kind in _TYPES:
                lists[-1].append(name)
            case ["property", kind, name] if heads and kind in _TYPES and name not in dict(properties[-1]):
                properties[-1].append((name, _TYPES[kind]))
            case _:
                raise BadInput(
                    f"Line {number} of the header of {path} is not valid: {line[:80]!r}", hint=_HINT
                )
    if not form:
        raise BadInput(f"The header of {path} does not name its format.", hint=_HINT)
    if "vertex" not in dict(heads):
        raise BadInput(f"{path} has no vertices.", hint="Give a PLY file with an element named vertex.")
    order = _ORDERS[form]
    elements = tuple(
        Element(name, count, np.dtype([(key, order + kind) for key, kind in fields]), tuple(names))
        for (name, count), fields, names in zip(heads, properties, lists, strict=True)
    )
    return Header(lines, form, elements)
