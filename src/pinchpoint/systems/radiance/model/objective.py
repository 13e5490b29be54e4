"""The two networks of the GAN: a generator (field, then super-resolution) and its discriminators.

The generator renders patches and whole images. Letters: B images, p side of a patch, f factor of the
super-resolution (1: none), W pixels per side of an image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.systems.common.training.precision import autocast
from pinchpoint.systems.radiance.data.patches import Real, draw_step_patches, rows_among, whole_rows
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.discriminator import Discriminator, refresh
from pinchpoint.systems.radiance.model.field import Field
from pinchpoint.systems.radiance.model.labels import MARK, draw_classes, mark_classes, sector_rows
from pinchpoint.systems.radiance.model.losses import (
    label_loss,
    loss_as_generated,
    loss_as_real,
    mean_square,
    slope_penalty,
)
from pinchpoint.systems.radiance.model.superres import SuperRes, confine, stack_pair
from pinchpoint.systems.radiance.rendering.baked import BakedObject
from pinchpoint.systems.radiance.rendering.rays import Camera, Rays, draw_poses, patches, pixels
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
from pinchpoint.systems.radiance.rendering.sparse import Occupancy, find_occupied, render_sparse
from pinchpoint.systems.radiance.settings import Settings

# Points per ray of a whole image, relative to training. Training draws new random points every time; evenly
# spaced points need to be denser, or the thin shells learned that way show as rings.
FINER = 4
_RAYS = 8192 // FINER  # rays of whole images rendered at once


class GeneratedImages(NamedTuple):
    """Generated images.

    low: (B, 3, W, W) in [-1, 1], as rendered; high: (N, 3, f W, f W), the N images that consist of whole
    pixels after super-resolution, or None; depth, acc: (B, W, W); features: (B, F, W, W), or None without
    super-resolution.
    """

    low: Tensor
    high: Tensor | None
    depth: Tensor
    acc: Tensor
    features: Tensor | None = None

    @property
    def best(self) -> Tensor:
        """The enlarged images if there are any, otherwise the rendered ones."""
        return self.low if self.high is None else self.high


@dataclass(frozen=True)
class Request:
    """Inputs of B images.

    places: (B, R, 2) with R = W * W, positions in the image; whole: indices of the images that consist of
    whole pixels.
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
        """All tensors, in the order in which `of` takes them."""
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
        """Yield the same images in blocks of `rays` rays of each image."""
        for first in range(0, self.places.shape[1], rays):
            some = slice(first, first + rays)
            yield replace(self, places=self.places[:, some], draws=self.draws.part(slice(None), some))


class Generator(nn.Module):
    """A field, a camera that orbits it, and an optional super-resolution network."""

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
        """Render B images. memory, chunk: by default those of the settings."""
        return self.to_images(self.render_rays(request, memory=memory, chunk=chunk), request)

    def render_near(self, request: Request, occupancy: Occupancy | BakedObject) -> RenderOutput:
        """Render the rays of one image, in fp32, from the points that matter (see `sparse`), or from values
        at the nodes of a grid (see `baked`).
        """
        rays, draws = self._rays_of(request)
        if isinstance(occupancy, BakedObject):
            return occupancy.render(rays, draws, white=self.settings.white, endless=self.settings.endless)
        return render_sparse(
            self.field,
            rays,
            request.codes,
            draws,
            occupancy,
            white=self.settings.white,
            endless=self.settings.endless,
            features=self.superres is not None,
        )

    def prepare_view(self, request: Request, baked: BakedObject, *, at_once: int) -> None:
        """Compute what the view shows of a baked object. at_once: rays processed together."""
        baked.prepare_view(lambda: map(self._rays_of, request.blocks(at_once)), endless=self.settings.endless)

    def _rays_of(self, request: Request) -> tuple[Rays, Draws]:
        rays, bound = self.camera.rays(request.u, request.v, request.places), self.settings.bound
        return rays, clip_to_ball(request.draws, rays, bound) if bound else request.draws

    def render_rays(
        self, request: Request, *, memory: str | None = None, chunk: int | None = None
    ) -> RenderOutput:
        settings = self.settings
        options: dict[str, Any] = {
            "form": settings.form,
            "memory": memory or settings.memory,
            "chunk": chunk or settings.chunk,
        }
        rays, draws = self._rays_of(request)
        return render(
            self.field,
            rays,
            request.codes,
            draws,
            **options,
            precision=settings.precision,  # pyright: ignore[reportArgumentType]
            white=settings.white,
            endless=settings.endless,
            features=self.superres is not None,
        )

    def to_images(self, output: RenderOutput, request: Request) -> GeneratedImages:
        """Arrange rays as square images; with super-resolution, images of whole pixels are also enlarged."""
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
        """Like `to_images`, with two more losses of the super-resolution, each ().

        The first loss compares enlarged real patches, for which features and view are unknown, with the real
        large patches. The second compares enlarged renders with their enlargement without features and view,
        as learned from photographs. Only the super-resolution gets gradients from them: the render must not
        move to where features change little. Patches that do not consist of whole pixels are ignored.
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
        # One pass for all: images do not depend on each other, and on a GPU such small kernels take the same
        # time for many images as for one.
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
    """Input of a discriminator.

    images: (N, C, p, p); weight: of the mean over these images; share: weight in the generator's loss;
    labels: (N, L), or None if this discriminator has none.
    """

    critic: Discriminator
    images: Tensor
    weight: float
    share: float
    labels: Tensor | None = None


class Critics(nn.Module):
    """The discriminator of patches and, with super-resolution, a second one.

    The second one judges enlarged patches together with the patches they come from. classes: number of
    classes of a run with labels; the first discriminator reads them, and the sector of the view.
    """

    def __init__(self, settings: Settings, *, classes: int = 0) -> None:
        super().__init__()
        self.settings = settings
        self.classes = classes
        self.groups = tuple(size for size in (classes, settings.view_sectors) if size)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed + 2)
            options: dict[str, Any] = {
                "width": settings.critic_width,
                "norm": settings.critic_norm,
                "bias": settings.critic_bias,
            }
            self.low = Discriminator(settings.patch, **options, labels=sum(self.groups))
            self.high = (
                Discriminator(settings.patch * settings.superres, channels=6, **options)
                if settings.superres > 1
                else None
            )

    def labels(self, request: Request) -> Tensor | None:
        """The labels of generated patches, (B, L): the class that the codes say, and the view."""
        if not self.groups:
            return None
        own = request.codes.shape[:, : self.classes] / MARK
        return torch.cat([own, sector_rows(request.u, self.settings.view_sectors)], dim=1)

    def inputs(
        self, low: Tensor, high: Tensor | None, request: Request, labels: Tensor | None
    ) -> Iterator[CriticInput]:
        """Yield the inputs of the discriminators.

        low: (B, 3, p, p); high: (N, 3, f p, f p), the enlarged patches of whole pixels; labels: (B, L) of the
        patches.
        """
        yield CriticInput(self.low, low.float(), 1.0, 1.0, labels)
        if self.high is not None and high is not None:
            pairs = stack_pair(high, _rows(low, request.whole)).float()
            yield CriticInput(self.high, pairs, _weight(request, self.settings), self.settings.sr_weight)

    def loss(
        self, images: GeneratedImages, request: Request, real: Real, *, penalty: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The discriminators' loss () and the R1 penalty () contained in it, without autocast.

        penalty: weight of R1; None: no penalty.
        """
        parts, slopes = [], [real.low.new_zeros(())]
        generated_high = None if images.high is None else images.high.detach()
        real_high = None if images.high is None or real.high is None else _rows(real.high, request.whole)
        generated_inputs = self.inputs(images.low.detach(), generated_high, request, self.labels(request))
        real_inputs = self.inputs(real.low, real_high, request, real.labels)
        for false, true in zip(generated_inputs, real_inputs, strict=True):
            if penalty is None or true.critic.has_passes(true.images):
                labels = None if true.labels is None else _join(true.labels, false.labels)
                of_real, of_generated, of_labels, squares = true.critic.judge_both(
                    true.images, false.images, labels, penalised=penalty is not None
                )
                if penalty is not None and squares is not None:
                    reduction: Any = self.settings.r1_reduction
                    slope = mean_square(squares, true.images, reduction=reduction)
                    slopes.append(true.weight * penalty * slope)
            else:
                slope, of_real, of_labels = self._penalise(true)
                of_generated, _ = true.critic.judge(false.images, false.labels)
                slopes.append(true.weight * penalty * slope)
            parts.append(true.weight * (loss_as_real(of_real) + loss_as_generated(of_generated)))
            if of_labels is not None:
                parts.append(self._label_part(of_labels, true.labels))
        penalty_sum = torch.stack(slopes).sum()
        return torch.stack(parts).sum() + penalty_sum, penalty_sum.detach()

    def generator_loss(self, images: GeneratedImages, request: Request) -> Tensor:
        """The generator's adversarial loss, ()."""
        parts = []
        for one in self.inputs(images.low, images.high, request, self.labels(request)):
            logits, scores = one.critic.judge(one.images, one.labels, twice=False)
            parts.append(one.share * one.weight * loss_as_real(logits))
            if scores is not None:
                parts.append(self._label_part(scores, one.labels))
        return torch.stack(parts).sum()

    def _penalise(self, real: CriticInput) -> tuple[Tensor, Tensor, Tensor | None]:
        """R1 at real patches with their labels, (), their logits (N,) and the scores of all labels."""
        scores: list[Tensor | None] = []

        def judge(patches: Tensor) -> Tensor:
            logits, of_labels = real.critic.judge(patches, real.labels)
            scores.append(of_labels)
            return logits

        reduction: Any = self.settings.r1_reduction
        slope, logits = slope_penalty(judge, real.images, reduction=reduction)
        return slope, logits, scores[0]

    def _label_part(self, scores: Tensor, labels: Tensor | None) -> Tensor:
        assert labels is not None
        return self.settings.label_weight * label_loss(scores, labels, self.groups)

    def refresh(self) -> None:
        """Advance every power iteration by one round. Call it once per step, before the first pass."""
        critics = [self.low] if self.high is None else [self.low, self.high]
        refresh([conv for critic in critics for conv in critic.spectral_convs()])


def draw_request(
    config: FieldConfig, settings: Settings, *, step: int, what: str, device: str, batch: int
) -> Request:
    """Draw the inputs of a step's patches; they depend only on the seed, the step and `what` they are for."""
    generator = generator_for(settings.seed, step, what, device=device)
    codes = draw_codes(config, batch, generator=generator)
    u, v = draw_poses(batch, v_range=(settings.v_low, settings.v_high), generator=generator)
    scale, shift = draw_step_patches(batch, settings, step, generator)
    draws = draw(
        batch, settings.patch**2, settings.samples, noise=settings.noise_at(step), generator=generator
    )
    return Request(codes, u, v, patches(settings.patch, scale, shift), draws, whole_rows(batch, settings))


def draw_codes(
    config: FieldConfig, batch: int, *, generator: torch.Generator, only: str | None = None
) -> Codes:
    """Draw the codes of `batch` new objects. only: their class; None: any, as often as in the data."""
    wide = torch.randn(batch, config.z_shape + config.z_app, generator=generator, device=generator.device)
    codes = Codes(*wide.split((config.z_shape, config.z_app), dim=1))
    if not config.classes and only is None:
        return codes
    return mark_classes(codes, draw_classes(config, batch, generator=generator, only=only))


@torch.no_grad()
def whole_images(
    generator: Generator,
    codes: Codes,
    u: Tensor,
    v: Tensor,
    *,
    size: int | None = None,
    occupied: Sequence[Occupancy | BakedObject] | None = None,
) -> GeneratedImages:
    """Render whole images of B codes at poses u, v (B,), one after another, without randomness.

    Pixels stay between black and white. size: pixels per side, by default that of the settings. occupied:
    where the B objects are, to compute only points that matter, or baked objects.
    """
    settings, images = generator.settings, []
    size = size or settings.size
    # If training uses chunks, render at most as many points at once as a chunk has, because chunks were
    # chosen for the available memory.
    at_once = min(_RAYS, max(1, (settings.chunk or _RAYS * FINER) // FINER))
    places = pixels(size, device=u.device)[None]
    for at in range(len(u)):
        one = slice(at, at + 1)
        draws = midpoints(1, size * size, FINER * settings.samples, device=u.device)
        request = Request(Codes(codes.shape[one], codes.app[one]), u[one], v[one], places, draws, whole=(0,))
        near = None if occupied is None else occupied[at]
        if isinstance(near, BakedObject):
            generator.prepare_view(request, near, at_once=at_once)
        output = join_rays(
            [
                generator.render_rays(block, memory="none")
                if near is None
                else generator.render_near(block, near)
                for block in request.blocks(at_once)
            ]
        )
        images.append(generator.to_images(clear_haze(output, settings.haze, white=settings.white), request))
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


def where_occupied(generator: Generator, codes: Codes) -> list[Occupancy] | None:
    """Where B objects are, for `whole_images`; None on a GPU, which computes all points in less time, and
    without a bound, where objects may be anywhere.
    """
    if codes.shape.device.type == "cuda" or not generator.settings.bound:
        return None
    return find_occupied(generator.field, codes, generator.settings.bound)


def _rows(values: Tensor, rows: tuple[int, ...]) -> Tensor:
    """Select rows of (B, ...) without sending indices to the device: (N, ...)."""
    if len(rows) == len(values):
        return values
    every = values.unbind()
    return torch.stack([every[row] for row in rows])


def _join(one: Tensor, other: Tensor | None) -> Tensor:
    assert other is not None
    return torch.cat([one, other])


def _weight(request: Request, settings: Settings) -> float:
    """Weight of a mean over the patches of whole pixels: 1 for a whole batch, above 1 for a part of a batch
    that has more of them than average.
    """
    return len(request.whole) / (len(request) * settings.whole_share)


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """The mean absolute difference, (), smoothed below 2.5 of 255 levels so that rounding has no gradient."""
    return functional.smooth_l1_loss(one, other, beta=0.02)


def _as_images(output: RenderOutput) -> GeneratedImages:
    """Arrange rays as square images, without enlarging them."""
    side = round(output.rgb.shape[1] ** 0.5)
    depth, acc = (values.unflatten(1, (side, side)) for values in (output.depth, output.acc))
    features = None if output.features is None else _image(output.features, side)
    return GeneratedImages(_image(output.rgb, side) * 2 - 1, None, depth, acc, features)


def _image(values: Tensor, side: int) -> Tensor:
    """(B, W * W, C) -> (B, C, W, W)."""
    return values.mT.unflatten(2, (side, side)).contiguous()
