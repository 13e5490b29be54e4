"""Patches of photographs: at the places of rays, equally sharp, bicubic with super-resolution."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")

from pinchpoint.systems.radiance.data.patches import cut_patches, draw_step_patches, real_patches, whole_rows  # noqa: E402
from pinchpoint.systems.radiance.model.superres import residual  # noqa: E402
from pinchpoint.systems.radiance.settings import Settings  # noqa: E402

SETTINGS = Settings(preset="tiny", steps=10, size=32, patch=32, batch=2)


def test_a_patch_of_whole_pixels_equals_those_pixels_of_the_photograph() -> None:
    settings = replace(SETTINGS, size=64)
    images = torch.rand(1, 3, 64, 64)
    scale, shift = torch.tensor([0.5]), torch.tensor([[0.125, -0.25]])  # 4 pixels to the right, 8 up
    low, high, _ = cut_patches(images, settings, scale, shift)
    assert high is None
    assert torch.allclose(low[0], images[0, :, 8:40, 20:52], atol=1e-5)


def test_real_patches_between_pixels_are_bicubic_with_super_resolution_and_bilinear_without() -> None:
    """A shift by half a pixel: (-3, 19, 19, -3) / 32 of four neighbours (the cubic kernel with a = -0.75), or
    the mean of two.
    """
    row = torch.rand(1, 1, 1, 64, generator=torch.Generator().manual_seed(0)).expand(1, 3, 64, 64) * 0.5
    scale, shift = torch.tensor([1.0]), torch.tensor([[1 / 64, 0.0]])
    _, high, _ = cut_patches(row, replace(SETTINGS, superres=2, size=32), scale, shift)
    low, none, _ = cut_patches(row, replace(SETTINGS, patch=64, size=64), scale, shift)
    line = row[0, 0, 0]
    assert high is not None and none is None
    cubic = (-3 * line[:-3] + 19 * line[1:-2] + 19 * line[2:-1] - 3 * line[3:]) / 32
    assert torch.allclose(high[0, 0, 5, 1:62], cubic, atol=1e-5)
    assert torch.allclose(low[0, 0, 5, :63], (line[:-1] + line[1:]) / 2, atol=1e-5)


def test_real_patches_stay_between_black_and_white() -> None:
    images = torch.where(torch.rand(2, 3, 64, 64) > 0.5, 1.0, -1.0)
    _, high, _ = real_patches(images, replace(SETTINGS, superres=2), step=5, what="real")
    assert high is not None and float(high.abs().max()) == pytest.approx(1, abs=1e-6)


def test_real_patches_are_equally_sharp_where_rays_are_far_apart() -> None:
    """Averaging over a pixel multiplies waves of three pixels by sin(pi / 3) / (pi / 3), in every patch."""
    settings = replace(SETTINGS, superres=2, size=64)
    waves = torch.sin(2 * torch.pi * (torch.arange(128) + 0.5) / 6).expand(1, 3, 128, 128)
    spread = {}
    for scale in (0.5, 0.77, 1.0):
        low, high, _ = cut_patches(waves, settings, torch.tensor([scale]), torch.tensor([[0.0, 0.0]]))
        assert high is not None
        spread[scale] = float(low.std())
    whole = torch.nn.functional.avg_pool2d(waves, 2)
    assert spread[0.5] == pytest.approx(float(whole[..., 16:48, 16:48].std()), rel=1e-5)
    assert spread[0.77] == pytest.approx(spread[0.5], rel=0.06) and spread[1.0] == pytest.approx(
        spread[0.5], rel=0.06
    )


def test_the_large_patch_of_a_real_pair_averages_to_the_small_one() -> None:
    settings = replace(SETTINGS, superres=2)
    low, high, _ = real_patches(torch.rand(3, 3, 64, 64), settings, step=5, what="real")
    assert high is not None and low.shape == (3, 3, 32, 32) and high.shape == (3, 3, 64, 64)
    assert residual(high, low) <= 1e-6


def test_a_part_of_the_real_patches_equals_that_part_of_all_patches() -> None:
    settings, images = replace(SETTINGS, superres=2, size=64, batch=2, ranks=3), torch.rand(6, 3, 128, 128)
    every = real_patches(images, settings, step=3, what="real")
    some = real_patches(images[2:4], settings, step=3, what="real", every=6, first=2)
    assert all(
        torch.equal(one, part)
        for one, part in zip(every.part(slice(2, 4)).tensors(), some.tensors(), strict=True)
    )


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 2 / 3, 1.0])
def test_rows_of_whole_pixels_are_those_with_the_fixed_scale(share: float) -> None:
    settings = replace(SETTINGS, size=64, whole=share)
    scale, _ = draw_step_patches(30, settings, 1, torch.Generator().manual_seed(0))
    assert whole_rows(30, settings) == tuple(torch.nonzero(scale == 0.5)[:, 0].tolist())
    assert len(whole_rows(30, settings)) == math.ceil(30 * share)
    assert whole_rows(3, SETTINGS) == (0, 1, 2), "a patch that is the image"
    assert whole_rows(4, replace(SETTINGS, least=0.5)) == (0, 2), "with smaller patches besides"
