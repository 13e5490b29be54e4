"""Shapes in XLA's text form, such as `f32[8,4]{1,0}`."""

from __future__ import annotations

import math
import re

_ARRAY = re.compile(r"\b([a-z]+[0-9]*[a-z0-9]*)\[([\d,]*)\]")
_BITS = {"pred": 8, "bf16": 16}


def dimensions(shape: str) -> list[int]:
    """The sizes of an array."""
    match = _ARRAY.search(shape)
    return [int(size) for size in match[2].split(",") if size] if match else []


def array_bytes(shape: str) -> int:
    """Bytes of an array or of a tuple of arrays."""
    total = 0
    for dtype, sizes in _ARRAY.findall(shape):
        bits = _BITS.get(dtype) or int((re.search(r"\d+", dtype) or ["8"])[0])
        total += math.prod(int(size) for size in sizes.split(",") if size) * bits // 8
    return total
