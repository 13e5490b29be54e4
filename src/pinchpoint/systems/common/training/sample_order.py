"""The order of samples, computed from the seed and a turn number alone: a resumed run needs only its step.

No order is stored, so none has to be restored.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def at_turn(names: Sequence[str], *, seed: int, turn: int) -> str:
    """The name at turn 0, 1, ...: each pass over the names has its own order, and the next pass follows
    directly.
    """
    number, place = divmod(turn, len(names))
    return names[int(pass_order(len(names), seed=seed, number=number)[place])]


def pass_order(count: int, *, seed: int, number: int) -> torch.Tensor:
    """The order (count,) of pass 0, 1, ... over `count` names, int64."""
    shuffle = torch.Generator().manual_seed(seed * 1_000_003 + number)
    return torch.randperm(count, generator=shuffle)
