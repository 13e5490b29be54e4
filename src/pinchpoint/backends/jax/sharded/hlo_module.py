"""`read_module`: XLA's text of a module as instructions, with the user's source lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_NAME = re.compile(r"%([\w.\-]+)")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_DONATED = re.compile(r"\((\d+), \{[\d, ]*\}(?:, [\w-]+)?\)")
_CLOSING = {"(": ")", "{": "}"}


@dataclass(frozen=True)
class Instruction:
    """One line of XLA's text. operands: names; text: what follows the operands."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    literal: str
    text: str


@dataclass
class Module:
    """donated: numbers of parameters that may be overwritten; frame: the user's line of a stack frame."""

    computations: dict[str, list[Instruction]]
    roots: dict[str, str]
    entry: str
    donated: frozenset[int]
    frame: Callable[[int], tuple[str, int]]


def read_module(text: str, is_user_file: Callable[[str], bool]) -> Module:
    lines = text.splitlines()
    computations: dict[str, list[Instruction]] = {}
    roots: dict[str, str] = {}
    entry = name = ""
    tables: dict[str, dict[int, str]] = {}
    table: dict[int, str] | None = None
    for line in lines[1:]:
        if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            table = tables.setdefault(line, {})
        elif table is not None and line[:1].isdigit():
            number, _, rest = line.partition(" ")
            table[int(number)] = rest
        elif match := _COMPUTATION.match(line):
            table, name = None, match[2]
            computations[name] = []
            entry = name if match[1] else entry
        elif " = " in line and name:
            instruction = _read_instruction(line)
            computations[name].append(instruction)
            if line.lstrip().startswith("ROOT "):
                roots[name] = instruction.name
    donated = {int(n) for n in _DONATED.findall(_attribute(lines[0], "buffer_donor"))}
    donated |= {int(n) for n in _DONATED.findall(_attribute(lines[0], "input_output_alias"))}
    return Module(computations, roots, entry, frozenset(donated), _frames(tables, is_user_file))


def _attribute(header: str, name: str) -> str:
    start = header.find(f"{name}={{")
    return header[start : _matching(header, start + len(name) + 1) + 1] if start >= 0 else ""


def _read_instruction(line: str) -> Instruction:
    left, _, right = line.strip().removeprefix("ROOT ").partition(" = ")
    end = _matching(right, 0) + 1 if right.startswith("(") else right.index(" ")
    shape, rest = right[:end], right[end:].lstrip()
    opcode, _, _ = rest.partition("(")
    close = _matching(rest, len(opcode))
    inside = rest[len(opcode) + 1 : close]
    names = () if opcode in ("constant", "parameter") else tuple(_NAME.findall(inside))
    return Instruction(left.lstrip("%"), shape, opcode, names, inside, rest[close + 1 :])


def _matching(text: str, start: int) -> int:
    """Position of the bracket that closes the one at `start`."""
    opening, depth = text[start], 0
    for match in re.finditer(re.escape(opening) + "|" + re.escape(_CLOSING[opening]), text[start:]):
        depth += 1 if match[0] == opening else -1
        if not depth:
            return start + match.start()
    return len(text) - 1


def parts(shape: str) -> Iterator[str]:
    """The shapes in a tuple's shape."""
    depth = start = 0
    inside = re.sub(r"/\*.*?\*/", "", shape[1:-1])
    for position, letter in enumerate(inside):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            yield inside[start:position].strip()
            start = position + 1
    if inside[start:].strip():
        yield inside[start:].strip()


def _frames(
    tables: dict[str, dict[int, str]], is_user_file: Callable[[str], bool]
) -> Callable[[int], tuple[str, int]]:
    """A function that returns the innermost line of the user's code for a stack frame."""

    def number(text: str, key: str) -> int:
        match = re.search(rf"{key}=(\d+)", text)
        return int(match[1]) if match else 0

    files = {n: text.strip('"') for n, text in tables.get("FileNames", {}).items()}
    places = {
        n: (files.get(number(text, "file_name_id"), ""), number(text, r"\bline"))
        for n, text in tables.get("FileLocations", {}).items()
    }
    frames = tables.get("StackFrames", {})
    cache: dict[int, tuple[str, int]] = {}

    def place(frame: int) -> tuple[str, int]:
        if frame not in cache:
            current, location = frame, ("", 0)
            while current in frames:
                location = places.get(number(frames[current], "file_location_id"), ("", 0))
                parent = number(frames[current], "parent_frame_id")
                if (location[0] and is_user_file(location[0])) or parent == current:
                    break
                current = parent
            cache[frame] = location if location[0] and is_user_file(location[0]) else ("", 0)
        return cache[frame]

    return place
