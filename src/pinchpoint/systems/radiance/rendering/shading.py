"""From the layer of the view to pixels and back, without autograd: tints, colour and density, compositing in fp32.

On CUDA each is one kernel of ours, elsewhere plain torch with the values of `composite`. B images, R rays of each, S points of
a ray, N points of a part; C the layer of the view with the density and zeros beside it, F its features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pinchpoint.kit.edges.edge_ops import is_fake
from pinchpoint.systems.radiance.model.folded import Folded, some
from pinchpoint.systems.radiance.rendering.compositing import ENDLESS, Scene, composite, depths_of, path_of
from pinchpoint.systems.radiance.rendering.points import Sums
from pinchpoint.systems.radiance.rendering.strategies import Part

if TYPE_CHECKING:
    from pinchpoint.systems.radiance.rendering.compositing_triton import Along

MOST_SAMPLES = 1024  # of our kernels: a ray is composited by one program


class Pixels(NamedTuple):
    """rgb: (B, R, 3); depth, acc: (B, R); features: (B, R, F). Or their gradients, in one piece each."""

    rgb: Tensor | None
    depth: Tensor | None
    acc: Tensor | None
    features: Tensor | None


def forward(scene: Scene, part: Part, seen: Tensor, raw: Tensor, out: Pixels, *, own: bool) -> None:
    """seen, raw: as `coloured` leaves and makes them; writes the part's pixels."""
    weights = _composited(scene, part, raw, out, own=own)
    if out.features is None or weights is None:
        return
    samples, features = scene.offsets.shape[2], out.features.shape[2]
    mixed = torch.bmm(
        weights.to(seen.dtype).view(-1, 1, samples), seen.view(-1, samples, seen.shape[1])[..., :features]
    )
    into = out.features[part]
    into.copy_(mixed.view(into.shape))


def backward(
    scene: Scene,
    folded: Folded,
    part: Part,
    seen: Tensor,
    raw: Tensor,
    of: Pixels,
    sums: Sums,
    towards: Tensor,
) -> Tensor:
    """Gradients of the pixels, (B, R, ...), to that of the layer of the view before tints: (N, C). towards: (B, r, D).

    Adds to `sums` what the colour, the tints and the directions' weights get.
    """
    samples, features, own = scene.offsets.shape[2], folded.colour.shape[1], sums.own
    rays = seen.shape[0] // samples
    of_weights = None
    if of.features is not None:
        slope = of.features[part].to(seen.dtype).reshape(rays, features, 1)
        of_weights = torch.bmm(seen.view(rays, samples, -1)[..., :features], slope).flatten().to(raw.dtype)
    slopes, weights = _uncomposited(scene, part, raw, of, of_weights, own=own)
    made, of_tints = _uncoloured(scene, folded, part, seen, slopes, weights, of.features, sums)
    some(sums.view, part[0]).baddbmm_(towards.transpose(1, 2), of_tints.view(*towards.shape[:2], -1))
    return made


def coloured(folded: Folded, seen: Tensor, tints: Tensor, *, write: bool, own: bool) -> Tensor:
    """seen: (N, C); tints: (rays, C) -> colour and density before activations, (4, N); write: seen after relu stays there."""
    features = folded.colour.shape[1]
    raw = seen.new_empty(4, len(seen), dtype=tints.dtype)
    if not own:
        seen.view(len(tints), -1, seen.shape[1]).add_(tints[:, None])
        raw[3] = seen[:, features]
        raw[:3] = torch.addmm(folded.colour_bias[:, None], folded.colour, seen[:, :features].relu_().t())
    elif not is_fake(seen):
        from pinchpoint.systems.radiance.rendering import shading_triton

        shading_triton.colour(
            seen, tints, folded.colour, folded.colour_bias, raw, features=features, write=write
        )
    return raw


def _uncoloured(
    scene: Scene,
    folded: Folded,
    part: Part,
    seen: Tensor,
    slopes: Tensor,
    weights: Tensor | None,
    of_features: Tensor | None,
    sums: Sums,
) -> tuple[Tensor, Tensor]:
    """slopes: (4, N) of raw -> (N, C) of the layer of the view, and of the tints (rays, C)."""
    features, rays = folded.colour.shape[1], len(seen) // scene.offsets.shape[2]
    made = torch.empty_like(seen)
    of_tints = slopes.new_empty(rays, seen.shape[1])
    if sums.own:
        if not is_fake(seen):
            from pinchpoint.systems.radiance.rendering import shading_triton

            shading_triton.uncolour(
                slopes,
                seen,
                folded.colour,
                made,
                of_tints,
                sums.colour,
                weights,
                of_features,
                _along(scene, part),
                features=features,
            )
        return made, of_tints
    of_colour, act, of_act = slopes[:3].to(seen.dtype), seen[:, :features], made[:, :features]
    torch.mm(of_colour.t(), folded.colour, out=of_act)
    if of_features is not None and weights is not None:
        shared = weights.view(rays, -1, 1) * of_features[part].flatten(0, 1)[:, None]
        of_act += shared.view(len(seen), features)
    made[:, features:] = 0
    made[:, features] = slopes[3]
    torch.ops.aten.threshold_backward.grad_input(of_act, act, 0, grad_input=of_act)
    sums.colour[:, :features] += of_colour @ act
    sums.colour[:, features] += slopes[:3].sum(1)
    torch.sum(made.view(rays, -1, made.shape[1]), 1, dtype=of_tints.dtype, out=of_tints)
    return made, of_tints


def _composited(scene: Scene, part: Part, raw: Tensor, out: Pixels, *, own: bool) -> Tensor | None:
    """raw: (4, N). Writes the part's rgb, depth and acc; gives the weights of its points, (N,), where features need them."""
    wanted = out.features is not None
    rgb, depth, acc = out.rgb, out.depth, out.acc
    assert rgb is not None and depth is not None and acc is not None
    if not own:
        depths = depths_of(scene.rays, scene.offsets[part])
        colour, density = raw[:3].t().reshape(*depths.shape, 3), raw[3].view(depths.shape)
        noise = None if scene.noise is None else scene.noise[part]
        rgb[part], depth[part], acc[part], weights = composite(
            colour, density, depths, far=scene.rays.far, noise=noise, white=scene.white, endless=scene.endless
        )
        return weights.flatten() if wanted else None
    weights = torch.empty_like(raw[0]) if wanted else None
    if not is_fake(raw):
        from pinchpoint.systems.radiance.rendering import compositing_triton

        compositing_triton.composite(raw, _along(scene, part), rgb, depth, acc, weights, white=scene.white)
    return weights


def _uncomposited(
    scene: Scene, part: Part, raw: Tensor, of: Pixels, of_weights: Tensor | None, *, own: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of raw, (4, N), and the weights of the points, (N,), where features need them."""
    slopes = torch.empty_like(raw)
    if own:
        weights = None if of_weights is None else torch.empty_like(of_weights)
        if not is_fake(raw):
            from pinchpoint.systems.radiance.rendering import compositing_triton

            given = of.rgb, of.depth, of.acc, of_weights
            compositing_triton.uncomposite(
                raw, _along(scene, part), given, slopes, weights, white=scene.white
            )
        return slopes, weights
    depths = depths_of(scene.rays, scene.offsets[part])
    noise = None if scene.noise is None else scene.noise[part]
    path = path_of(raw[3].view(depths.shape), depths, far=scene.rays.far, noise=noise, endless=scene.endless)
    weights = path.weights
    worth = (
        torch.zeros_like(depths) if of_weights is None else of_weights.view(depths.shape)
    )  # what a pixel gains by a weight
    if of.rgb is None:
        slopes[:3] = 0
    else:
        light, given = torch.sigmoid(raw[:3].view(3, *depths.shape)), of.rgb[part].movedim(-1, 0)[..., None]
        worth = worth + (given * (light - 1 if scene.white else light)).sum(0)
        slopes[:3].view(light.shape).copy_(given * weights * light * (1 - light))
    if of.depth is not None:
        worth = worth + of.depth[part][..., None] * depths
    if of.acc is not None:
        worth = worth + of.acc[part][..., None]
    # Less transmittance for all points behind: the sum from the last one on.
    behind = (weights * worth)[..., 1:].flip(-1).cumsum(-1).flip(-1)
    of_passed = worth * torch.exp(-path.before - path.passed) - torch.nn.functional.pad(behind, (0, 1))
    slopes[3].view(depths.shape).copy_(torch.where(path.thick > 0, of_passed * path.lengths, 0))
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
