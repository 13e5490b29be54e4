"""Images of a folded field as one function with a backward pass of its own, part by part, without autograd inside.

What the parts hold for the way back is kept, or made again a part at a time (`again`), which holds one part and nothing else.
The way back begins with the last part: kept from the way there, it is that one. Weights are folded and cast once a render;
gradients are summed over parts in fp32.

Held in preset graf are 9,024 B a point in fp32, 4,528 in bf16 (`Field`: 13,560 and 6,490); most in a step on CUDA, counted,
11,069 and 5,547; of a part that is made again 10,025 and 5,017. Letters: B images, R rays of each, F features; others as in
`points` and `shading`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pinchpoint.kit.edges.edge_ops import on_device, own_kernels
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.folded import Folded, some, unfold
from pinchpoint.systems.radiance.rendering import points, shading
from pinchpoint.systems.radiance.rendering.compositing import Scene
from pinchpoint.systems.radiance.rendering.shading import Pixels
from pinchpoint.systems.radiance.rendering.strategies import Part

_KERNELS = (torch.float32, torch.bfloat16, torch.float16)


class Plan(NamedTuple):
    """How an image is computed."""

    config: FieldConfig
    scene: Scene
    parts: Sequence[Part]
    dtype: torch.dtype  # of the products
    again: int  # parts, from the first on, of which what the way back needs is made again
    features: bool
    names: tuple[str, ...]  # of the parameters
    own: bool  # by kernels of ours


class State(NamedTuple):
    """What a part holds for the way back."""

    encoded: Tensor  # (B, P, K)
    towards: Tensor  # (B, r, D)
    seen: Tensor  # (N, C) after its activation
    raw: Tensor  # (4, N)
    kept: list[Tensor]  # (N, H) each


def image(plan: Plan, z_shape: Tensor, z_app: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """rgb (B, R, 3), depth, acc (B, R) and, where asked for, features (B, R, F)."""
    if torch.is_grad_enabled():
        return _Image.apply(plan, z_shape, z_app, *parameters)
    return _made(plan, z_shape, z_app, parameters, keep=False)[0]


def runs_own(config: FieldConfig, scene: Scene, dtype: torch.dtype) -> bool:
    """Do our kernels compute this there?"""
    rays, read = scene.rays, [scene.offsets, scene.rays.origins, scene.rays.directions]
    return (
        own_kernels(scene.offsets)
        and dtype in _KERNELS
        and scene.offsets.shape[2] <= shading.MOST_SAMPLES
        and max(config.point_octaves, config.direction_octaves) <= points.MOST_OCTAVES
        and all(
            tensor.dtype is torch.float32
            for tensor in (*read, *([] if scene.noise is None else [scene.noise]))
        )
        and rays.origins.stride(2) == rays.directions.stride(2) == 1
    )


def _made(
    plan: Plan, z_shape: Tensor, z_app: Tensor, parameters: Sequence[Tensor], *, keep: bool
) -> tuple[tuple[Tensor, ...], Folded, list[State]]:
    config, (images, rays, _) = plan.config, plan.scene.offsets.shape
    named = dict(zip(plan.names, parameters, strict=True))
    device = z_shape.device
    with torch.autocast(device.type, enabled=False), on_device(z_shape):
        folded = Folded(config, named, z_shape, z_app, dtype=plan.dtype)
        wide = torch.promote_types(plan.dtype, torch.float32)
        shape = {"rgb": (images, rays, 3), "depth": (images, rays), "acc": (images, rays)}
        if plan.features:
            shape["features"] = images, rays, config.features
        out = {name: torch.empty(size, dtype=wide, device=device) for name, size in shape.items()}
        pixels = Pixels(out["rgb"], out["depth"], out["acc"], out.get("features"))
        states = []
        for at, part in enumerate(plan.parts):
            state = _state(plan, folded, part, keep=keep and at >= plan.again)
            shading.forward(plan.scene, part, state.seen, state.raw, pixels, own=plan.own)
            if keep and at >= plan.again:
                states.append(state)
            del state  # before the next part is rendered
    return tuple(out.values()), folded, states


def _state(plan: Plan, folded: Folded, part: Part, *, keep: bool) -> State:
    """Of a part, all but its pixels. keep: for the way back."""
    config, scene, own = plan.config, plan.scene, plan.own
    encoded = points.encoded_points(config, scene, part, plan.dtype, own=own)
    towards = points.encoded_directions(config, scene, part, own=own)
    kept, seen = points.forward(folded, encoded, part[0], keep=keep)
    tints = torch.bmm(towards, some(folded.view, part[0])).flatten(0, 1)
    raw = shading.coloured(folded, seen, tints, write=keep or plan.features, own=own)
    return State(encoded, towards, seen, raw, kept)


def _held(saved: Iterator[Tensor], config: FieldConfig) -> State:
    """The next part's, as `_Image` saves it."""
    encoded, towards, seen, raw = (next(saved) for _ in range(4))
    return State(encoded, towards, seen, raw, [next(saved) for _ in range(config.depth)])


def _back(plan: Plan, folded: Folded, part: Part, state: State, of: Pixels, sums: points.Sums) -> None:
    """The way back of a part. What is held by nobody else goes as soon as it is not needed."""
    slopes = [shading.backward(plan.scene, folded, part, state.seen, state.raw, of, sums, state.towards)]
    encoded, kept = state.encoded, state.kept
    del state
    points.backward(folded, encoded, kept, slopes.pop(), sums, part[0])


class _Image(torch.autograd.Function):
    """The image, and what is held of it for its gradient."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, z_shape: Tensor, z_app: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        out, folded, states = _made(plan, z_shape, z_app, parameters, keep=True)
        ctx.plan, ctx.folded = plan, folded
        # Saved tensors stay until the whole way back is done: of a part that makes room for others we are the only holder.
        ctx.held = states if plan.again else []
        saved = [] if plan.again else [tensor for *tensors, kept in states for tensor in (*tensors, *kept)]
        ctx.save_for_backward(z_shape, z_app, *parameters, *saved)
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor | None
    ) -> tuple[Any, ...]:
        plan, folded, config = ctx.plan, ctx.folded, ctx.plan.config
        saved = iter(ctx.saved_tensors)
        z_shape, z_app = next(saved), next(saved)
        named = {name: next(saved) for name in plan.names}
        given = [None if slope is None else slope.contiguous() for slope in gradients]
        of = Pixels(*given[:3], features=given[3] if plan.features else None)
        with torch.autocast(z_shape.device.type, enabled=False), on_device(z_shape):
            sums = points.Sums(folded, own=plan.own)
            held = ctx.held if plan.again else [_held(saved, config) for _ in plan.parts]
            for part in reversed(plan.parts):
                _back(
                    plan,
                    folded,
                    part,
                    held.pop() if held else _state(plan, folded, part, keep=True),
                    of,
                    sums,
                )
            of_shape, of_app, named_slopes = unfold(config, named, z_shape, z_app, sums.found())
        found = (None, of_shape, of_app, *(named_slopes[name] for name in plan.names))
        return tuple(
            slope if wanted else None for slope, wanted in zip(found, ctx.needs_input_grad, strict=True)
        )
