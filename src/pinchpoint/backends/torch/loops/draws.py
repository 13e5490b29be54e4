"""`Draws`: numbers that a script chooses at random from a list, of which the largest may not have come up.

A loop that is ended early may not have drawn the largest size, or the largest of several shapes. Lists of
small numbers, such as coin flips, are not looked at.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.ledger import is_library_file
from pinchpoint.core.files import shown_path

_LONGEST = 64  # choices of a list that is looked at
_LEAST = 16  # the smallest number that is taken for a size, which is a guess


def _size(choice: Any) -> int | None:
    """The size that a choice stands for: a whole number, or the product of several; None for other things."""
    if isinstance(choice, (int, np.integer)) and not isinstance(choice, bool):
        return int(choice)
    if isinstance(choice, tuple) and choice and all(type(part) is int for part in choice):
        return math.prod(choice)
    return None


class Draws:
    """Lines of the script that draw from a list -> the largest choice, and the largest that was drawn."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[int, int]] = {}

    def install(self, patches: Patches) -> None:
        draws = self

        class Generator(np.random.Generator):
            def choice(self, a: Any, *args: Any, **options: Any) -> Any:
                drawn = super().choice(a, *args, **options)
                return draws.add(a, drawn, sys._getframe(1).f_code.co_filename, sys._getframe(1).f_lineno)

        def default_rng(seed: Any = None) -> Any:
            made = original(seed)
            is_own = type(made) is np.random.Generator and made is not seed
            is_own = is_own and not is_library_file(sys._getframe(1).f_code.co_filename)
            return Generator(made.bit_generator) if is_own else made

        original = patches.set(np.random, "default_rng", default_rng)
        for module, name in (
            (random, "choice"),
            (random, "choices"),
            (random, "sample"),
            (np.random, "choice"),
        ):
            self._patch(patches, module, name)

    def _patch(self, patches: Patches, module: Any, name: str) -> None:
        def choice(a: Any, *args: Any, **options: Any) -> Any:
            drawn = original(a, *args, **options)
            return self.add(a, drawn, sys._getframe(1).f_code.co_filename, sys._getframe(1).f_lineno)

        original: Callable[..., Any] = patches.set(module, name, choice)

    def add(self, choices: Any, drawn: Any, file: str, line: int) -> Any:
        """Remember what was drawn; returns it."""
        is_list = isinstance(choices, (list, tuple)) and 1 < len(choices) <= _LONGEST
        if not is_list or is_library_file(file):
            return drawn
        sizes = [_size(one) for one in choices]
        if None not in sizes:
            site = f"{file}:{line}"
            largest, before = self._lines.get(site, (0, 0))
            several = drawn if isinstance(drawn, (list, np.ndarray)) else [drawn]
            drawn_sizes = (_size(one) or 0 for one in several)
            self._lines[site] = max(largest, *(size or 0 for size in sizes)), max(before, *drawn_sizes)
        return drawn

    def reasons(self) -> list[str]:
        return [
            f"the largest choice at {shown_path(site)}, {largest:,}, was not drawn in the turns that were run"
            for site, (largest, drawn) in self._lines.items()
            if largest > max(drawn, _LEAST)
        ]
