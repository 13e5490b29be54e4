"""From the view layer to pixels and back without autograd: tints, colour, density, compositing in fp32.

On CUDA each step is one Triton kernel; on other devices it is plain torch, with the same values as
`composite`. Letters: B images, R rays per image, S points per ray, N points of a chunk, C width of the view
layer with the density and zeros, F features of the view layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pinchpoint.kit.edges.edge_ops import is_fake
from pinchpoint.systems.radiance.model.folded import FoldedField, some
from pinchpoint.systems.radiance.rendering.compositing import ENDLESS, Scene, composite, depths_of, path_of
from pinchpoint.systems.radiance.rendering.points import Sums
from pinchpoint.systems.radiance.rendering.strategies import Part

if TYPE_CHECKING:
    from pinchpoint.systems.radiance.rendering.compositing_triton import Along

MOST_SAMPLES = 1024  # limit of the Triton kernels, where one program composites a ray


class Pixels(NamedTuple):
    """rgb: (B, R, 3); depth, acc: (B, R); features: (B, R, F). Or their gradients, contiguous."""

    rgb: Tensor | None
    depth: Tensor | None
    acc: Tensor | None
    features: Tensor | None


def forward(scene: Scene, part: Part, view: Tensor, raw: Tensor, out: Pixels, *, own: bool) -> None:
    """Write the pixels of a chunk. view, raw: as modified and returned by `colour_points`."""
    weights = _composite(scene, part, raw, out, own=own)
    if out.features is None or weights is None:
        return
    samples, features = scene.offsets.shape[2], out.features.shape[2]
    features_seen = torch.bmm(
        weights.to(view.dtype).view(-1, 1, samples), view.view(-1, samples, view.shape[1])[..., :features]
    )
    into = out.features[part]
    into.copy_(features_seen.view(into.shape))


def backward(
    scene: Scene,
    field: FoldedField,
    part: Part,
    view: Tensor,
    raw: Tensor,
    of: Pixels,
    sums: Sums,
    towards: Tensor,
) -> Tensor:
    """Gradient of the view layer before tints, (N, C), from those of the pixels, (B, R, ...).

    towards: (B, r, D). The gradients of the weights of colour, tints and directions are added to `sums`.
    """
    samples, features, own = scene.offsets.shape[2], field.colour.shape[1], sums.own
    rays = view.shape[0] // samples
    of_weights = None
    if of.features is not None:
        slope = of.features[part].to(view.dtype).reshape(rays, features, 1)
        of_weights = torch.bmm(view.view(rays, samples, -1)[..., :features], slope).flatten().to(raw.dtype)
    slopes, weights = _composite_backward(scene, part, raw, of, of_weights, own=own)
    of_view, of_tints = _colour_backward(scene, field, part, view, slopes, weights, of.features, sums)
    some(sums.view, part[0]).baddbmm_(towards.transpose(1, 2), of_tints.view(*towards.shape[:2], -1))
    return of_view


def colour_points(field: FoldedField, view: Tensor, tints: Tensor, *, write: bool, own: bool) -> Tensor:
    """view: (N, C); tints: (rays, C) -> colour and density before activations, (4, N).

    write: replace `view` by its relu in place.
    """
    features = field.colour.shape[1]
    raw = view.new_empty(4, len(view), dtype=tints.dtype)
    if not own:
        view.view(len(tints), -1, view.shape[1]).add_(tints[:, None])
        raw[3] = view[:, features]
        raw[:3] = torch.addmm(field.colour_bias[:, None], field.colour, view[:, :features].relu_().t())
    elif not is_fake(view):
        from pinchpoint.systems.radiance.rendering import shading_triton

        shading_triton.colour(
            view, tints, field.colour, field.colour_bias, raw, features=features, write=write
        )
    return raw


def _colour_backward(
    scene: Scene,
    field: FoldedField,
    part: Part,
    view: Tensor,
    slopes: Tensor,
    weights: Tensor | None,
    of_features: Tensor | None,
    sums: Sums,
) -> tuple[Tensor, Tensor]:
    """Gradients of the view layer, (N, C), and of the tints, (rays, C), from `slopes` (4, N) of raw."""
    features, rays = field.colour.shape[1], len(view) // scene.offsets.shape[2]
    of_view = torch.empty_like(view)
    of_tints = slopes.new_empty(rays, view.shape[1])
    if sums.own:
        if not is_fake(view):
            from pinchpoint.systems.radiance.rendering import shading_triton

            shading_triton.uncolour(
                slopes,
                view,
                field.colour,
                of_view,
                of_tints,
                sums.colour,
                weights,
                of_features,
                _along(scene, part),
                features=features,
            )
        return of_view, of_tints
    of_colour, act, of_act = slopes[:3].to(view.dtype), view[:, :features], of_view[:, :features]
    torch.mm(of_colour.t(), field.colour, out=of_act)
    if of_features is not None and weights is not None:
        shared = weights.view(rays, -1, 1) * of_features[part].flatten(0, 1)[:, None]
        of_act += shared.view(len(view), features)
    of_view[:, features:] = 0
    of_view[:, features] = slopes[3]
    torch.ops.aten.threshold_backward.grad_input(of_act, act, 0, grad_input=of_act)
    sums.colour[:, :features] += of_colour @ act
    sums.colour[:, features] += slopes[:3].sum(1)
    torch.sum(of_view.view(rays, -1, of_view.shape[1]), 1, dtype=of_tints.dtype, out=of_tints)
    return of_view, of_tints


def _composite(scene: Scene, part: Part, raw: Tensor, out: Pixels, *, own: bool) -> Tensor | None:
    """Write rgb, depth and acc of a chunk; return the weights of its points, (N,), if features need them.

    raw: (4, N).
    """
    needs_weights = out.features is not None
    rgb, depth, acc = out.rgb, out.depth, out.acc
    assert rgb is not None and depth is not None and acc is not None
    if not own:
        depths = depths_of(scene.rays, scene.offsets[part])
        colour, density = raw[:3].t().reshape(*depths.shape, 3), raw[3].view(depths.shape)
        noise = None if scene.noise is None else scene.noise[part]
        rgb[part], depth[part], acc[part], weights = composite(
            colour, density, depths, far=scene.rays.far, noise=noise, white=scene.white, endless=scene.endless
        )
        return weights.flatten() if needs_weights else None
    weights = torch.empty_like(raw[0]) if needs_weights else None
    if not is_fake(raw):
        from pinchpoint.systems.radiance.rendering import compositing_triton

        compositing_triton.composite(raw, _along(scene, part), rgb, depth, acc, weights, white=scene.white)
    return weights


def _composite_backward(
    scene: Scene, part: Part, raw: Tensor, of: Pixels, of_weights: Tensor | None, *, own: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of raw, (4, N), and the weights of the points, (N,), if features need them."""
    slopes = torch.empty_like(raw)
    if own:
        weights = None if of_weights is None else torch.empty_like(of_weights)
        if not is_fake(raw):
            from pinchpoint.systems.radiance.rendering import compositing_triton

            of_pixels = of.rgb, of.depth, of.acc, of_weights
            compositing_triton.uncomposite(
                raw, _along(scene, part), of_pixels, slopes, weights, white=scene.white
            )
        return slopes, weights
    depths = depths_of(scene.rays, scene.offsets[part])
    noise = None if scene.noise is None else scene.noise[part]
    path = path_of(raw[3].view(depths.shape), depths, far=scene.rays.far, noise=noise, endless=scene.endless)
    weights = path.weights
    # change of a pixel per unit of weight
    worth = torch.zeros_like(depths) if of_weights is None else of_weights.view(depths.shape)
    if of.rgb is None:
        slopes[:3] = 0
    else:
        light, of_pixels = (
            torch.sigmoid(raw[:3].view(3, *depths.shape)),
            of.rgb[part].movedim(-1, 0)[..., None],
        )
        worth = worth + (of_pixels * (light - 1 if scene.white else light)).sum(0)
        slopes[:3].view(light.shape).copy_(of_pixels * weights * light * (1 - light))
    if of.depth is not None:
        worth = worth + of.depth[part][..., None] * depths
    if of.acc is not None:
        worth = worth + of.acc[part][..., None]
    # A denser point dims all points behind it, hence the sum from the last point on.
    behind = (weights * worth)[..., 1:].flip(-1).cumsum(-1).flip(-1)
    of_optical_depth = worth * torch.exp(-path.before - path.optical_depth) - torch.nn.functional.pad(
        behind, (0, 1)
    )
    slopes[3].view(depths.shape).copy_(torch.where(path.thick > 0, of_optical_depth * path.lengths, 0))
    return slopes, weights.flatten()


def _along(scene: Scene, part: Part) -> Along:
    from pinchpoint.systems.radiance.rendering.compositing_triton import Along

    rays = scene.rays
    return Along(
        scene.offsets,
        scene.noise,
        (part[0].start, part[1].start),
        part[1].stop - part[1].start,
        rays.near,
        rays.far,
        (rays.far - rays.near) / scene.offsets.shape[2],
        ENDLESS if scene.endless else -1.0,
    )
