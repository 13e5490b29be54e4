"""Images of a field: points along rays, the field at them, composited in fp32; in one piece or by chunks of rays.

B images, R rays of each, S points of a ray, F features. What is random is drawn before (`Draws`), so that whatever is computed
again is computed with the same numbers. `form` and `memory` choose how an image is computed, never which.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.precision import autocast
from pinchpoint.systems.radiance.model.field import Field
from pinchpoint.systems.radiance.rendering.compositing import Scene, composite, depths_of, points_of
from pinchpoint.systems.radiance.rendering.passes import Plan, image, runs_own
from pinchpoint.systems.radiance.rendering.rays import Rays
from pinchpoint.systems.radiance.rendering.strategies import Memory, by_chunks, parts_of

Form = Literal["eager", "folded"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
_NOTHING = -1e9  # added to a density, which is then none


class Codes(NamedTuple):
    """shape: (B, z_shape); app: (B, z_app)."""

    shape: Tensor
    app: Tensor


@dataclass(frozen=True)
class Draws:
    """What is random in a render. offsets: (B, R, S) in [0, 1), where in its interval a point lies; noise: on the density."""

    offsets: Tensor
    noise: Tensor | None = None  # (B, R, S)

    @property
    def samples(self) -> int:
        return self.offsets.shape[2]

    def part(self, images: slice, rays: slice = slice(None)) -> Draws:
        return Draws(self.offsets[images, rays], None if self.noise is None else self.noise[images, rays])


class Rendered(NamedTuple):
    """rgb: (B, R, 3) in [0, 1]; depth, acc: (B, R), distance of what is seen and how much of it there is; features: (B, R, F)."""

    rgb: Tensor
    depth: Tensor
    acc: Tensor
    features: Tensor | None


def joined(blocks: Sequence[Rendered]) -> Rendered:
    """Blocks of the same images' rays, one after another."""
    features = [block.features for block in blocks if block.features is not None]
    rgb, depth, acc = (
        torch.cat(parts, dim=1)
        for parts in zip(*((one.rgb, one.depth, one.acc) for one in blocks), strict=True)
    )
    return Rendered(rgb, depth, acc, torch.cat(features, dim=1) if features else None)


def cleared(made: Rendered, haze: float, *, white: bool) -> Rendered:
    """Rays that are covered by less than `haze` show what lies behind them alone.

    A discriminator hardly sees a veil of a hundredth, and the networks that measure distances do: a plain background has none.
    """
    faint = made.acc < haze
    return Rendered(
        made.rgb.masked_fill(faint[..., None], float(white)),
        made.depth.masked_fill(faint, 0),
        made.acc.masked_fill(faint, 0),
        None if made.features is None else made.features.masked_fill(faint[..., None], 0),
    )


def generator_for(seed: int, step: int, what: str, *, device: str | torch.device = "cpu") -> torch.Generator:
    """Random numbers of one use in one step: the same whenever and in whatever order they are drawn."""
    said = hashlib.sha256(f"{seed} {step} {what}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(said[:8], "little") >> 1)


def draw(batch: int, rays: int, samples: int, *, noise: float = 0.0, generator: torch.Generator) -> Draws:
    """Stratified offsets and, where its deviation `noise` is above 0, noise of the density."""
    shape, device = (batch, rays, samples), generator.device
    offsets = torch.empty(shape, device=device).uniform_(generator=generator)
    return Draws(
        offsets,
        torch.empty(shape, device=device).normal_(0, noise, generator=generator) if noise > 0 else None,
    )


def midpoints(
    batch: int,
    rays: int,
    samples: int,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
) -> Draws:
    """Nothing random: every point in the middle of its interval, no noise; for pictures to look at."""
    return Draws(torch.full((1, 1, 1), 0.5, device=device, dtype=dtype).expand(batch, rays, samples))


def inside(draws: Draws, rays: Rays, radius: float) -> Draws:
    """The same S points on what a ray has in common with a ball around the middle, outside which there is nothing.

    S - 1 lie in equal intervals of the chord, the last where it ends, with noise that no density outlasts. A ray that misses
    the ball has such noise everywhere.
    """
    samples = draws.samples
    if samples < 2:
        raise BadInput(
            f"{samples} point of a ray within a ball", hint="draw at least 2: the last one ends the ball"
        )
    middle = -(rays.origins * rays.directions).sum(-1, keepdim=True)  # where a ray is nearest to it
    nearest = rays.origins.square().sum(-1, keepdim=True) - middle.square()
    half = (radius * radius - nearest).clamp_min(0).sqrt()
    enter, leave = (middle - half).clamp_min(rays.near), (middle + half).clamp_max(rays.far)
    chord = leave - enter
    numbers = torch.arange(samples, dtype=draws.offsets.dtype, device=draws.offsets.device)
    depths = torch.minimum(enter + chord / (samples - 1) * (numbers + draws.offsets), leave)
    # As offsets from the intervals between near and far, of which renders make their points: beyond [0, 1) is as good.
    offsets = (depths - rays.near) * (samples / (rays.far - rays.near)) - numbers
    nothing = (chord <= 0) | (numbers == samples - 1)
    noise = torch.zeros_like(offsets) if draws.noise is None else draws.noise
    return Draws(torch.where(chord > 0, offsets, draws.offsets), noise.masked_fill(nothing, _NOTHING))


def render(
    field: Field,
    rays: Rays,
    codes: Codes,
    draws: Draws,
    *,
    form: Form = "folded",
    memory: Memory = "none",
    chunk: int | None = None,
    precision: Precision | None = None,
    white: bool = True,
    endless: bool = False,
    features: bool = False,
) -> Rendered:
    """Images of B codes along B x R rays. chunk: rays at one time, of all images together; None: all.

    precision: bf16 and fp16 by autocast, fp32 and tf32 without; None: as it is around the call. The field's parameters and the
    codes get gradients, rays none.
    """
    _check(field, rays, codes, draws, form, precision)
    scene = Scene(rays, draws.offsets, draws.noise, white, endless)
    with nullcontext() if precision is None else autocast(precision, rays.origins.device.type):
        if form == "eager":
            made = _eager(field, scene, codes, features, chunk, memory)
        else:
            made = _folded(field, scene, codes, features, chunk, memory)
    return Rendered(made[0], made[1], made[2], made[3] if features else None)


def _eager(
    field: Field, scene: Scene, codes: Codes, features: bool, chunk: int | None, memory: Memory
) -> tuple[Tensor, ...]:
    """By autograd; what is computed again is so by torch's own means."""
    named = dict(field.named_parameters())
    rays, device = scene.rays, scene.offsets.device.type

    def shade(at: tuple[slice, slice], shape: Tensor, app: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        part = rays.part(*at)
        depths = depths_of(part, scene.offsets[at])
        points = points_of(part, depths)
        given = points.flatten(0, 2), part.directions.flatten(0, 1), shape[at[0]], app[at[0]]
        own = dict(zip(named, parameters, strict=True))
        colour, density, seen = torch.func.functional_call(field, own, given, {"features": features})
        with torch.autocast(device, enabled=False):
            rgb, depth, acc, weights = composite(
                colour.view(*depths.shape, 3),
                density.view(depths.shape),
                depths,
                far=part.far,
                noise=None if scene.noise is None else scene.noise[at],
                white=scene.white,
                endless=scene.endless,
            )
            if seen is None:
                return rgb, depth, acc
            mixed = torch.matmul(weights[:, :, None].to(seen.dtype), seen.view(*depths.shape, -1)).squeeze(2)
            return rgb, depth, acc, mixed.to(rgb.dtype)

    images, across, _ = scene.offsets.shape
    return by_chunks(shade, (*codes, *named.values()), images=images, rays=across, chunk=chunk, memory=memory)


def _folded(
    field: Field, scene: Scene, codes: Codes, features: bool, chunk: int | None, memory: Memory
) -> tuple[Tensor, ...]:
    """By a backward pass of its own, where nothing but the parts of an image is computed again."""
    images, across, _ = scene.offsets.shape
    names, parameters = zip(*field.named_parameters(), strict=True)
    device = scene.offsets.device.type
    dtype = field.density.weight.dtype
    if dtype != torch.float64 and torch.is_autocast_enabled(device):  # autocast leaves fp64 alone
        dtype = torch.get_autocast_dtype(device)
    parts = parts_of(images, across, chunk, memory)
    again = {"none": 0, "checkpoint": len(parts) - 1, "deferred": len(parts)}[memory]
    plan = Plan(
        field.config, scene, parts, dtype, again, features, names, runs_own(field.config, scene, dtype)
    )
    return image(plan, *codes, parameters)


def _check(field: Field, rays: Rays, codes: Codes, draws: Draws, form: str, precision: str | None) -> None:
    for name, value, known in (
        ("form", form, get_args(Form)),
        ("precision", precision, (None, *get_args(Precision))),
    ):
        if value not in known:
            raise BadInput(
                f"unknown {name} {value!r}", hint=f"use one of: {', '.join(str(name) for name in known)}"
            )
    images, config = rays.origins.shape[0], field.config
    wanted = (images, config.z_shape), (images, config.z_app)
    if (codes.shape.shape, codes.app.shape) != wanted:
        raise BadInput(
            f"codes {tuple(codes.shape.shape)} and {tuple(codes.app.shape)} for {images} images",
            hint=f"give codes of {wanted[0]} and {wanted[1]}",
        )
    for name, drawn in (("offsets", draws.offsets), ("noise", draws.noise)):
        if drawn is not None and (
            drawn.shape[:2] != rays.origins.shape[:2] or drawn.shape != draws.offsets.shape
        ):
            raise BadInput(
                f"{name} {tuple(drawn.shape)} for rays {tuple(rays.origins.shape)}",
                hint="draw them as (B, R, S) of these rays",
            )
