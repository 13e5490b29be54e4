"""The format of a structure or density file, recognised by its contents rather than its name."""

from __future__ import annotations

import re
from typing import Literal

ContentKind = Literal["chgcar", "cube", "npz", "json", "hdf5"]
_HEAD = 65_536  # bytes that are looked at
_SPECIES = re.compile(r"[A-Za-z]{1,3}([_/]\S*)?|\d+")


def content_kind(data: bytes) -> ContentKind | None:
    """Return the format of the (decompressed) bytes of a file; None if it is none of ours.

    "chgcar" stands for everything that starts with a POSCAR; a file with only that is a structure.
    """
    if data.startswith(b"PK\x03\x04"):
        return "npz"
    if data.startswith(b"\x89HDF\r\n\x1a\n"):
        return "hdf5"
    head = data[:_HEAD]
    if b"\0" in head:
        return None
    lines = head.decode("utf-8", errors="replace").splitlines()
    if _is_poscar(lines):
        return "chgcar"
    if _is_cube(lines):
        return "cube"
    return "json" if head.lstrip()[:1] in (b"{", b"[") else None


def _is_poscar(lines: list[str]) -> bool:
    """Whether a comment, a scale, three lattice vectors and the species come first."""
    if len(lines) < 7 or _numbers(lines[1]) < 1 or any(_numbers(line) < 3 for line in lines[2:5]):
        return False
    words = lines[5].split()
    return bool(words) and all(_SPECIES.fullmatch(word) for word in words)


def _is_cube(lines: list[str]) -> bool:
    """Whether two comments, the number of atoms with the origin, and three axes come first."""
    return len(lines) > 6 and all(
        _numbers(line) >= 4 and re.match(r"\s*-?\d+\s", line) is not None for line in lines[2:6]
    )


def _numbers(line: str) -> int:
    """Return how many numbers a line starts with."""
    count = 0
    for word in line.split():
        try:
            float(word.replace("D", "E").replace("d", "e"))
        except ValueError:
            break
        count += 1
    return count
