"""The two players: a generator of patches and whole images (field, then super-resolution), and its
discriminators.

Letters: B images, p side of a patch, f factor of the super-resolution (1: none), W pixels per side of a whole
image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.systems.common.training.precision import autocast
from pinchpoint.systems.radiance.data.patches import Real, draw_step_patches, rows_among, whole_rows
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.discriminator import Discriminator
from pinchpoint.systems.radiance.model.field import Field
from pinchpoint.systems.radiance.model.losses import loss_as_generated, loss_as_real, slope_penalty
from pinchpoint.systems.radiance.model.superres import SuperRes, confine, stack_pair
from pinchpoint.systems.radiance.rendering.rays import Camera, draw_poses, patches, pixels
from pinchpoint.systems.radiance.rendering.render import (
    Codes,
    Draws,
    RenderOutput,
    clear_haze,
    clip_to_ball,
    draw,
    generator_for,
    join_rays,
    midpoints,
    render,
)
from pinchpoint.systems.radiance.settings import Settings

# Points per ray of a whole image, relative to training. Training draws them anew every time; evenly spaced
# points cut the thin shells learned that way into rings, unless they are denser.
_FINER = 4
_RAYS = 8192 // _FINER  # rays of whole images rendered at once


class GeneratedImages(NamedTuple):
    """Generated images.

    low: (B, 3, W, W) in [-1, 1] as rendered; high: (N, 3, f W, f W), of the images of whole pixels, or None;
    depth, acc: (B, W, W); features: (B, F, W, W) of the rays, or None without a super-resolution.
    """

    low: Tensor
    high: Tensor | None
    depth: Tensor
    acc: Tensor
    features: Tensor | None = None

    @property
    def best(self) -> Tensor:
        """The largest image available."""
        return self.low if self.high is None else self.high


@dataclass(frozen=True)
class Request:
    """Inputs of B images. places: (B, R, 2), R = W * W, in the image; whole: the images that consist of whole
    pixels.
    """

    codes: Codes
    u: Tensor  # (B,)
    v: Tensor
    places: Tensor
    draws: Draws
    whole: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.u)

    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors, in the order `of` takes them."""
        noise = () if self.draws.noise is None else (self.draws.noise,)
        return *self.codes, self.u, self.v, self.places, self.draws.offsets, *noise

    @staticmethod
    def of(*tensors: Tensor, whole: tuple[int, ...]) -> Request:
        shape, app, u, v, places, offsets, *noise = tensors
        return Request(Codes(shape, app), u, v, places, Draws(offsets, *noise), whole)

    def part(self, images: slice) -> Request:
        return Request(
            Codes(self.codes.shape[images], self.codes.app[images]),
            self.u[images],
            self.v[images],
            self.places[images],
            self.draws.part(images),
            rows_among(self.whole, range(len(self))[images]),
        )

    def blocks(self, rays: int) -> Iterator[Request]:
        """The same images, `rays` rays of each at a time."""
        for first in range(0, self.places.shape[1], rays):
            some = slice(first, first + rays)
            yield replace(self, places=self.places[:, some], draws=self.draws.part(slice(None), some))


class Generator(nn.Module):
    """A field with a camera around it, and an optional super-resolution."""

    def __init__(self, config: FieldConfig, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.camera = Camera(settings.fov, settings.radius, settings.near, settings.far)
        self.field = Field(config, seed=settings.seed)
        self.superres: SuperRes | None = None
        if settings.superres > 1:
            self.superres = SuperRes(
                settings.superres, features=config.features, width=settings.sr_width, seed=settings.seed + 1
            )

    def forward(
        self, request: Request, *, memory: str | None = None, chunk: int | None = None
    ) -> GeneratedImages:
        """memory, chunk: the settings' values by default."""
        return self.to_images(self.render_rays(request, memory=memory, chunk=chunk), request)

    def render_rays(
        self, request: Request, *, memory: str | None = None, chunk: int | None = None
    ) -> RenderOutput:
        settings = self.settings
        how: dict[str, Any] = {
            "form": settings.form,
            "memory": memory or settings.memory,
            "chunk": chunk or settings.chunk,
        }
        rays = self.camera.rays(request.u, request.v, request.places)
        draws = clip_to_ball(request.draws, rays, settings.bound) if settings.bound else request.draws
        return render(
            self.field,
            rays,
            request.codes,
            draws,
            **how,
            precision=settings.precision,  # pyright: ignore[reportArgumentType]
            white=settings.white,
            endless=settings.endless,
            features=self.superres is not None,
        )

    def to_images(self, output: RenderOutput, request: Request) -> GeneratedImages:
        """Rays as square images; those of whole pixels are enlarged if there is a super-resolution."""
        images = _as_images(output)
        if self.superres is None or images.features is None or not request.whole:
            return images
        low, features, u, cover = (
            _rows(part, request.whole) for part in (images.low, images.features, request.u, images.acc)
        )
        with autocast(self.settings.precision, low.device.type):
            return images._replace(high=self.superres(low, features, u, cover=cover))

    @property
    def learns_from_pairs(self) -> bool:
        return self.superres is not None and self.settings.sr_pairs > 0

    def to_images_with_pairs(
        self, output: RenderOutput, request: Request, real: Real
    ) -> tuple[GeneratedImages, Tensor, Tensor]:
        """As `to_images`, and (), (): two losses of the super-resolution beside the adversarial one.

        The first is how far its enlargements of real patches, for which no features or view are known, are
        from the real large patches. The second is how far features and view move it from what it learned on
        photographs. Only the super-resolution learns from them: the render must not be drawn to where
        features change little. Patches that do not consist of whole pixels do not count.
        """
        images, whole = _as_images(output), request.whole
        if self.superres is None or images.features is None or real.high is None or not whole:
            return images, images.low.new_zeros(()), images.low.new_zeros(())
        generated_low, generated_features, u = (
            _rows(part, whole) for part in (images.low, images.features, request.u)
        )
        real_low, real_high = _rows(real.low, whole), _rows(real.high, whole)
        low, features, cover = (
            generated_low.detach(),
            generated_features.detach(),
            _rows(images.acc, whole).detach(),
        )
        # In one pass: no image depends on another, and a GPU runs kernels this small as fast for many images
        # as for one.
        with autocast(self.settings.precision, low.device.type):
            high, again, plain, of_real = self.superres(
                torch.cat([generated_low, low, low, real_low]),
                torch.cat([generated_features, features]),  # the plain and the real images have none
                torch.cat([u, u]),
                cover=torch.cat([cover, cover, cover, torch.ones_like(real_low[:, 0])]),
            ).chunk(4)
        weight = _weight(request, self.settings)
        return (
            images._replace(high=high),
            weight * _apart(of_real, real_high),
            weight * _apart(again, plain.detach()),
        )


class CriticInput(NamedTuple):
    """Input of a discriminator. images: (N, C, p, p); weight: of their mean; share: in the
    generator's loss.
    """

    critic: Discriminator
    images: Tensor
    weight: float
    share: float


class Critics(nn.Module):
    """The discriminator of patches and, with a super-resolution, one of enlarged patches beside the patches
    they come from.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed + 2)
            how: dict[str, Any] = {
                "width": settings.critic_width,
                "norm": settings.critic_norm,
                "bias": settings.critic_bias,
            }
            self.low = Discriminator(settings.patch, **how)
            self.high = (
                Discriminator(settings.patch * settings.superres, channels=6, **how)
                if settings.superres > 1
                else None
            )

    def inputs(self, low: Tensor, high: Tensor | None, request: Request) -> Iterator[CriticInput]:
        """Inputs of the discriminators. low: (B, 3, p, p); high: (N, 3, f p, f p), of the patches of whole
        pixels.
        """
        yield CriticInput(self.low, low.float(), 1.0, 1.0)
        if self.high is not None and high is not None:
            pairs = stack_pair(high, _rows(low, request.whole)).float()
            yield CriticInput(self.high, pairs, _weight(request, self.settings), self.settings.sr_weight)

    def loss(
        self, images: GeneratedImages, request: Request, real: Real, *, penalty: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(), (): the loss of telling generated patches from real ones, and R1's share of it; never autocast.

        penalty: R1's weight; None: no penalty.
        """
        parts, slopes = [], [real.low.new_zeros(())]
        generated_high = None if images.high is None else images.high.detach()
        real_high = None if images.high is None or real.high is None else _rows(real.high, request.whole)
        generated = self.inputs(images.low.detach(), generated_high, request)
        for false, true in zip(generated, self.inputs(real.low, real_high, request), strict=True):
            critic = true.critic
            if penalty is None:
                of_real, of_generated = critic(torch.cat([true.images, false.images])).chunk(2)
            else:
                slope, of_real = slope_penalty(critic, true.images, reduction=self.settings.r1_reduction)  # pyright: ignore[reportArgumentType]
                of_generated = critic(false.images)
                slopes.append(true.weight * penalty * slope)
            parts.append(true.weight * (loss_as_real(of_real) + loss_as_generated(of_generated)))
        penalised = torch.stack(slopes).sum()
        return torch.stack(parts).sum() + penalised, penalised.detach()

    def generator_loss(self, images: GeneratedImages, request: Request) -> Tensor:
        """(): the generator's loss."""
        inputs = self.inputs(images.low, images.high, request)
        return torch.stack(
            [one.share * one.weight * loss_as_real(one.critic(one.images)) for one in inputs]
        ).sum()

    def refresh(self) -> None:
        self.low.refresh()
        if self.high is not None:
            self.high.refresh()


def draw_request(
    config: FieldConfig, settings: Settings, *, step: int, what: str, device: str, batch: int
) -> Request:
    """Inputs of a step's patches, determined by the seed, the step and their purpose alone."""
    generator = generator_for(settings.seed, step, what, device=device)
    codes = draw_codes(config, batch, generator=generator)
    u, v = draw_poses(batch, v_range=(settings.v_low, settings.v_high), generator=generator)
    scale, shift = draw_step_patches(batch, settings, step, generator)
    draws = draw(
        batch, settings.patch**2, settings.samples, noise=settings.noise_at(step), generator=generator
    )
    return Request(codes, u, v, patches(settings.patch, scale, shift), draws, whole_rows(batch, settings))


def draw_codes(config: FieldConfig, batch: int, *, generator: torch.Generator) -> Codes:
    """Codes of `batch` new objects."""
    wide = torch.randn(batch, config.z_shape + config.z_app, generator=generator, device=generator.device)
    return Codes(*wide.split((config.z_shape, config.z_app), dim=1))


@torch.no_grad()
def whole_images(
    generator: Generator, codes: Codes, u: Tensor, v: Tensor, *, size: int | None = None
) -> GeneratedImages:
    """Whole images of B codes at B poses (B,), one after another, without randomness, limited to black and
    white.

    size: the settings' size by default.
    """
    settings, images = generator.settings, []
    size = size or settings.size
    # If training uses chunks, no more points at once than in one of them: they were chosen for the available
    # memory.
    at_once = min(_RAYS, max(1, (settings.chunk or _RAYS * _FINER) // _FINER))
    places = pixels(size, device=u.device)[None]
    for at in range(len(u)):
        one = slice(at, at + 1)
        draws = midpoints(1, size * size, _FINER * settings.samples, device=u.device)
        request = Request(Codes(codes.shape[one], codes.app[one]), u[one], v[one], places, draws, whole=(0,))
        blocks = [generator.render_rays(block, memory="none") for block in request.blocks(at_once)]
        images.append(
            generator.to_images(clear_haze(join_rays(blocks), settings.haze, white=settings.white), request)
        )
    high = (
        None
        if images[0].high is None
        else torch.cat([confine(one.high, one.low) for one in images if one.high is not None])
    )
    return GeneratedImages(
        torch.cat([one.low for one in images]),
        high,
        torch.cat([one.depth for one in images]),
        torch.cat([one.acc for one in images]),
    )


def _rows(values: Tensor, rows: tuple[int, ...]) -> Tensor:
    """Some rows of (B, ...), without sending indices to the device: (N, ...)."""
    if len(rows) == len(values):
        return values
    every = values.unbind()
    return torch.stack([every[row] for row in rows])


def _weight(request: Request, settings: Settings) -> float:
    """Weight of a mean over the patches of whole pixels: 1 for a whole batch, above 1 for a part with more of
    them.
    """
    return len(request.whole) / (len(request) * settings.whole_share)


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """(): the mean absolute difference, smooth below 2.5 of 255 levels: otherwise pure rounding would have a
    gradient.
    """
    return functional.smooth_l1_loss(one, other, beta=0.02)


def _as_images(output: RenderOutput) -> GeneratedImages:
    """Rays as square images, not enlarged."""
    side = round(output.rgb.shape[1] ** 0.5)
    depth, acc = (values.unflatten(1, (side, side)) for values in (output.depth, output.acc))
    features = None if output.features is None else _image(output.features, side)
    return GeneratedImages(_image(output.rgb, side) * 2 - 1, None, depth, acc, features)


def _image(values: Tensor, side: int) -> Tensor:
    """(B, W * W, C) -> (B, C, W, W)."""
    return values.mT.unflatten(2, (side, side)).contiguous()
