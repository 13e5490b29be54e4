"""Rendering of a folded field in chunks, as one autograd function with a handwritten backward pass.

The state that the backward pass needs of each chunk is stored, or recomputed (`again`) so that only one chunk
is in memory at a time. The backward pass starts with the last chunk, which may be kept from the forward pass.
Weights are folded and cast once per render; gradients are summed over chunks in fp32.

The preset graf stores 9,024 B per point in fp32 and 4,528 B in bf16 (`Field`: 13,560 and 6,490). The peak of
a step on CUDA is 11,069 and 5,547 B per point, or 10,025 and 5,017 B for a recomputed chunk. Letters: B
images, R rays per image, F features; others as in `points` and `shading`.
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
    own: bool  # whether to use the Triton kernels
    fused: bool = False  # whether to use those of whole layers


class State(NamedTuple):
    """Tensors of a chunk for the backward pass."""

    encoding: Tensor  # (B, P, K)
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
    """Whether the Triton kernels support this scene."""
    rays, tensors = scene.rays, [scene.offsets, scene.rays.origins, scene.rays.directions]
    return (
        own_kernels(scene.offsets)
        and dtype in _KERNELS
        and scene.offsets.shape[2] <= shading.MOST_SAMPLES
        and max(config.point_octaves, config.direction_octaves) <= points.MOST_OCTAVES
        and all(
            tensor.dtype is torch.float32
            for tensor in (*tensors, *([] if scene.noise is None else [scene.noise]))
        )
        and rays.origins.stride(2) == rays.directions.stride(2) == 1
    )


def _render_parts(
    plan: Plan, z_shape: Tensor, z_app: Tensor, parameters: Sequence[Tensor], *, keep: bool
) -> tuple[tuple[Tensor, ...], FoldedField, list[State]]:
    config, (images, rays, _) = plan.config, plan.scene.offsets.shape
    by_name = dict(zip(plan.names, parameters, strict=True))
    device = z_shape.device
    with torch.autocast(device.type, enabled=False), on_device(z_shape):
        field = FoldedField(config, by_name, z_shape, z_app, dtype=plan.dtype)
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
    """Compute the state of a chunk, without its pixels. keep: include what only the backward pass needs."""
    config, scene, own = plan.config, plan.scene, plan.own
    encoding = points.encoded_points(config, scene, part, plan.dtype, own=own)
    towards = points.encoded_directions(config, scene, part, own=own)
    hidden, view = points.forward(field, encoding, part[0], keep=keep, fused=plan.fused)
    tints = torch.bmm(towards, some(field.view, part[0])).flatten(0, 1)
    raw = shading.colour_points(field, view, tints, write=keep or plan.features, own=own)
    return State(encoding, towards, view, raw, hidden)


def _saved_state(saved_tensors: Iterator[Tensor], config: FieldConfig) -> State:
    """Read the state of the next chunk, as saved by `_Image`."""
    encoding, towards, view, raw = (next(saved_tensors) for _ in range(4))
    return State(encoding, towards, view, raw, [next(saved_tensors) for _ in range(config.depth)])


def _back(plan: Plan, field: FoldedField, part: Part, state: State, of: Pixels, sums: points.Sums) -> None:
    """Run the backward pass of a chunk, releasing tensors as early as possible."""
    slopes = [shading.backward(plan.scene, field, part, state.view, state.raw, of, sums, state.towards)]
    encoding, hidden = state.encoding, state.hidden
    del state
    back = points.backward_fused if sums.fused else points.backward
    back(field, encoding, hidden, slopes.pop(), sums, part[0])


class _Image(torch.autograd.Function):
    """The image, with the state for its gradient."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, z_shape: Tensor, z_app: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        out, field, states = _render_parts(plan, z_shape, z_app, parameters, keep=True)
        ctx.plan, ctx.field = plan, field
        # Tensors saved by autograd live until the whole backward pass ends, so a chunk that must be released
        # earlier is stored on ctx instead.
        ctx.states = states if plan.again else []
        saved_tensors = (
            [] if plan.again else [tensor for *tensors, hidden in states for tensor in (*tensors, *hidden)]
        )
        ctx.save_for_backward(z_shape, z_app, *parameters, *saved_tensors)
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor | None
    ) -> tuple[Any, ...]:
        plan, field, config = ctx.plan, ctx.field, ctx.plan.config
        saved_tensors = iter(ctx.saved_tensors)
        z_shape, z_app = next(saved_tensors), next(saved_tensors)
        parameters = {name: next(saved_tensors) for name in plan.names}
        pixel_slopes = [None if slope is None else slope.contiguous() for slope in gradients]
        of = Pixels(*pixel_slopes[:3], features=pixel_slopes[3] if plan.features else None)
        with torch.autocast(z_shape.device.type, enabled=False), on_device(z_shape):
            sums = points.Sums(field, own=plan.own, fused=plan.fused)
            states = ctx.states if plan.again else [_saved_state(saved_tensors, config) for _ in plan.parts]
            for part in reversed(plan.parts):
                _back(
                    plan,
                    field,
                    part,
                    states.pop() if states else _state(plan, field, part, keep=True),
                    of,
                    sums,
                )
            of_shape, of_app, named_slopes = unfold(config, parameters, z_shape, z_app, sums.total())
        slopes = (None, of_shape, of_app, *(named_slopes[name] for name in plan.names))
        return tuple(
            slope if needs_gradient else None
            for slope, needs_gradient in zip(slopes, ctx.needs_input_grad, strict=True)
        )
