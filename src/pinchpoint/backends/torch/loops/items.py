"""`largest_items`: items of a list that a loop goes through which may need more memory than the first ones.

An item may be a number, a tensor, or a tuple, dict or object that contains some, such as a stage of training
with its batch size. What its numbers mean is unknown, so the largest item by each of them is chosen, by the
elements of all tensors, and by the product of all numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

_FEW = 6  # items that are all chosen if they are neither numbers nor tensors
_NUMBERS = 8  # of an item that are looked at
_DEPTH = 3  # to which the parts of an item are looked at


def largest_items(items: Sequence[Any], count: int) -> list[int]:
    """Places of items to run, after the first `count` ones were run."""
    left = range(count, len(items))
    if not left:
        return []
    if len(left) <= _FEW and not all(isinstance(items[at], (int, float, torch.Tensor)) for at in left):
        return list(left)
    chosen: set[int] = set()
    for sizes in zip_longest(*map(_sizes, items), fillvalue=0.0):
        at = max(range(len(sizes)), key=sizes.__getitem__)
        if at >= count and sizes[at] > max(sizes[:count], default=0):
            chosen.add(at)
    return sorted(chosen)


def _sizes(item: Any) -> list[float]:
    """What items are compared by: all elements, the product of all numbers, and each number."""
    parts = list(_parts(item, 0))
    numbers = [abs(part) for part in parts if isinstance(part, float) and math.isfinite(part)]
    elements = sum(part for part in parts if isinstance(part, int))
    product = math.prod(number for number in numbers if number > 0)
    return [float(elements), product, *numbers[:_NUMBERS]]


def _parts(thing: Any, depth: int) -> Iterator[int | float]:
    """The numbers in an item, as floats, and the elements of its tensors and arrays, as ints."""
    if isinstance(thing, torch.Tensor):
        yield thing.numel()
    elif isinstance(thing, np.ndarray):
        yield thing.size
    elif isinstance(thing, (int, float)):
        yield float(min(max(thing, -1e300), 1e300))
    elif depth < _DEPTH and not isinstance(thing, (str, bytes, type, torch.nn.Module)):
        inner = thing.values() if isinstance(thing, dict) else thing
        if not isinstance(thing, (dict, list, tuple)):
            inner = getattr(thing, "__dict__", {}).values()
        for part in inner:
            yield from _parts(part, depth + 1)
