"""Who holds the memory at the peak: source lines of the user, and the modules and library lines inside them.

Repeated layers are merged: modules whose names differ only in numbers become one with a `*`.
"""

from __future__ import annotations

import linecache
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pinchpoint.core.events import BlockInfo, Observation
from pinchpoint.core.files import shown_path
from pinchpoint.core.records import Inside, Line
from pinchpoint.forecasting.replay import Replay

_TOP_LINES = 20
_TOP_MODULES = 60
_TOP_INSIDE = 12
_LARGE_LINE = 1 / 3  # of the peak: a line of the user that holds more is looked into ...
_LARGE_ENTRY = 0.05  # ... in each phase in which it holds at least this share of the peak
_SMALL_PART = 0.005  # of its line: a smaller part is left out
_SMALL_MODULE = 0.08  # of its line: a smaller module counts towards the module it is part of


def top_lines(observation: Observation, result: Replay) -> tuple[Line, ...]:
    """The source lines with the most bytes at the peak, and what is inside those with much of it."""
    by_line: dict[tuple[str, int, str], list[tuple[BlockInfo, int]]] = defaultdict(list)
    of_line: Counter[tuple[str, int]] = Counter()
    for number, size in result.alive.items():
        info = observation.blocks[number]
        if info.role != "workspace":
            by_line[info.file, info.line, info.phase].append((info, size))
            of_line[info.file, info.line] += size
    ranking = sorted(by_line.items(), key=lambda item: -_total(item[1]))[:_TOP_LINES]
    lines = []
    for (file, line, phase), blocks in ranking:
        size = _total(blocks)
        large = (
            of_line[file, line] > _LARGE_LINE * result.peak_allocated_bytes
            and size > _LARGE_ENTRY * result.peak_allocated_bytes
        )
        lines.append(
            Line(
                shown_path(file),
                line,
                size,
                phase,
                linecache.getline(file, line).strip(),
                _inside(blocks) if large else (),
            )
        )
    return tuple(lines)


def module_shares(observation: Observation, result: Replay) -> tuple[dict[str, Any], ...]:
    """Bytes at the peak by the module that allocated them, repeated layers merged."""
    bytes_of: Counter[str] = Counter()
    for number, size in result.alive.items():
        if module := observation.blocks[number].module:
            bytes_of[module] += size
    merged = sorted(merge_repeated(bytes_of, _parents(bytes_of)), key=lambda one: -one.bytes)
    return tuple(
        {
            "name": one.name,
            "count": len(one.members),
            "bytes_each": one.bytes // len(one.members),
            "bytes": one.bytes,
        }
        for one in merged[:_TOP_MODULES]
    )


@dataclass(frozen=True)
class Merged:
    """Modules whose names differ only in numbers."""

    name: str
    members: tuple[str, ...]
    bytes: int
    equal: bool


def merge_repeated(bytes_of: Mapping[str, int], blocks: frozenset[str] = frozenset()) -> list[Merged]:
    """Merge repeated layers: `h.0.mlp` and `h.1.mlp` become `h.*.mlp`.

    Members of a sequence (`features.0`, `features.3`) are often different layers, so they are merged only if
    three or more have equal bytes. blocks: modules that consist of others, which are merged all the same.
    """
    groups: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for name, size in bytes_of.items():
        parts = name.split(".")
        key = tuple("*" if part.isdecimal() else part for part in parts)
        is_one_of_sequence = parts[-1].isdecimal() and name not in blocks
        groups[(*key, size) if is_one_of_sequence else key].append(name)
    merged = []
    for key, equal_ones in groups.items():
        few = isinstance(key[-1], int) and len(equal_ones) < 3
        members_of_rows = [[name] for name in equal_ones] if few else [equal_ones]
        merged += [_merged(members, bytes_of) for members in members_of_rows]
    return merged


def _merged(members: list[str], bytes_of: Mapping[str, int]) -> Merged:
    columns = zip(*(name.split(".") for name in members), strict=True)
    name = ".".join(column[0] if len(set(column)) == 1 else "*" for column in columns)
    sizes = [bytes_of[member] for member in members]
    return Merged(name, tuple(members), sum(sizes), len(set(sizes)) == 1)


def _parents(names: Iterable[str]) -> frozenset[str]:
    """Every module that one of these is part of."""
    parents: set[str] = set()
    for name in names:
        while (name := name.rpartition(".")[0]) and name not in parents:
            parents.add(name)
    return frozenset(parents)


def _inside(blocks: Iterable[tuple[BlockInfo, int]]) -> tuple[Inside, ...]:
    """The modules and library lines that hold these blocks of one line of the user."""
    bytes_of: Counter[str] = Counter()
    places: dict[str, Counter[tuple[str, int]]] = defaultdict(Counter)
    for info, size in blocks:
        bytes_of[info.module] += size
        # The lines that create weights and optimizer states are those of a loop over all of them.
        in_model = info.phase in ("forward", "backward")
        place = (info.library_file, info.library_line) if in_model else ("", 0)
        places[info.module][place] += size
    parents = _parents(bytes_of)
    limit = _SMALL_MODULE * bytes_of.total()
    for depth in range(max(name.count(".") for name in bytes_of), 1, -1):
        for group in merge_repeated(bytes_of, parents):
            is_layer = group.name.endswith(".*")  # what holds the layers says less than one of them
            if group.name.count(".") == depth and group.bytes < limit and not is_layer:
                for name in group.members:
                    parent = name.rpartition(".")[0]
                    bytes_of[parent] += bytes_of.pop(name)
                    places[parent].update(places.pop(name))
    merged = sorted(merge_repeated(bytes_of, parents), key=lambda one: -one.bytes)
    rows = []
    for one in merged[:_TOP_INSIDE]:
        if one.bytes < _SMALL_PART * bytes_of.total():
            break
        bytes_by_place: Counter[tuple[str, int]] = Counter()
        for name in one.members:
            bytes_by_place.update(places[name])
        rows.append(Inside(one.name, len(one.members), one.bytes, one.equal, *_place(bytes_by_place)))
    plain = len(rows) == 1 and rows[0].count == 1 and not rows[0].file
    return () if plain else tuple(rows)


def _place(bytes_by_place: Counter[tuple[str, int]]) -> tuple[str, int | None, str]:
    """File, line and code of the package that allocated most; no line if none allocated more than half."""
    of_file: Counter[str] = Counter()
    for (file, _), size in bytes_by_place.items():
        of_file[file] += size
    file = of_file.most_common(1)[0][0]
    (top, line), size = bytes_by_place.most_common(1)[0]
    if not file or top != file or 2 * size <= bytes_by_place.total():
        return _in_package(file), None, ""
    return _in_package(file), line, linecache.getline(file, line).strip()


def _in_package(file: str) -> str:
    """The path from the package on, which is the same on every machine: `timm/models/resnet.py`."""
    for folder in ("site-packages", "dist-packages"):
        if folder in file:
            return file.rpartition(folder)[2].lstrip("/\\")
    return shown_path(file)


def _total(blocks: Iterable[tuple[BlockInfo, int]]) -> int:
    return sum(size for _, size in blocks)
