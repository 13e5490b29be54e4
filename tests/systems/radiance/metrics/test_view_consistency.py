"""Orbits of one car are consistent; with changing cars, wrong poses or wrong depths they are not."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="orbits are torch's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.radiance.data.cars import Pose, draw_car  # noqa: E402
from pinchpoint.systems.radiance.data.sphere_tracing import picture  # noqa: E402
from pinchpoint.systems.radiance.metrics.view_consistency import orbit_consistency  # noqa: E402

VIEWS = 24
U, V = torch.arange(VIEWS) / VIEWS, torch.full((VIEWS,), 0.3)


def orbit(cars: list) -> dict[str, torch.Tensor]:
    images = picture(cars, [Pose(float(u), 0.3) for u in U], size=48, supersample=2)
    return {"images": images.rgb.permute(0, 3, 1, 2) * 2 - 1, "depth": images.depth, "cover": images.cover}


@pytest.fixture(scope="module")
def true():
    return orbit([draw_car(4, 0)[0]] * VIEWS)


def test_views_of_one_car_agree(true) -> None:
    value = orbit_consistency(**true, u=U, v=V)
    assert value.depth_error < 0.015  # half a pixel is 0.022 across
    assert value.area_roughness < 0.05 and value.hue_spread < 0.01 and value.colour_error < 0.05


def test_views_of_different_cars_do_not_agree(true) -> None:
    good = orbit_consistency(**true, u=U, v=V)
    value = orbit_consistency(**orbit([draw_car(4, number)[0] for number in range(VIEWS)]), u=U, v=V)
    assert value.hue_spread > 10 * good.hue_spread and value.hue_spread > 0.1
    assert value.area_roughness > 2 * good.area_roughness and value.colour_error > 3 * good.colour_error


def test_wrong_poses_increase_the_depth_error(true) -> None:
    good = orbit_consistency(**true, u=U, v=V)
    other_u = orbit_consistency(**true, u=(-U) % 1, v=V)
    assert other_u.depth_error > 2 * good.depth_error


def test_a_depth_that_is_off_by_a_known_amount_gives_that_depth_error(true) -> None:
    wrong_depth = true["depth"].clone()
    wrong_depth[::2] += 0.05  # every second view differs from the next
    value = orbit_consistency(true["images"], wrong_depth, true["cover"], U, V)
    assert value.depth_error == pytest.approx(0.05, abs=0.012)


def test_an_empty_orbit_has_no_depth_error_and_too_few_views_are_refused(true) -> None:
    white = torch.ones(4, 3, 8, 8)
    nothing = torch.zeros(4, 8, 8)
    value = orbit_consistency(white, nothing + math.inf, nothing, U[:4], V[:4])
    assert math.isnan(value.depth_error) and math.isnan(value.hue_spread) and value.area_roughness == 0
    with pytest.raises(BadInput, match="three or more"):
        orbit_consistency(*(values[:2] for values in true.values()), U[:2], V[:2])
    with pytest.raises(BadInput, match="one pose per view"):
        orbit_consistency(*true.values(), U[:5], V[:5])
