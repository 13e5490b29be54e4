"""Volume rendering of a field: points along rays, the field at these points, and compositing in fp32.

Rays are processed all at once or in chunks. All random numbers are drawn beforehand (`Draws`), so that
recomputation uses the same ones. `form` and `memory` change how an image is computed, but not the image.
Letters: B images, R rays per image, S points per ray, F features.
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
from pinchpoint.systems.common.training.precision import autocast
from pinchpoint.systems.radiance.model.field import Field
from pinchpoint.systems.radiance.rendering.compositing import Scene, composite, depths_of, points_of
from pinchpoint.systems.radiance.rendering.passes import Plan, image, runs_own
from pinchpoint.systems.radiance.rendering.points import runs_fused
from pinchpoint.systems.radiance.rendering.rays import Rays
from pinchpoint.systems.radiance.rendering.strategies import Memory, by_chunks, parts_of

Form = Literal["eager", "folded"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
_NOTHING = -1e9  # added to a density to make it vanish


class Codes(NamedTuple):
    """shape: (B, z_shape); app: (B, z_app)."""

    shape: Tensor
    app: Tensor


@dataclass(frozen=True)
class Draws:
    """The random numbers of a render.

    offsets: (B, R, S) in [0, 1), positions of the points in their intervals; noise: added to the density.
    """

    offsets: Tensor
    noise: Tensor | None = None  # (B, R, S)

    @property
    def samples(self) -> int:
        return self.offsets.shape[2]

    def part(self, images: slice, rays: slice = slice(None)) -> Draws:
        return Draws(self.offsets[images, rays], None if self.noise is None else self.noise[images, rays])


class RenderOutput(NamedTuple):
    """Rendered rays.

    rgb: (B, R, 3) in [0, 1]; depth, acc: (B, R), mean distance and coverage; features: (B, R, F).
    """

    rgb: Tensor
    depth: Tensor
    acc: Tensor
    features: Tensor | None


def join_rays(blocks: Sequence[RenderOutput]) -> RenderOutput:
    """Join consecutive blocks of rays of the same images."""
    features = [block.features for block in blocks if block.features is not None]
    rgb, depth, acc = (
        torch.cat(parts, dim=1)
        for parts in zip(*((one.rgb, one.depth, one.acc) for one in blocks), strict=True)
    )
    return RenderOutput(rgb, depth, acc, torch.cat(features, dim=1) if features else None)


def clear_haze(output: RenderOutput, haze: float, *, white: bool) -> RenderOutput:
    """Replace rays whose coverage is below `haze` by the background.

    A discriminator hardly notices a haze of one percent, but the networks that measure distances do: the
    plain background of real images has none.
    """
    faint = output.acc < haze
    return RenderOutput(
        output.rgb.masked_fill(faint[..., None], float(white)),
        output.depth.masked_fill(faint, 0),
        output.acc.masked_fill(faint, 0),
        None if output.features is None else output.features.masked_fill(faint[..., None], 0),
    )


def generator_for(seed: int, step: int, what: str, *, device: str | torch.device = "cpu") -> torch.Generator:
    """A generator for one purpose in one step: its numbers do not depend on what else is drawn, or when."""
    digest = hashlib.sha256(f"{seed} {step} {what}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def draw(batch: int, rays: int, samples: int, *, noise: float = 0.0, generator: torch.Generator) -> Draws:
    """Draw stratified offsets and, if the standard deviation `noise` is above 0, density noise."""
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
    """Draws without randomness, for whole images: every point is in the middle of its interval, without
    noise.
    """
    return Draws(torch.full((1, 1, 1), 0.5, device=device, dtype=dtype).expand(batch, rays, samples))


def clip_to_ball(draws: Draws, rays: Rays, radius: float) -> Draws:
    """Move the S points of each ray into a ball around the origin, outside of which space is empty.

    S - 1 points lie in equal intervals of the chord; the last one lies at its end, with noise that cancels
    any density. All points of a ray that misses the ball have such noise.
    """
    samples = draws.samples
    if samples < 2:
        raise BadInput(
            f"A bounding ball needs at least 2 points per ray, not {samples}: the last one marks its end.",
            hint="Draw at least 2 points per ray.",
        )
    middle = -(rays.origins * rays.directions).sum(-1, keepdim=True)  # where a ray is closest to the origin
    nearest = rays.origins.square().sum(-1, keepdim=True) - middle.square()
    half = (radius * radius - nearest).clamp_min(0).sqrt()
    enter, leave = (middle - half).clamp_min(rays.near), (middle + half).clamp_max(rays.far)
    chord = leave - enter
    numbers = torch.arange(samples, dtype=draws.offsets.dtype, device=draws.offsets.device)
    depths = torch.minimum(enter + chord / (samples - 1) * (numbers + draws.offsets), leave)
    # Expressed as offsets in the intervals between near and far, from which points are computed; values
    # outside [0, 1) work too.
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
) -> RenderOutput:
    """Render images of B codes along B x R rays.

    chunk: rays processed at a time, over all images; None: all rays. precision: bf16 and fp16 use autocast,
    fp32 and tf32 do not; None: keep the caller's autocast. The parameters of the field and the codes get
    gradients, rays do not.
    """
    _check(field, rays, codes, draws, form, precision)
    scene = Scene(rays, draws.offsets, draws.noise, white, endless)
    with nullcontext() if precision is None else autocast(precision, rays.origins.device.type):
        if form == "eager":
            outputs = _render_eager(field, scene, codes, features, chunk, memory)
        else:
            outputs = _render_folded(field, scene, codes, features, chunk, memory)
    return RenderOutput(outputs[0], outputs[1], outputs[2], outputs[3] if features else None)


def _render_eager(
    field: Field, scene: Scene, codes: Codes, features: bool, chunk: int | None, memory: Memory
) -> tuple[Tensor, ...]:
    """Render with autograd, which also recomputes chunks."""
    parameters_by_name = dict(field.named_parameters())
    rays, device = scene.rays, scene.offsets.device.type

    def shade(at: tuple[slice, slice], shape: Tensor, app: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        part = rays.part(*at)
        depths = depths_of(part, scene.offsets[at])
        points = points_of(part, depths)
        inputs = points.flatten(0, 2), part.directions.flatten(0, 1), shape[at[0]], app[at[0]]
        own = dict(zip(parameters_by_name, parameters, strict=True))
        colour, density, view = torch.func.functional_call(field, own, inputs, {"features": features})
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
            if view is None:
                return rgb, depth, acc
            features_seen = torch.matmul(
                weights[:, :, None].to(view.dtype), view.view(*depths.shape, -1)
            ).squeeze(2)
            return rgb, depth, acc, features_seen.to(rgb.dtype)

    images, across, _ = scene.offsets.shape
    return by_chunks(
        shade, (*codes, *parameters_by_name.values()), images=images, rays=across, chunk=chunk, memory=memory
    )


def _render_folded(
    field: Field, scene: Scene, codes: Codes, features: bool, chunk: int | None, memory: Memory
) -> tuple[Tensor, ...]:
    """Render with a handwritten backward pass, which recomputes only chunks."""
    images, across, _ = scene.offsets.shape
    names, parameters = zip(*field.named_parameters(), strict=True)
    device = scene.offsets.device.type
    dtype = field.density.weight.dtype
    if dtype != torch.float64 and torch.is_autocast_enabled(device):  # autocast does not change fp64
        dtype = torch.get_autocast_dtype(device)
    parts = parts_of(images, across, chunk, memory)
    again = {"none": 0, "checkpoint": len(parts) - 1, "deferred": len(parts)}[memory]
    own = runs_own(field.config, scene, dtype)
    fused = own and runs_fused(field.config, scene.offsets, dtype)
    plan = Plan(field.config, scene, parts, dtype, again, features, names, own, fused)
    return image(plan, *codes, parameters)


def _check(field: Field, rays: Rays, codes: Codes, draws: Draws, form: str, precision: str | None) -> None:
    for name, value, choices in (
        ("form", form, get_args(Form)),
        ("precision", precision, (None, *get_args(Precision))),
    ):
        if value not in choices:
            raise BadInput(
                f"The {name} {value!r} is unknown.",
                hint=f"Use one of: {', '.join(str(name) for name in choices)}.",
            )
    images, config = rays.origins.shape[0], field.config
    code_shapes = (images, config.z_shape), (images, config.z_app)
    if (codes.shape.shape, codes.app.shape) != code_shapes:
        raise BadInput(
            f"The codes have shapes {tuple(codes.shape.shape)} and {tuple(codes.app.shape)}, "
            f"which do not match {images} images.",
            hint=f"Give codes of shapes {code_shapes[0]} and {code_shapes[1]}.",
        )
    for name, values in (("offsets", draws.offsets), ("noise", draws.noise)):
        if values is not None and (
            values.shape[:2] != rays.origins.shape[:2] or values.shape != draws.offsets.shape
        ):
            raise BadInput(
                f"The {name} have shape {tuple(values.shape)}, which does not match rays of shape "
                f"{tuple(rays.origins.shape)}.",
                hint="Draw them as (B, R, S) for these rays.",
            )
