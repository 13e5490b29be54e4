"""Rays compared with a pinhole camera rotated by hand, and patches with the pixels of a whole image."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.radiance.rendering.rays import (
    Camera,
    Rays,
    draw_patches,
    draw_poses,
    frames,
    patches,
    pixels,
)

CAMERA = Camera(fov_degrees=40.0, radius=3.0, near=2.0, far=4.0)


def rotated_by_hand(u: float, v: float, x: float, y: float) -> tuple[np.ndarray, np.ndarray]:
    """A pinhole camera on +x that looks at the origin with z up, rotated about y and then about z."""
    raised, turn = math.asin(1 - 2 * v), 2 * math.pi * u
    steep = math.tan(math.radians(40) / 2)
    direction = np.array([-1.0, steep * x, -steep * y])
    about_y = np.array(
        [[math.cos(raised), 0, -math.sin(raised)], [0, 1, 0], [math.sin(raised), 0, math.cos(raised)]]
    )
    about_z = np.array([[math.cos(turn), -math.sin(turn), 0], [math.sin(turn), math.cos(turn), 0], [0, 0, 1]])
    rotation = about_z @ about_y
    return rotation @ np.array([3.0, 0, 0]), rotation @ direction / np.linalg.norm(direction)


@pytest.mark.parametrize(("u", "v"), [(0.0, 0.5), (0.3, 0.2), (0.85, 0.45), (0.1, 0.0)])
def test_rays_match_those_of_a_pinhole_camera_rotated_by_hand(u: float, v: float) -> None:
    places = torch.tensor([[0.0, 0.0], [1.0, -0.5], [-0.3, 0.9]], dtype=torch.float64)
    rays = CAMERA.rays(torch.tensor([u]).double(), torch.tensor([v]).double(), places)
    for at, (x, y) in enumerate(places.tolist()):
        origin, direction = rotated_by_hand(float(torch.tensor(u)), float(torch.tensor(v)), x, y)
        np.testing.assert_allclose(rays.origins[0, at], origin, atol=1e-7)
        np.testing.assert_allclose(rays.directions[0, at], direction, atol=1e-7)
    assert (rays.near, rays.far) == (2.0, 4.0)


def test_the_top_of_an_image_is_above_and_its_right_is_to_the_right() -> None:
    """Seen from +x at the horizon, right is +y and the first row looks up."""
    rays = CAMERA.rays(torch.zeros(1), torch.full((1,), 0.5), pixels(4))
    grid = rays.directions.reshape(4, 4, 3)
    assert bool((grid[0, :, 2] > 0).all()) and bool((grid[3, :, 2] < 0).all())
    assert bool((grid[:, 3, 1] > 0).all()) and bool((grid[:, 0, 1] < 0).all())


def test_a_patch_of_whole_pixels_equals_those_pixels_of_the_whole_image() -> None:
    size, side = 64, 16
    u, v = torch.tensor([0.2, 0.7]), torch.tensor([0.1, 0.4])
    whole = CAMERA.rays(u, v, pixels(size)).directions.reshape(2, size, size, 3)
    corners = [(3, 40), (48, 0)]  # row and column of the first pixel
    middles = [[(2 * column + side) / size - 1, (2 * row + side) / size - 1] for row, column in corners]
    places = patches(side, torch.full((2,), side / size), torch.tensor(middles))
    value = CAMERA.rays(u, v, places).directions.reshape(2, side, side, 3)
    for image, (row, column) in enumerate(corners):
        expected = whole[image, row : row + side, column : column + side]
        torch.testing.assert_close(value[image], expected, rtol=0, atol=1e-6)
    assert patches(size, torch.ones(1), torch.zeros(1, 2))[0].equal(pixels(size)), (
        "scale 1 is the whole image"
    )


def test_a_patch_of_a_photograph_is_sampled_at_the_places_of_its_rays() -> None:
    image = torch.arange(64.0).reshape(1, 1, 8, 8)
    places = patches(4, torch.tensor([0.5]), torch.tensor([[0.5, -0.25]]))  # columns 4 to 7, rows 1 to 4
    read = torch.nn.functional.grid_sample(image, places.reshape(1, 4, 4, 2), align_corners=False)
    torch.testing.assert_close(read[0, 0], image[0, 0, 1:5, 4:8])


def test_patches_stay_inside_the_image_and_poses_in_their_range() -> None:
    generator = torch.Generator().manual_seed(0)
    scale, shift = draw_patches(500, least=0.25, most=0.8, generator=generator)
    assert 0.25 <= scale.min() < 0.27 and 0.78 < scale.max() <= 0.8
    assert patches(8, scale, shift).abs().max() <= 1
    u, v = draw_poses(2000, v_range=(0.0, 0.45), generator=generator)
    heights = frames(u, v)[:, 2, 2]  # uniform in area means uniform in z (Archimedes)
    assert heights.mean() == pytest.approx(0.55, abs=0.02) and heights.var() == pytest.approx(
        0.9**2 / 12, rel=0.1
    )
    rotations = frames(u, v)
    torch.testing.assert_close(
        rotations @ rotations.transpose(1, 2), torch.eye(3).expand(2000, 3, 3), atol=1e-6, rtol=0
    )
    assert bool((torch.linalg.det(rotations) > 0.99).all()), "right-handed"


def test_the_requested_share_of_patches_touches_an_edge_and_all_stay_inside() -> None:
    scale, shift = draw_patches(
        4000, least=0.5, most=0.9, edge=0.25, generator=torch.Generator().manual_seed(0)
    )
    within = shift.abs() / (1 - scale)[:, None]
    touches = (within - 1).abs() < 1e-6
    assert float(within.max()) <= 1 + 1e-6 and touches.float().mean(dim=0).tolist() == pytest.approx(
        [0.25, 0.25], abs=0.02
    )
    assert float((shift[touches] > 0).float().mean()) == pytest.approx(0.5, abs=0.03)
    assert float(within[~touches].mean()) == pytest.approx(0.5, abs=0.02), "the others are distributed evenly"


@pytest.mark.parametrize(
    ("batch", "share", "count"),
    [(8, 0.5, 4), (5, 0.5, 3), (1, 0.25, 1), (10, 0.3, 3), (6, 0.0, 0), (6, 1.0, 6)],
)
def test_the_requested_share_of_patches_including_the_first_has_the_fixed_scale(
    batch: int, share: float, count: int
) -> None:
    scale, shift = draw_patches(
        batch, least=0.8, fixed=(share, 0.5), generator=torch.Generator().manual_seed(0)
    )
    assert int((scale == 0.5).sum()) == count and (count == 0 or float(scale[0]) == 0.5)
    assert bool((scale[scale != 0.5] >= 0.8).all()) and bool(
        (shift.abs() <= (1 - scale)[:, None] + 1e-6).all()
    )
    if count == 4:
        assert bool((scale[::2] == 0.5).all()), "spread evenly"


def test_invalid_cameras_patches_and_rays_are_refused() -> None:
    for wrong in ({"fov_degrees": 180.0}, {"near": 5.0}, {"radius": 0.0}):
        with pytest.raises(BadInput):
            Camera(**wrong)
    generator = torch.Generator()
    for least, most in ((0.0, 1.0), (0.5, 0.4), (0.5, 1.1)):
        with pytest.raises(BadInput):
            draw_patches(1, least=least, most=most, generator=generator)
    with pytest.raises(BadInput):
        draw_poses(1, v_range=(0.4, 0.2), generator=generator)
    with pytest.raises(BadInput):
        pixels(0)
    with pytest.raises(BadInput):
        Rays(torch.zeros(2, 3), torch.zeros(2, 3), 0.0, 1.0)
