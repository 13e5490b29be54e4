"""The two players: a generator of patches and whole images (field, then super-resolution), and its discriminators.

Letters: B images, p side of a patch, f factor of the super-resolution (1: none), W pixels a side of a whole image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.systems.common.precision import autocast
from pinchpoint.systems.radiance.data.patches import Real, drawn_patches, rows_among, whole_rows
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.discriminator import Discriminator
from pinchpoint.systems.radiance.model.field import Field
from pinchpoint.systems.radiance.model.losses import slope_penalty, taken_for_made, taken_for_real
from pinchpoint.systems.radiance.model.superres import SuperRes, both, confined
from pinchpoint.systems.radiance.rendering.rays import Camera, draw_poses, patches, pixels
from pinchpoint.systems.radiance.rendering.render import (
    Codes,
    Draws,
    Rendered,
    cleared,
    draw,
    generator_for,
    inside,
    joined,
    midpoints,
    render,
)
from pinchpoint.systems.radiance.settings import Settings

# Points of a ray of a whole image, over training's. Those are drawn anew every time; evenly spaced ones cut the thin shells that
# are learned so into rings, unless they are closer.
_FINER = 4
_RAYS = 8192 // _FINER  # of whole images that are rendered at one time


class Seen(NamedTuple):
    """low: (B, 3, W, W) in [-1, 1] as rendered; high: (N, 3, f W, f W), of the images that are of whole pixels, or None.

    depth, acc: (B, W, W). features: (B, F, W, W), of the rays, or None where none enlarges.
    """

    low: Tensor
    high: Tensor | None
    depth: Tensor
    acc: Tensor
    features: Tensor | None = None

    @property
    def best(self) -> Tensor:
        """The largest image there is."""
        return self.low if self.high is None else self.high


@dataclass(frozen=True)
class Request:
    """What to make B images of. places: (B, R, 2), R = W * W, in the image; whole: which of them are of whole pixels."""

    codes: Codes
    u: Tensor  # (B,)
    v: Tensor
    places: Tensor
    draws: Draws
    whole: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.u)

    def tensors(self) -> tuple[Tensor, ...]:
        """All there is in it, for `of`."""
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
        """The same images by so many rays of each at one time."""
        for first in range(0, self.places.shape[1], rays):
            some = slice(first, first + rays)
            yield replace(self, places=self.places[:, some], draws=self.draws.part(slice(None), some))


class Generator(nn.Module):
    """A field with a camera around it, and a super-resolution where one is wanted."""

    def __init__(self, config: FieldConfig, told: Settings) -> None:
        super().__init__()
        self.told = told
        self.camera = Camera(told.fov, told.radius, told.near, told.far)
        self.field = Field(config, seed=told.seed)
        self.superres: SuperRes | None = None
        if told.superres > 1:
            self.superres = SuperRes(
                told.superres, features=config.features, width=told.sr_width, seed=told.seed + 1
            )

    def forward(self, asked: Request, *, memory: str | None = None, chunk: int | None = None) -> Seen:
        """memory, chunk: as told without them."""
        return self.shown(self.rendered(asked, memory=memory, chunk=chunk), asked)

    def rendered(self, asked: Request, *, memory: str | None = None, chunk: int | None = None) -> Rendered:
        told = self.told
        how: dict[str, Any] = {
            "form": told.form,
            "memory": memory or told.memory,
            "chunk": chunk or told.chunk,
        }
        rays = self.camera.rays(asked.u, asked.v, asked.places)
        draws = inside(asked.draws, rays, told.bound) if told.bound else asked.draws
        return render(
            self.field,
            rays,
            asked.codes,
            draws,
            **how,
            precision=told.precision,
            white=told.white,
            endless=told.endless,  # pyright: ignore[reportArgumentType]
            features=self.superres is not None,
        )

    def shown(self, made: Rendered, asked: Request) -> Seen:
        """What was rendered as square images, those of whole pixels enlarged where there is a super-resolution."""
        seen = _as_images(made)
        if self.superres is None or seen.features is None or not asked.whole:
            return seen
        low, features, u, cover = (
            _rows(part, asked.whole) for part in (seen.low, seen.features, asked.u, seen.acc)
        )
        with autocast(self.told.precision, low.device.type):
            return seen._replace(high=self.superres(low, features, u, cover=cover))

    @property
    def learns_from_pairs(self) -> bool:
        return self.superres is not None and self.told.sr_pairs > 0

    def shown_with_pairs(self, made: Rendered, asked: Request, real: Real) -> tuple[Seen, Tensor, Tensor]:
        """As `shown`, and (), (): what the super-resolution is to learn beside deceiving.

        How far its enlargements of real patches, of which no feature and no view is known, are from what those are; and how far
        features and view have taken it from what it learned of photographs. It alone learns from that: the render is as it is,
        and must not be drawn to where features change little. Patches that are not of whole pixels do not count.
        """
        seen, whole = _as_images(made), asked.whole
        if self.superres is None or seen.features is None or real.high is None or not whole:
            return seen, seen.low.new_zeros(()), seen.low.new_zeros(())
        made_low, made_features, u = (_rows(part, whole) for part in (seen.low, seen.features, asked.u))
        real_low, real_high = _rows(real.low, whole), _rows(real.high, whole)
        low, features, cover = made_low.detach(), made_features.detach(), _rows(seen.acc, whole).detach()
        # In one pass: no image's result depends on another, and kernels this small take a GPU as long for one image as for many.
        with autocast(self.told.precision, low.device.type):
            high, again, plain, of_real = self.superres(
                torch.cat([made_low, low, low, real_low]),
                torch.cat([made_features, features]),  # the plain and the real ones have none
                torch.cat([u, u]),
                cover=torch.cat([cover, cover, cover, torch.ones_like(real_low[:, 0])]),
            ).chunk(4)
        weight = _weight(asked, self.told)
        return (
            seen._replace(high=high),
            weight * _apart(of_real, real_high),
            weight * _apart(again, plain.detach()),
        )


class Judged(NamedTuple):
    """What a discriminator sees. images: (N, C, p, p); weight: of their mean; share: in the generator's loss."""

    critic: Discriminator
    images: Tensor
    weight: float
    share: float


class Critics(nn.Module):
    """The discriminator of patches and, with a super-resolution, one of enlarged patches beside what they were made of."""

    def __init__(self, told: Settings) -> None:
        super().__init__()
        self.told = told
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(told.seed + 2)
            how: dict[str, Any] = {
                "width": told.critic_width,
                "norm": told.critic_norm,
                "bias": told.critic_bias,
            }
            self.low = Discriminator(told.patch, **how)
            self.high = (
                Discriminator(told.patch * told.superres, channels=6, **how) if told.superres > 1 else None
            )

    def judged(self, low: Tensor, high: Tensor | None, asked: Request) -> Iterator[Judged]:
        """low: (B, 3, p, p); high: (N, 3, f p, f p), of those of whole pixels."""
        yield Judged(self.low, low.float(), 1.0, 1.0)
        if self.high is not None and high is not None:
            pairs = both(high, _rows(low, asked.whole)).float()
            yield Judged(self.high, pairs, _weight(asked, self.told), self.told.sr_weight)

    def loss(
        self, seen: Seen, asked: Request, real: Real, *, penalty: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(): of telling made patches from real ones, and R1's part in it; never autocast. penalty: R1's weight; None: none."""
        parts, slopes = [], [real.low.new_zeros(())]
        made_high = None if seen.high is None else seen.high.detach()
        real_high = None if seen.high is None or real.high is None else _rows(real.high, asked.whole)
        made = self.judged(seen.low.detach(), made_high, asked)
        for false, true in zip(made, self.judged(real.low, real_high, asked), strict=True):
            critic = true.critic
            if penalty is None:
                of_real, of_made = critic(torch.cat([true.images, false.images])).chunk(2)
            else:
                slope, of_real = slope_penalty(critic, true.images, reduction=self.told.r1_reduction)  # pyright: ignore[reportArgumentType]
                of_made = critic(false.images)
                slopes.append(true.weight * penalty * slope)
            parts.append(true.weight * (taken_for_real(of_real) + taken_for_made(of_made)))
        penalised = torch.stack(slopes).sum()
        return torch.stack(parts).sum() + penalised, penalised.detach()

    def deceived(self, seen: Seen, asked: Request) -> Tensor:
        """(): the generator's loss."""
        made = self.judged(seen.low, seen.high, asked)
        return torch.stack(
            [one.share * one.weight * taken_for_real(one.critic(one.images)) for one in made]
        ).sum()

    def refresh(self) -> None:
        self.low.refresh()
        if self.high is not None:
            self.high.refresh()


def draw_request(
    config: FieldConfig, told: Settings, *, step: int, what: str, device: str, batch: int
) -> Request:
    """Patches to make in a step: they follow from the seed, the step and their use alone."""
    generator = generator_for(told.seed, step, what, device=device)
    codes = draw_codes(config, batch, generator=generator)
    u, v = draw_poses(batch, v_range=(told.v_low, told.v_high), generator=generator)
    scale, shift = drawn_patches(batch, told, step, generator)
    draws = draw(batch, told.patch**2, told.samples, noise=told.noise_at(step), generator=generator)
    return Request(codes, u, v, patches(told.patch, scale, shift), draws, whole_rows(batch, told))


def draw_codes(config: FieldConfig, batch: int, *, generator: torch.Generator) -> Codes:
    """Of `batch` things that were never seen."""
    wide = torch.randn(batch, config.z_shape + config.z_app, generator=generator, device=generator.device)
    return Codes(*wide.split((config.z_shape, config.z_app), dim=1))


@torch.no_grad()
def whole_images(
    generator: Generator, codes: Codes, u: Tensor, v: Tensor, *, size: int | None = None
) -> Seen:
    """Whole images of B codes at B poses (B,), one after another, nothing random in them, none beyond black and white.

    size: as told without it.
    """
    told, made = generator.told, []
    size = size or told.size
    # With chunks in training, no more points at one time than in one of those: they were chosen for the memory there is.
    at_once = min(_RAYS, max(1, (told.chunk or _RAYS * _FINER) // _FINER))
    places = pixels(size, device=u.device)[None]
    for at in range(len(u)):
        one = slice(at, at + 1)
        draws = midpoints(1, size * size, _FINER * told.samples, device=u.device)
        asked = Request(Codes(codes.shape[one], codes.app[one]), u[one], v[one], places, draws, whole=(0,))
        blocks = [generator.rendered(block, memory="none") for block in asked.blocks(at_once)]
        made.append(generator.shown(cleared(joined(blocks), told.haze, white=told.white), asked))
    high = (
        None
        if made[0].high is None
        else torch.cat([confined(one.high, one.low) for one in made if one.high is not None])
    )
    return Seen(
        torch.cat([one.low for one in made]),
        high,
        torch.cat([one.depth for one in made]),
        torch.cat([one.acc for one in made]),
    )


def _rows(values: Tensor, rows: tuple[int, ...]) -> Tensor:
    """Some of (B, ...), without numbers that a device would have to be sent: (N, ...)."""
    if len(rows) == len(values):
        return values
    every = values.unbind()
    return torch.stack([every[row] for row in rows])


def _weight(asked: Request, told: Settings) -> float:
    """Of a mean over the patches of whole pixels: 1 for a whole batch; of a part with more of them than others, above it."""
    return len(asked.whole) / (len(asked) * told.whole_share)


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """(): the mean absolute difference, round below 2.5 of 255 levels: a sign of nothing but rounding would be a gradient."""
    return functional.smooth_l1_loss(one, other, beta=0.02)


def _as_images(made: Rendered) -> Seen:
    """The rays as squares, not enlarged."""
    side = round(made.rgb.shape[1] ** 0.5)
    depth, acc = (values.unflatten(1, (side, side)) for values in (made.depth, made.acc))
    features = None if made.features is None else _image(made.features, side)
    return Seen(_image(made.rgb, side) * 2 - 1, None, depth, acc, features)


def _image(values: Tensor, side: int) -> Tensor:
    """(B, W * W, C) -> (B, C, W, W)."""
    return values.mT.unflatten(2, (side, side)).contiguous()
