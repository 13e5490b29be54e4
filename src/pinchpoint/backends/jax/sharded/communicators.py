"""Groups of devices that collectives connect, from XLA's text, and what NCCL keeps for them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence

from pinchpoint.core.events import Span
from pinchpoint.core.ranks import NCCL_PER_COMMUNICATOR

Groups = frozenset[frozenset[int]]  # the devices in groups, of which each communicates by itself

_LISTED = re.compile(r"\{([\d,\s]+)\}")
_MESH = re.compile(r"mesh\[([^\]]*)\](?:, device_ids=\(([^)]*)\))? \{([^}]*)\}")
_TILES = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")


def read_groups(text: str) -> Groups:
    """The groups in one of XLA's three ways of writing them; empty if all devices are one group."""
    if match := _MESH.search(text):
        sizes = [int(size) for _, _, size in (part.partition("=") for part in match[1].split(","))]
        names = [part.partition("=")[0].strip() for part in match[1].split(",")]
        axes = [names.index(name.strip()) for name in match[3].split(",") if name.strip() in names]
        return _along(sizes, axes)
    if match := _TILES.search(text):
        shape, sizes = _numbers(match[1]), _numbers(match[2])
        order = _numbers(match[3]) if match[3] else range(len(sizes))
        width = shape[-1]
        devices = _transposed(sizes, order)
        return frozenset(frozenset(devices[i : i + width]) for i in range(0, len(devices), width))
    return frozenset(frozenset(_numbers(group)) for group in _LISTED.findall(text))


def nccl_bytes(groups: Iterable[Groups], device_count: int) -> Span:
    """What NCCL keeps on the device that is in most of the groups."""
    everything = frozenset({frozenset(range(device_count))})
    different = {group for item in groups for group in (item or everything) if len(group) > 1}
    counts = [sum(device in group for group in different) for device in range(device_count)]
    most = max(counts, default=0)
    return Span(*(most * part for part in NCCL_PER_COMMUNICATOR))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _along(sizes: Sequence[int], axes: Sequence[int]) -> Groups:
    """The devices that differ only in their positions along these axes of a grid."""
    groups: dict[tuple[int, ...], set[int]] = {}
    for number, position in enumerate(itertools.product(*(range(size) for size in sizes))):
        key = tuple(p for axis, p in enumerate(position) if axis not in axes)
        groups.setdefault(key, set()).add(number)
    return frozenset(frozenset(group) for group in groups.values())


def _transposed(sizes: Sequence[int], order: Iterable[int]) -> list[int]:
    """The numbers of a grid's elements, read along its axes in another order."""
    axes = list(order)
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    positions = itertools.product(*(range(sizes[axis]) for axis in axes))
    return [sum(p * strides[axis] for p, axis in zip(position, axes, strict=True)) for position in positions]
