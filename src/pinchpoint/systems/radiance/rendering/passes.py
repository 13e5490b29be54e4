"""Rendering of a folded field as one autograd function with its own backward pass, chunk by chunk.

What the backward pass needs of each chunk is kept, or recomputed one chunk at a time (`again`), which then
holds a single chunk. The backward pass starts with the last chunk, so that one may be kept from the forward
pass. Weights are folded and cast once per render; gradients are summed over chunks in fp32.

Preset graf holds 9,024 B per point in fp32, 4,528 in bf16 (`Field`: 13,560 and 6,490); the most in a step on
CUDA, counted, is 11,069 and 5,547; for a recomputed chunk 10,025 and 5,017. Letters: B images, R rays of
each, F features; others as in `points` and `shading`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pinchpoint.kit.edges.edge_ops import on_device, own_kernels
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.folded import FoldedField, some, unfold
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
    dtype: torch.dtype  # type of the matrix products
    again: int  # number of chunks, from the first on, that the backward pass recomputes
    features: bool
    names: tuple[str, ...]  # names of the parameters
    own: bool  # whether our own kernels run


class State(NamedTuple):
    """What a chunk holds for the backward pass."""

    encoded: Tensor  # (B, P, K)
    towards: Tensor  # (B, r, D)
    view: Tensor  # (N, C) view layer after its activation
    raw: Tensor  # (4, N)
    hidden: list[Tensor]  # (N, H) each


def image(plan: Plan, z_shape: Tensor, z_app: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """rgb (B, R, 3), depth, acc (B, R) and, if requested, features (B, R, F)."""
    if torch.is_grad_enabled():
        return _Image.apply(plan, z_shape, z_app, *parameters)
    return _render_parts(plan, z_shape, z_app, parameters, keep=False)[0]


def runs_own(config: FieldConfig, scene: Scene, dtype: torch.dtype) -> bool:
    """Whether our kernels can compute this scene."""
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


def _render_parts(
    plan: Plan, z_shape: Tensor, z_app: Tensor, parameters: Sequence[Tensor], *, keep: bool
) -> tuple[tuple[Tensor, ...], FoldedField, list[State]]:
    config, (images, rays, _) = plan.config, plan.scene.offsets.shape
    named = dict(zip(plan.names, parameters, strict=True))
    device = z_shape.device
    with torch.autocast(device.type, enabled=False), on_device(z_shape):
        field = FoldedField(config, named, z_shape, z_app, dtype=plan.dtype)
        wide = torch.promote_types(plan.dtype, torch.float32)
        shape = {"rgb": (images, rays, 3), "depth": (images, rays), "acc": (images, rays)}
        if plan.features:
            shape["features"] = images, rays, config.features
        out = {name: torch.empty(size, dtype=wide, device=device) for name, size in shape.items()}
        pixels = Pixels(out["rgb"], out["depth"], out["acc"], out.get("features"))
        states = []
        for at, part in enumerate(plan.parts):
            state = _state(plan, field, part, keep=keep and at >= plan.again)
            shading.forward(plan.scene, part, state.view, state.raw, pixels, own=plan.own)
            if keep and at >= plan.again:
                states.append(state)
            del state  # before the next chunk is rendered
    return tuple(out.values()), field, states


def _state(plan: Plan, field: FoldedField, part: Part, *, keep: bool) -> State:
    """The state of a chunk, without its pixels. keep: for the backward pass."""
    config, scene, own = plan.config, plan.scene, plan.own
    encoded = points.encoded_points(config, scene, part, plan.dtype, own=own)
    towards = points.encoded_directions(config, scene, part, own=own)
    hidden, view = points.forward(field, encoded, part[0], keep=keep)
    tints = torch.bmm(towards, some(field.view, part[0])).flatten(0, 1)
    raw = shading.colour_points(field, view, tints, write=keep or plan.features, own=own)
    return State(encoded, towards, view, raw, hidden)


def _saved_state(saved: Iterator[Tensor], config: FieldConfig) -> State:
    """The next chunk's state, as `_Image` saves it."""
    encoded, towards, view, raw = (next(saved) for _ in range(4))
    return State(encoded, towards, view, raw, [next(saved) for _ in range(config.depth)])


def _back(plan: Plan, field: FoldedField, part: Part, state: State, of: Pixels, sums: points.Sums) -> None:
    """Backward pass of a chunk; tensors nobody else holds are released as soon as possible."""
    slopes = [shading.backward(plan.scene, field, part, state.view, state.raw, of, sums, state.towards)]
    encoded, hidden = state.encoded, state.hidden
    del state
    points.backward(field, encoded, hidden, slopes.pop(), sums, part[0])


class _Image(torch.autograd.Function):
    """The image, and what is held for its gradient."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, z_shape: Tensor, z_app: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        out, field, states = _render_parts(plan, z_shape, z_app, parameters, keep=True)
        ctx.plan, ctx.field = plan, field
        # Saved tensors live until the whole backward pass ends; a chunk that must make room for others is
        # held here alone.
        ctx.states = states if plan.again else []
        saved = (
            [] if plan.again else [tensor for *tensors, hidden in states for tensor in (*tensors, *hidden)]
        )
        ctx.save_for_backward(z_shape, z_app, *parameters, *saved)
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor | None
    ) -> tuple[Any, ...]:
        plan, field, config = ctx.plan, ctx.field, ctx.plan.config
        saved = iter(ctx.saved_tensors)
        z_shape, z_app = next(saved), next(saved)
        named = {name: next(saved) for name in plan.names}
        pixel_slopes = [None if slope is None else slope.contiguous() for slope in gradients]
        of = Pixels(*pixel_slopes[:3], features=pixel_slopes[3] if plan.features else None)
        with torch.autocast(z_shape.device.type, enabled=False), on_device(z_shape):
            sums = points.Sums(field, own=plan.own)
            states = ctx.states if plan.again else [_saved_state(saved, config) for _ in plan.parts]
            for part in reversed(plan.parts):
                _back(
                    plan,
                    field,
                    part,
                    states.pop() if states else _state(plan, field, part, keep=True),
                    of,
                    sums,
                )
            of_shape, of_app, named_slopes = unfold(config, named, z_shape, z_app, sums.total())
        slopes = (None, of_shape, of_app, *(named_slopes[name] for name in plan.names))
        return tuple(
            slope if needed else None for slope, needed in zip(slopes, ctx.needs_input_grad, strict=True)
        )
