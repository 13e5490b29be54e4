"""What comes when: worked out from the seed and a number alone, so a resumed run needs no more than its step.

No order is kept anywhere, and none has to be put back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def at_turn(names: Sequence[str], *, seed: int, turn: int) -> str:
    """The name of turn 0, 1, ...: every pass over the names has an order of its own, and the next follows at once."""
    number, place = divmod(turn, len(names))
    shuffle = torch.Generator().manual_seed(seed * 1_000_003 + number)
    return names[int(torch.randperm(len(names), generator=shuffle)[place])]
