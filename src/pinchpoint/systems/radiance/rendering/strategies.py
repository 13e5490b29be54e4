"""Chunks of rays and what is held of them for the backward pass: everything, or nothing and computed again.

`none` holds every chunk: chunks then save memory only where there is no backward pass. `checkpoint` computes a chunk again
when its gradient comes. `deferred` renders without a graph, and in backward renders chunk by chunk with the gradients of the
pixels. Both hold one chunk at a time and replay autocast; the gradients are those of `none` but for the order of sums. Here is
how autograd does it, for any field; a folded one does both in the way of `deferred` by itself (`passes`), where `checkpoint`
holds the last chunk, whose gradient comes first, through all that lies between: quicker, and more where that takes much.

Counted in fp32 at the size of GRAF: a point of the chunk takes 15,182 B (folded 10,025), any other 12 B with checkpoint and
11 B with deferred, which are its random numbers and its share of the pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from pinchpoint.core.errors import BadInput

Memory = Literal["none", "checkpoint", "deferred"]
Part = tuple[slice, slice]  # images, rays
_WIDER = {
    "eager": 2,
    "folded": 3,
}  # points that take without gradients what one takes with them, in any precision, at least
Shade = Callable[..., tuple[Tensor, ...]]  # (part, *tensors) -> tensors (B, R, ...) of that part


def by_chunks(
    shade: Shade, tensors: tuple[Tensor, ...], *, images: int, rays: int, chunk: int | None, memory: Memory
) -> tuple[Tensor, ...]:
    """`shade` of all parts put together: tensors (B, R, ...). tensors: what gradients flow to; shade must read no other."""
    parts = parts_of(images, rays, chunk, memory)
    if memory == "deferred" and torch.is_grad_enabled():
        return _Deferred.apply(shade, parts, *tensors)
    if memory == "checkpoint" and torch.is_grad_enabled():
        # What is random was drawn before: there is no state to keep.
        made = [
            checkpoint(shade, part, *tensors, use_reentrant=False, preserve_rng_state=False) for part in parts
        ]
    else:
        made = [shade(part, *tensors) for part in parts]
    return _joined(made, parts, images, rays)


def wider(chunk: int | None, form: str) -> int | None:
    """Rays at one time of a step's images without gradients, so that they need no more than `chunk` rays with them."""
    return None if chunk is None else _WIDER[form] * chunk


def parts_of(images: int, rays: int, chunk: int | None, memory: Memory = "none") -> list[Part]:
    """Parts of at most `chunk` rays, as even as they can be: some rays of every image, or one ray of some images."""
    if memory not in get_args(Memory):
        raise BadInput(f"unknown memory {memory!r}", hint=f"use one of: {', '.join(get_args(Memory))}")
    if chunk is not None and chunk < 1:
        raise BadInput(f"a chunk of {chunk} rays", hint="give a chunk of at least 1 ray")
    wide = images if chunk is None else min(images, chunk)
    long = rays if chunk is None else min(rays, chunk // wide)
    return [(image, ray) for image in _even(images, wide) for ray in _even(rays, long)]


def _even(count: int, most: int) -> list[slice]:
    """Slices of at most `most` that differ by one at most."""
    pieces = -(-count // most)
    ends = [count * at // pieces for at in range(pieces + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


def _joined(
    made: Sequence[tuple[Tensor, ...]], parts: Sequence[Part], images: int, rays: int
) -> tuple[Tensor, ...]:
    if len(made) == 1:
        return made[0]
    rows = [at for at, (_, ray) in enumerate(parts) if ray.start == 0]
    ends = [*rows[1:], len(parts)]
    found = []
    for values in zip(*made, strict=True):
        across = [torch.cat(values[start:stop], dim=1) for start, stop in zip(rows, ends, strict=True)]
        found.append(across[0] if len(across) == 1 else torch.cat(across))
    return tuple(found)


class _Deferred(torch.autograd.Function):
    """Forward without a graph; backward renders again, a part at a time."""

    @staticmethod
    def forward(ctx: Any, shade: Shade, parts: Sequence[Part], *tensors: Tensor) -> tuple[Tensor, ...]:
        device = tensors[0].device.type
        ctx.shade, ctx.parts = shade, parts
        ctx.cast = device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        images, rays = parts[-1][0].stop, parts[-1][1].stop
        return _joined([shade(part, *tensors) for part in parts], parts, images, rays)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor | None
    ) -> tuple[Any, ...]:
        device, dtype, enabled = ctx.cast
        wanted = ctx.needs_input_grad[2:]
        # Leaves of our own: a hook on a parameter sees its whole gradient, once, not that of every part.
        leaves = [
            tensor.detach().requires_grad_(want)
            for tensor, want in zip(ctx.saved_tensors, wanted, strict=True)
        ]
        asked = [leaf for leaf in leaves if leaf.requires_grad]
        sums: list[Tensor | None] = [None] * len(asked)
        for part in ctx.parts:
            # No cache of cast weights: one made for another part would tie its graph to this one.
            with torch.enable_grad(), torch.autocast(device, dtype, enabled=enabled, cache_enabled=False):
                made = ctx.shade(part, *leaves)
            pairs = [
                (value, slope[part])
                for value, slope in zip(made, gradients, strict=True)
                if slope is not None
            ]
            outputs, slopes = zip(
                *((value, slope) for value, slope in pairs if value.requires_grad), strict=True
            )
            found = torch.autograd.grad(outputs, asked, slopes, allow_unused=True)
            for at, value in enumerate(found):
                if value is not None:
                    kept = sums[at]
                    sums[at] = value if kept is None else kept.add_(value)
            del made, pairs, outputs, slopes, found  # before the next part is rendered
        back = iter(sums)
        return None, None, *(next(back) if want else None for want in wanted)
