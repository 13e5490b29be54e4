"""Private APIs of torch that nested tensors need."""

from __future__ import annotations

from itertools import count
from typing import Any, cast

import torch
from torch.nested._internal.nested_tensor import NestedTensor

__all__ = ["NestedTensor", "nested_int", "nested_lengths", "nested_parts"]

_ragged = count(10_000)  # numbers of ragged sizes; torch counts those of real tensors from zero


def nested_int(offsets: torch.Tensor, *, coeff: int = 1) -> Any:
    """The size of the ragged dimension of nested tensors with these offsets."""
    number = cast(Any, offsets).__dict__.setdefault("_pinchpoint_ragged", next(_ragged))
    return torch._C._get_nested_int(number, coeff)  # pyright: ignore[reportAttributeAccessIssue]


def nested_lengths(nested: NestedTensor) -> dict[str, int | None]:
    """The least and greatest length, as far as torch has computed them."""
    return {"min_seqlen": nested._maybe_min_seqlen, "max_seqlen": nested._maybe_max_seqlen}


def nested_parts(nested: NestedTensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Values, offsets and lengths of a nested tensor of the jagged layout."""
    return nested._values, nested._offsets, nested._lengths
