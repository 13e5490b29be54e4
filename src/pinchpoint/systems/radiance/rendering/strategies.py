"""Chunks of rays, and what the backward pass holds of them: everything, or nothing that is then recomputed.

`none` holds every chunk, so chunks save memory only without a backward pass. `checkpoint` recomputes a chunk
when its gradient arrives. `deferred` renders without a graph, and in the backward pass renders chunk by chunk
with the gradients of the pixels. Both hold one chunk at a time and restore autocast; the gradients equal
those of `none` up to the order of sums. This module does it by autograd, for any field; a folded field does
both in the manner of `deferred` (`passes`), where `checkpoint` keeps the last chunk, whose gradient comes
first, all the way: faster, but it needs more if much memory is used in between.

Counted in fp32 at the size of GRAF: a point of the chunk takes 15,182 B (folded 10,025), any other point 12 B
with checkpoint and 11 B with deferred: its random numbers and its share of the pixels.
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
}  # Points that need no more memory without gradients than one point with them, at least, in any precision.
Shade = Callable[..., tuple[Tensor, ...]]  # (chunk, *tensors) -> tensors (B, R, ...) of that chunk


def by_chunks(
    shade: Shade, tensors: tuple[Tensor, ...], *, images: int, rays: int, chunk: int | None, memory: Memory
) -> tuple[Tensor, ...]:
    """Join `shade` of all chunks: tensors (B, R, ...).

    tensors: those that get gradients; shade must read no others.
    """
    parts = parts_of(images, rays, chunk, memory)
    if memory == "deferred" and torch.is_grad_enabled():
        return _Deferred.apply(shade, parts, *tensors)
    if memory == "checkpoint" and torch.is_grad_enabled():
        # Everything random was drawn beforehand: there is no random state to preserve.
        outputs = [
            checkpoint(shade, part, *tensors, use_reentrant=False, preserve_rng_state=False) for part in parts
        ]
    else:
        outputs = [shade(part, *tensors) for part in parts]
    return _join(outputs, parts, images, rays)


def wider(chunk: int | None, form: str) -> int | None:
    """Rays at a time for images without gradients, so that they need no more memory than `chunk` rays with
    them.
    """
    return None if chunk is None else _WIDER[form] * chunk


def parts_of(images: int, rays: int, chunk: int | None, memory: Memory = "none") -> list[Part]:
    """Chunks of at most `chunk` rays, as even as possible: some rays of every image, or one ray of some
    images.
    """
    if memory not in get_args(Memory):
        raise BadInput(
            f"The memory strategy {memory!r} is unknown.", hint=f"Use one of: {', '.join(get_args(Memory))}."
        )
    if chunk is not None and chunk < 1:
        raise BadInput(
            f"The chunk is {chunk} rays, but it must be at least 1.", hint="Give a chunk of at least 1 ray."
        )
    wide = images if chunk is None else min(images, chunk)
    long = rays if chunk is None else min(rays, chunk // wide)
    return [(image, ray) for image in _even(images, wide) for ray in _even(rays, long)]


def _even(count: int, most: int) -> list[slice]:
    """Slices of at most `most` whose lengths differ by one at most."""
    pieces = -(-count // most)
    ends = [count * at // pieces for at in range(pieces + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


def _join(
    outputs: Sequence[tuple[Tensor, ...]], parts: Sequence[Part], images: int, rays: int
) -> tuple[Tensor, ...]:
    if len(outputs) == 1:
        return outputs[0]
    rows = [at for at, (_, ray) in enumerate(parts) if ray.start == 0]
    ends = [*rows[1:], len(parts)]
    results = []
    for values in zip(*outputs, strict=True):
        across = [torch.cat(values[start:stop], dim=1) for start, stop in zip(rows, ends, strict=True)]
        results.append(across[0] if len(across) == 1 else torch.cat(across))
    return tuple(results)


class _Deferred(torch.autograd.Function):
    """Forward without a graph; backward renders again, one chunk at a time."""

    @staticmethod
    def forward(ctx: Any, shade: Shade, parts: Sequence[Part], *tensors: Tensor) -> tuple[Tensor, ...]:
        device = tensors[0].device.type
        ctx.shade, ctx.parts = shade, parts
        ctx.cast = device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        images, rays = parts[-1][0].stop, parts[-1][1].stop
        return _join([shade(part, *tensors) for part in parts], parts, images, rays)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor | None
    ) -> tuple[Any, ...]:
        device, dtype, enabled = ctx.cast
        needed = ctx.needs_input_grad[2:]
        # Separate leaves: a hook on a parameter sees its whole gradient once, not that of every chunk.
        leaves = [
            tensor.detach().requires_grad_(want)
            for tensor, want in zip(ctx.saved_tensors, needed, strict=True)
        ]
        trainable = [leaf for leaf in leaves if leaf.requires_grad]
        sums: list[Tensor | None] = [None] * len(trainable)
        for part in ctx.parts:
            # No cache of cast weights: one created for another chunk would tie its graph to this one.
            with torch.enable_grad(), torch.autocast(device, dtype, enabled=enabled, cache_enabled=False):
                values = ctx.shade(part, *leaves)
            pairs = [
                (value, slope[part])
                for value, slope in zip(values, gradients, strict=True)
                if slope is not None
            ]
            outputs, slopes = zip(
                *((value, slope) for value, slope in pairs if value.requires_grad), strict=True
            )
            part_slopes = torch.autograd.grad(outputs, trainable, slopes, allow_unused=True)
            for at, value in enumerate(part_slopes):
                if value is not None:
                    total = sums[at]
                    sums[at] = value if total is None else total.add_(value)
            del values, pairs, outputs, slopes, part_slopes  # before the next chunk is rendered
        back = iter(sums)
        return None, None, *(next(back) if want else None for want in needed)
