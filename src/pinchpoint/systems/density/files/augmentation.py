"""Augmentation occupancies of a CHGCAR: VASP's description of the density inside the spheres around atoms.

They are passed through as text; this module only checks them. A block is a line `augmentation occupancies ION
N` and N numbers; non-collinear and some hybrid runs add `(imaginary part)` blocks. After the last block, some
versions write one number per atom.
"""

from __future__ import annotations

import re

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.files.number_parsing import NotNumbers, parse_any

_HEAD = re.compile(
    r"^[ \t]*augmentation occupancies([ \t]*\(imaginary part\))?[ \t]*(\d+)[ \t]+(\d+)[ \t\r]*$", re.MULTILINE
)
_HINT = "Copy the file again: it is truncated or was edited. Or remove all of its augmentation lines."


def read_augmentation(text: str, *, atoms: int, name: str) -> tuple[np.ndarray, ...]:
    """Return the occupancies of each atom in order, or () if there are none.

    Raises BadInput for incomplete or missing blocks.
    """
    heads = list(_HEAD.finditer(text))
    before = text[: heads[0].start()] if heads else text
    if "augmentation" in before:
        raise BadInput(
            f"{name}: {_first(before)!r} is not a valid first line of augmentation occupancies.", hint=_HINT
        )
    if before.strip():
        _numbers(before, (atoms,), f"{name}: the text after the density")
    occupancies: dict[int, np.ndarray] = {}
    for i, head in enumerate(heads):
        last = i + 1 == len(heads)
        body = text[head.end() : None if last else heads[i + 1].start()]
        ion, count = int(head[2]), int(head[3])
        # Only the last block may be followed by the line with one number per atom.
        values = _numbers(
            body,
            (count, count + atoms) if last else (count,),
            f"{name}: the augmentation block of atom {ion}",
        )
        if head[1] is None:
            occupancies[ion] = values[:count]
    words = text.split() if heads and not text.endswith("\n") else []
    if words and len(words[-1].lstrip("-")) < len(text[heads[0].end() :].split(maxsplit=1)[0].lstrip("-")):
        raise BadInput(f"{name} ends in the middle of {words[-1]!r}.", hint=_HINT)
    if occupancies and sorted(occupancies) != list(range(1, atoms + 1)):
        raise BadInput(
            f"{name} has augmentation occupancies for {len(occupancies)} of {atoms} atoms.",
            hint=_HINT,
        )
    return tuple(occupancies[ion] for ion in sorted(occupancies))


def _numbers(text: str, counts: tuple[int, ...], where: str) -> np.ndarray:
    count = len(text.split())
    if count not in counts:
        raise BadInput(f"{where}: {counts[0]} numbers are expected, but there are {count}.", hint=_HINT)
    try:
        return parse_any(np.frombuffer(text.encode("utf-8"), dtype=np.uint8), count)
    except NotNumbers as error:
        raise BadInput(f"{where} cannot be read: {error}.", hint=_HINT) from error


def _first(text: str) -> str:
    return next(line.strip() for line in text.splitlines() if "augmentation" in line)
