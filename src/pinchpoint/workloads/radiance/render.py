"""Images of a field: points along rays, the field at them, composited in fp32; in one piece or by chunks of rays.

B images, R rays of each, S points of a ray, F features. What is random is drawn before (`Draws`), so that whatever is computed
again is computed with the same numbers. `form` and `memory` choose how an image is computed, never which.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.workloads.radiance import folded
from pinchpoint.workloads.radiance.field import Field
from pinchpoint.workloads.radiance.rays import Rays
from pinchpoint.workloads.radiance.strategies import Memory, by_chunks

Form = Literal["eager", "folded"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
_HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_ENDLESS = 1e10  # length of a last interval that has no end, as published


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


class Rendered(NamedTuple):
    """rgb: (B, R, 3) in [0, 1]; depth, acc: (B, R), distance of what is seen and how much of it there is; features: (B, R, F)."""

    rgb: Tensor
    depth: Tensor
    acc: Tensor
    features: Tensor | None


def generator_for(seed: int, step: int, what: str, *, device: str | torch.device = "cpu") -> torch.Generator:
    """Random numbers of one use in one step: the same whenever and in whatever order they are drawn."""
    said = hashlib.sha256(f"{seed} {step} {what}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(said[:8], "little") >> 1)


def draw(batch: int, rays: int, samples: int, *, noise: float = 0.0, generator: torch.Generator) -> Draws:
    """Stratified offsets and, where its deviation `noise` is above 0, noise of the density."""
    shape, device = (batch, rays, samples), generator.device
    offsets = torch.empty(shape, device=device).uniform_(generator=generator)
    return Draws(offsets, torch.empty(shape, device=device).normal_(0, noise, generator=generator) if noise > 0 else None)


def midpoints(
    batch: int, rays: int, samples: int, *, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> Draws:
    """Nothing random: every point in the middle of its interval, no noise; for pictures to look at."""
    return Draws(torch.full((1, 1, 1), 0.5, device=device, dtype=dtype).expand(batch, rays, samples))


def depths_of(rays: Rays, offsets: Tensor) -> Tensor:
    """Distances of points, one in each of S equal intervals: (B, R, S)."""
    samples = offsets.shape[2]
    numbers = torch.arange(samples, dtype=offsets.dtype, device=offsets.device)
    return rays.near + (rays.far - rays.near) / samples * (numbers + offsets)


def composite(
    colour: Tensor, density: Tensor, depths: Tensor, *, far: float, noise: Tensor | None = None, white: bool = True,
    endless: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """What a ray sees of its points, in fp32 at least: rgb (..., 3), depth, acc (...), weights (..., S).

    colour: (..., S, 3), density: (..., S), before activations. The last interval ends at `far` or, as published, nowhere.
    Transmittance is the exponential of a sum, not a product: no division by zero in its gradient, no wait for the device.
    """
    wide = torch.promote_types(density.dtype, torch.float32)
    density, colour = density.to(wide), colour.to(wide)
    thick = torch.relu(density if noise is None else density + noise)
    ends = torch.full_like(depths[..., :1], far)
    lengths = torch.diff(depths, dim=-1, append=ends)
    if endless:
        lengths[..., -1] = _ENDLESS
    passed = thick * lengths
    # What lies before a point: the sum up to it less its own part, which for an endless interval would cancel to nothing.
    before = torch.nn.functional.pad(passed[..., :-1].cumsum(-1), (1, 0))
    weights = torch.exp(-before) * -torch.expm1(-passed)
    acc = weights.sum(-1)
    rgb = (weights[..., None] * torch.sigmoid(colour)).sum(-2)  # no product of matrices: those may be set to tf32
    if white:
        rgb = rgb + (1 - acc)[..., None]
    return rgb, (weights * depths).sum(-1), acc, weights


def render(
    field: Field, rays: Rays, codes: Codes, draws: Draws, *, form: Form = "folded", memory: Memory = "none",
    chunk: int | None = None, precision: Precision | None = None, white: bool = True, endless: bool = False,
    features: bool = False,
) -> Rendered:  # fmt: skip
    """Images of B codes along B x R rays. chunk: rays at one time, of all images together; None: all.

    precision: bf16 and fp16 by autocast, fp32 and tf32 without; None: as it is around the call. The field's parameters and the
    codes get gradients, rays none.
    """
    _check(field, rays, codes, draws, form, precision)
    device = rays.origins.device.type

    def shade(at: tuple[slice, slice], *tensors: Tensor) -> tuple[Tensor, ...]:
        part = rays.part(*at)
        depths = depths_of(part, draws.offsets[at])
        points = part.origins[:, :, None] + part.directions[:, :, None] * depths[..., None]
        colour, density, seen = values(at[0], tensors, points, part.directions)
        with torch.autocast(device, enabled=False):
            noise = None if draws.noise is None else draws.noise[at]
            rgb, depth, acc, weights = composite(
                colour.view(*depths.shape, 3), density.view(depths.shape), depths, far=part.far, noise=noise, white=white,
                endless=endless,
            )  # fmt: skip
            if seen is None:
                return rgb, depth, acc
            mixed = torch.matmul(weights[:, :, None].to(seen.dtype), seen.view(*depths.shape, -1)).squeeze(2)
            return rgb, depth, acc, mixed.to(rgb.dtype)

    with _cast(precision, device):
        tensors, values = (_eager if form == "eager" else _folded)(field, codes, features)
        made = by_chunks(shade, tensors, images=rays.origins.shape[0], rays=rays.origins.shape[1], chunk=chunk, memory=memory)
    return Rendered(made[0], made[1], made[2], made[3] if features else None)


Values = Callable[[slice, tuple[Tensor, ...], Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]]


def _eager(field: Field, codes: Codes, features: bool) -> tuple[tuple[Tensor, ...], Values]:
    """The tensors gradients flow to, and the field at points by them."""
    named = dict(field.named_parameters())

    def values(
        images: slice, tensors: tuple[Tensor, ...], points: Tensor, directions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        shape, app, *parameters = tensors
        given = points.flatten(0, 2), directions.flatten(0, 1), shape[images], app[images]
        own = dict(zip(named, parameters, strict=True))
        return torch.func.functional_call(field, own, given, {"features": features})

    return (*codes, *named.values()), values


def _folded(field: Field, codes: Codes, features: bool) -> tuple[tuple[Tensor, ...], Values]:
    """The same, folded once for all chunks."""
    made = folded.fold(field, *codes)
    *single, layers = made

    def values(
        images: slice, tensors: tuple[Tensor, ...], points: Tensor, directions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        own = folded.Folded(*tensors[: len(single)], layers=tensors[len(single) :]).of(images)
        return folded.evaluate(field.config, own, points, directions, features=features)

    return (*single, *layers), values


def _cast(precision: Precision | None, device: str) -> AbstractContextManager[object]:
    if precision is None:
        return nullcontext()
    return torch.autocast(device, _HALVES.get(precision, torch.bfloat16), enabled=precision in _HALVES)


def _check(field: Field, rays: Rays, codes: Codes, draws: Draws, form: str, precision: str | None) -> None:
    for name, value, known in (("form", form, get_args(Form)), ("precision", precision, (None, *get_args(Precision)))):
        if value not in known:
            raise BadInput(f"unknown {name} {value!r}", mend=f"use one of: {', '.join(str(name) for name in known)}")
    images, config = rays.origins.shape[0], field.config
    wanted = (images, config.z_shape), (images, config.z_app)
    if (codes.shape.shape, codes.app.shape) != wanted:
        raise BadInput(
            f"codes {tuple(codes.shape.shape)} and {tuple(codes.app.shape)} for {images} images",
            mend=f"give codes of {wanted[0]} and {wanted[1]}",
        )
    for name, drawn in (("offsets", draws.offsets), ("noise", draws.noise)):
        if drawn is not None and (drawn.shape[:2] != rays.origins.shape[:2] or drawn.shape != draws.offsets.shape):
            raise BadInput(
                f"{name} {tuple(drawn.shape)} for rays {tuple(rays.origins.shape)}", mend="draw them as (B, R, S) of these rays"
            )
