"""Memory strategies: rays in chunks whose activations are stored for the backward pass or recomputed.

`none` stores every chunk, so chunks save memory only without a backward pass. `checkpoint` recomputes a chunk
when its gradient arrives. `deferred` renders without a graph, and renders again chunk by chunk in the
backward pass, with the gradients of the pixels. Both store one chunk at a time and restore autocast; their
gradients equal those of `none` up to the order of summation. This module uses autograd and works for any
field. A folded field (`passes`) implements both like `deferred`, but `checkpoint` keeps the last chunk, whose
gradient comes first: this is faster, but needs more memory if the forward and backward passes have large
allocations between them.

In fp32 at the size of GRAF, a point of the current chunk takes 15,182 B (folded: 10,025 B). Any other point
takes 12 B with checkpoint and 11 B with deferred, for its random numbers and its share of the pixels.
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
# At least so many points without gradients fit into the memory of one point with gradients, in any precision.
_WIDER = {"eager": 2, "folded": 3}
Shade = Callable[..., tuple[Tensor, ...]]  # (chunk, *tensors) -> tensors (B, R, ...) of the chunk


def by_chunks(
    shade: Shade, tensors: tuple[Tensor, ...], *, images: int, rays: int, chunk: int | None, memory: Memory
) -> tuple[Tensor, ...]:
    """Call `shade` for all chunks and join the results: tensors (B, R, ...).

    tensors: those that get gradients; `shade` must not use any others that need gradients.
    """
    parts = parts_of(images, rays, chunk, memory)
    if memory == "deferred" and torch.is_grad_enabled():
        return _Deferred.apply(shade, parts, *tensors)
    if memory == "checkpoint" and torch.is_grad_enabled():
        # All random numbers were drawn beforehand, so there is no random state to preserve.
        outputs = [
            checkpoint(shade, part, *tensors, use_reentrant=False, preserve_rng_state=False) for part in parts
        ]
    else:
        outputs = [shade(part, *tensors) for part in parts]
    return _join(outputs, parts, images, rays)


def wider(chunk: int | None, form: str) -> int | None:
    """Chunk for rendering without gradients that needs no more memory than `chunk` rays with gradients."""
    return None if chunk is None else _WIDER[form] * chunk


def parts_of(images: int, rays: int, chunk: int | None, memory: Memory = "none") -> list[Part]:
    """Divide rays into chunks of at most `chunk` rays that are as even as possible.

    A chunk contains some rays of every image, or one ray of some images.
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
    """Slices of length at most `most`; their lengths differ by at most one."""
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
    """Renders without a graph, and again in the backward pass, one chunk at a time."""

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
        needs_grad = ctx.needs_input_grad[2:]
        # Separate leaves, so that a hook on a parameter runs once with the whole gradient, not once per
        # chunk.
        leaves = [
            tensor.detach().requires_grad_(want)
            for tensor, want in zip(ctx.saved_tensors, needs_grad, strict=True)
        ]
        trainable = [leaf for leaf in leaves if leaf.requires_grad]
        sums: list[Tensor | None] = [None] * len(trainable)
        for part in ctx.parts:
            # No cache of cast weights, which would connect the graphs of different chunks.
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
        return None, None, *(next(back) if want else None for want in needs_grad)
