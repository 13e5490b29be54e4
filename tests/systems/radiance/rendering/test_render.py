"""Compositing compared with a slow loop and a closed form; rendering of given draws; refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.field import Field
from pinchpoint.systems.radiance.rendering.rays import Camera, Rays, pixels
from pinchpoint.systems.radiance.rendering.render import (
    Codes,
    Draws,
    RenderOutput,
    clip_to_ball,
    composite,
    depths_of,
    draw,
    generator_for,
    midpoints,
    render,
)

TINY = FieldConfig.preset("tiny")


def scene(batch: int = 2, side: int = 3, samples: int = 5) -> tuple[Field, Rays, Codes, Draws]:
    generator = generator_for(0, 1, "test")
    rays = Camera().rays(torch.tensor([0.1, 0.6])[:batch], torch.tensor([0.2, 0.4])[:batch], pixels(side))
    codes = Codes(*(torch.randn(batch, 8, generator=generator) for _ in range(2)))
    return Field(TINY), rays, codes, draw(batch, side * side, samples, noise=1.0, generator=generator)


@pytest.mark.parametrize("white", [True, False])
@pytest.mark.parametrize("endless", [True, False])
def test_compositing_matches_a_slow_loop(white: bool, endless: bool) -> None:
    torch.manual_seed(0)
    colour, density, noise = (
        torch.randn(4, 6, 3).double(),
        2 * torch.randn(4, 6).double(),
        torch.randn(4, 6).double(),
    )
    depths = torch.rand(4, 6).double().sort(dim=1).values + 1
    rgb, depth, acc, weights = composite(
        colour, density, depths, far=2.5, noise=noise, white=white, endless=endless
    )
    for ray in range(4):
        transmittance, images, far_off, coverage = 1.0, [0.0] * 3, 0.0, 0.0
        for at in range(6):
            end = depths[ray, at + 1] if at < 5 else depths[ray, at] + 1e10 if endless else torch.tensor(2.5)
            thick = max(0.0, float(density[ray, at] + noise[ray, at]))
            part = transmittance * (1 - math.exp(-thick * float(end - depths[ray, at])))
            transmittance *= math.exp(-thick * float(end - depths[ray, at]))
            images = [
                s + part / (1 + math.exp(-float(c))) for s, c in zip(images, colour[ray, at], strict=True)
            ]
            far_off, coverage = far_off + part * float(depths[ray, at]), coverage + part
            assert float(weights[ray, at]) == pytest.approx(part, abs=1e-12)
        assert rgb[ray].tolist() == pytest.approx(
            [s + (1 - coverage if white else 0) for s in images], abs=1e-12
        )
        assert (float(depth[ray]), float(acc[ray])) == (pytest.approx(far_off), pytest.approx(coverage))


def test_the_opacity_and_depth_of_a_uniform_slab_match_the_closed_form() -> None:
    """With density 2 from 3.5 to 4.5 the coverage is 1 - exp(-2), and the depth follows by integration."""
    rays = Rays(torch.zeros(1, 1, 3), torch.ones(1, 1, 3), 3.0, 5.0)
    depths = depths_of(rays, torch.zeros(1, 1, 4000).double())
    within = (depths >= 3.5) & (depths < 4.5)
    density = torch.where(within, 2.0, -1.0)  # negative density is empty space
    rgb, depth, acc, _ = composite(torch.zeros(1, 1, 4000, 3), density, depths, far=5.0)
    opaque = 1 - math.exp(-2)
    assert float(acc) == pytest.approx(opaque, rel=1e-6)
    assert rgb[0, 0].tolist() == pytest.approx([0.5 * opaque + (1 - opaque)] * 3, rel=1e-6)
    first = 3.5 * opaque + (1 - 3 * math.exp(-2)) / 2  # the integral of t 2 exp(-2 (t - 3.5)) over the slab
    assert float(depth) == pytest.approx(first, rel=1e-3)


def test_the_gradient_of_compositing_is_finite_for_empty_and_opaque_rays() -> None:
    density = torch.tensor([[-1.0, 0.0, 1e4, 1e4, 3.0]], requires_grad=True)
    rgb, *_ = composite(torch.zeros(1, 5, 3), density, torch.arange(5.0)[None], far=5.0, endless=True)
    rgb.sum().backward()
    assert density.grad is not None and bool(density.grad.isfinite().all())


def test_each_interval_contains_one_point() -> None:
    rays = Rays(torch.zeros(1, 2, 3), torch.ones(1, 2, 3), 3.0, 5.0)
    offsets = draw(1, 2, 8, generator=generator_for(0, 0, "x")).offsets
    depths = depths_of(rays, offsets)
    number = ((depths - 3.0) / 0.25).floor()
    assert number.tolist() == [[list(range(8))] * 2]
    assert depths_of(rays, midpoints(1, 2, 2).offsets).tolist() == [[[3.5, 4.5]] * 2]


def test_draws_depend_only_on_seed_step_and_purpose() -> None:
    def draws(*key: Any) -> Draws:
        return draw(1, 2, 3, noise=0.5, generator=generator_for(*key))

    first, noise = draws(1, 2, "g"), draws(1, 2, "g").noise
    draws(9, 9, "other")
    assert draws(1, 2, "g").offsets.equal(first.offsets) and noise is not None and noise.equal(first.noise)
    assert not any(
        draws(*other).offsets.equal(first.offsets) for other in ((2, 2, "g"), (1, 3, "g"), (1, 2, "d"))
    )
    assert draw(1, 2, 3, generator=generator_for(1, 2, "g")).noise is None
    many = draw(1, 100, 100, noise=0.5, generator=generator_for(0, 0, "x")).noise
    assert many is not None and many.std() == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("form", ["eager", "folded"])
def test_a_render_equals_the_composited_field_at_its_points(form: Any) -> None:
    field, rays, codes, draws = scene()
    result = render(field, rays, codes, draws, form=form, features=True)
    depths = 3 + 2 / 5 * (torch.arange(5) + draws.offsets)
    for image in range(2):
        points = rays.origins[image, :, None] + depths[image, :, :, None] * rays.directions[image, :, None]
        one = field(
            points.reshape(45, 3),
            rays.directions[image],
            codes.shape[image][None],
            codes.app[image][None],
            features=True,
        )
        noise = draws.noise[image] if draws.noise is not None else None
        images = composite(one[0].view(9, 5, 3), one[1].view(9, 5), depths[image], far=5.0, noise=noise)
        torch.testing.assert_close(result.rgb[image], images[0], atol=1e-6, rtol=0)
        torch.testing.assert_close(result.depth[image], images[1], atol=1e-5, rtol=0)
        torch.testing.assert_close(result.acc[image], images[2], atol=1e-6, rtol=0)
        mixed = (images[3][..., None] * one[2].view(9, 5, -1)).sum(1)
        torch.testing.assert_close(result.features[image], mixed, atol=1e-6, rtol=0)


def test_a_render_follows_the_callers_autocast_and_composites_in_fp32() -> None:
    inputs = scene()
    plain = render(*inputs)
    for form in ("eager", "folded"):
        half = render(*inputs, form=form, precision="bf16")
        assert (
            half.rgb.dtype == torch.float32
            and 1e-6 < float((half.rgb - plain.rgb).detach().abs().max()) < 0.05
        )
        with torch.autocast("cpu", torch.bfloat16):
            around: RenderOutput = render(*inputs, form=form)
            exact = render(*inputs, form=form, precision="fp32")
        assert around.rgb.equal(half.rgb)
        torch.testing.assert_close(exact.rgb, plain.rgb, atol=1e-6, rtol=0)


@pytest.mark.parametrize("form", ["eager", "folded"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_opacity_of_a_bounded_uniform_density_follows_from_the_chords_of_the_ball(
    form: Any, noise: float
) -> None:
    """The density is 2 everywhere; a ray that misses the ball sees nothing."""
    field, rays, codes, _ = scene(side=9)
    with torch.no_grad():
        field.density.weight.zero_()
        field.density.bias.fill_(2.0)
    draws = draw(2, 81, 1000, noise=noise, generator=generator_for(0, 1, "ball"))
    result = render(field, rays, codes, clip_to_ball(draws, rays, 0.7), form=form)
    nearest = torch.linalg.cross(rays.origins, rays.directions).norm(dim=-1)
    chords = 2 * (0.49 - nearest.square()).clamp_min(0).sqrt()
    assert bool((chords == 0).any()) and bool((chords > 1).any())
    torch.testing.assert_close(result.acc, -torch.expm1(-2 * chords), rtol=0.01, atol=0.01)
    assert bool((result.acc[nearest > 0.7] == 0).all()) and bool((result.rgb[nearest > 0.7] == 1).all())


def test_a_bound_around_everything_keeps_all_points_but_the_last() -> None:
    field, rays, codes, draws = scene()
    fewer = Draws(draws.offsets[..., :-1], None if draws.noise is None else draws.noise[..., :-1])
    for one, other in zip(
        render(field, rays, codes, clip_to_ball(draws, rays, 9.0)),
        render(field, rays, codes, fewer),
        strict=True,
    ):
        assert other is None or torch.allclose(one, other, atol=1e-5)


def test_points_within_a_bound_lie_on_the_chords_one_in_each_interval() -> None:
    _, rays, _, draws = scene(side=9)
    clipped_draws = clip_to_ball(draws, rays, 0.7)
    assert draws.noise is not None and clipped_draws.noise is not None
    nearest = torch.linalg.cross(rays.origins, rays.directions).norm(dim=-1)
    meets = nearest < 0.65
    half = (0.49 - nearest[meets].square()).sqrt()
    enter = (rays.origins[meets].square().sum(-1) - nearest[meets].square()).sqrt() - half
    shares = (depths_of(rays, clipped_draws.offsets)[meets] - enter[:, None]) / (2 * half[:, None])
    expected = (torch.arange(4) + draws.offsets[meets][:, :4]) / 4
    assert len(half) > 9 and torch.allclose(
        shares, torch.cat([expected, torch.ones(len(half), 1)], dim=1), atol=1e-4
    )
    assert torch.equal(clipped_draws.noise[meets][:, :4], draws.noise[meets][:, :4])
    assert bool((clipped_draws.noise[..., -1] < -1e8).all()) and bool(
        (clipped_draws.noise[nearest > 0.7] < -1e8).all()
    )


def test_inputs_that_do_not_match_are_refused() -> None:
    field, rays, codes, draws = scene()
    wrong: list[tuple[Any, ...]] = [
        (field, rays, Codes(codes.shape[:1], codes.app), draws),
        (field, rays, Codes(codes.shape, codes.app[:, :5]), draws),
        (field, rays, codes, Draws(draws.offsets[:, :4])),
        (field, rays, codes, replace(draws, noise=draws.offsets[..., :2])),
    ]
    for inputs in wrong:
        with pytest.raises(BadInput):
            render(*inputs)
    for option in ({"form": "fast"}, {"memory": "less"}, {"precision": "int8"}, {"chunk": 0}):
        with pytest.raises(BadInput):
            render(field, rays, codes, draws, **option)
