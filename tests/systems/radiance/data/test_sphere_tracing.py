"""Pictures of cars compared with a slow march along every ray, mirror images and larger pictures."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="pictures are torch's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.radiance.data.cars import Pose, distance, draw_car, shapes_of  # noqa: E402
from pinchpoint.systems.radiance.data.sphere_tracing import picture  # noqa: E402
from pinchpoint.systems.radiance.rendering.rays import Camera, pixels  # noqa: E402

PAIRS = [draw_car(5, number) for number in range(3)]
CARS, POSES = [car for car, _ in PAIRS], [pose for _, pose in PAIRS]


def test_depth_and_cover_match_a_slow_march_along_the_rays_of_the_field() -> None:
    size = 20
    images = picture(CARS, POSES, size=size, supersample=1)
    position = torch.tensor([(pose.u, pose.v) for pose in POSES])
    rays = Camera().rays(position[:, 0], position[:, 1], pixels(size))
    steps = torch.linspace(3, 5, 4001)
    for number, car in enumerate(CARS):
        at = rays.origins[number, :, None] + steps[:, None] * rays.directions[number, :, None]
        shapes = shapes_of([car]).take(torch.zeros(at.shape[0] * at.shape[1], dtype=torch.long))
        inside = torch.minimum(*distance(shapes, *at.reshape(-1, 3).unbind(dim=1))).view(at.shape[:2]) < 1e-3
        first = torch.where(
            inside.any(dim=1),
            steps[inside.int().argmax(dim=1)],
            torch.full((len(inside),), torch.inf),
        )
        value = images.depth[number].flatten()
        hit = value.isfinite()
        assert (images.cover[number].flatten() == hit.float()).all()
        assert (hit == first.isfinite()).float().mean() > 0.995  # a grazing ray may count either way
        both = hit & first.isfinite()
        assert both.sum() > 30
        assert (value - first)[both].abs().max() < 4e-3  # the tracer's 1e-3, along a slanting ray


def test_a_picture_is_the_box_filtered_picture_of_three_times_its_size() -> None:
    small = picture(CARS, POSES, size=12, supersample=3)
    large = picture(CARS, POSES, size=36, supersample=1)
    assert torch.allclose(small.rgb, large.rgb.view(3, 12, 3, 12, 3, 3).mean(dim=(2, 4)), atol=1e-6)
    assert torch.allclose(small.cover, large.cover.view(3, 12, 3, 12, 3).mean(dim=(2, 4)), atol=1e-6)


def test_a_mirrored_pose_shows_the_mirrored_silhouette() -> None:
    poses = [Pose(0.15, 0.3), Pose(0.85, 0.3)]
    images = picture([CARS[0]] * 2, poses, size=48)
    assert images.cover[0].mean() > 0.1
    assert (images.cover[0] - images.cover[1].flip(1)).abs().max() <= 1 / 9 + 1e-6  # a ray at the edge


def test_pictures_do_not_depend_on_the_chunk_or_on_the_other_cars() -> None:
    together = picture(CARS, POSES, size=24)
    parts = picture(CARS, POSES, size=24, chunk=1000)
    alone = picture(CARS[1:2], POSES[1:2], size=24)
    assert torch.allclose(together.rgb, parts.rgb, atol=1e-5)
    assert torch.allclose(together.rgb[1:2], alone.rgb, atol=1e-5)


def test_the_background_is_white_and_the_car_has_the_colour_of_its_paint() -> None:
    images = picture([CARS[0]], [Pose(0.3, 0.25)], size=32)
    assert (images.rgb[0][images.cover[0] == 0] == 1).all()
    assert (images.rgb[0, 0] == 1).all() and (images.rgb[0, :, 0] == 1).all()  # the car fits into the picture
    car = CARS[0]
    strongest = images.rgb[0][images.cover[0] == 1].median(dim=0).values.argmax()
    shapes = shapes_of([car])
    assert strongest == torch.cat([shapes.red, shapes.green, shapes.blue]).argmax()


def test_straight_above_is_a_pose_like_any_other() -> None:
    images = picture([CARS[0]] * 2, [Pose(0.25, 0.0), Pose(0.25, 1e-4)], size=32)
    assert images.rgb.isfinite().all()
    assert (images.cover[0] - images.cover[1]).abs().mean() < 0.01


@pytest.mark.parametrize(
    ("cars", "poses", "settings"),
    [
        ([], [], {"size": 8}),
        (CARS, POSES[:2], {"size": 8}),
        (CARS, POSES, {"size": 0}),
        (CARS, POSES, {"size": 8, "supersample": 0}),
    ],
)
def test_invalid_inputs_are_refused(cars: list, poses: list, settings: dict) -> None:
    with pytest.raises(BadInput):
        picture(cars, poses, **settings)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_pictures_from_a_gpu_match_those_from_the_cpu() -> None:
    here, there = picture(CARS, POSES, size=32), picture(CARS, POSES, size=32, device="cuda")
    assert (here.rgb - there.rgb.cpu()).abs().mean() < 1e-3
