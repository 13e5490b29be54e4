"""The field as published: its size, its inputs at a point, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.field import Field, encode

TINY = FieldConfig.preset("tiny")


@pytest.mark.parametrize(("preset", "parameters"), [("graf", 677_764), ("small", None), ("tiny", None)])
def test_the_number_of_parameters_is_as_computed_and_as_published_for_graf(
    preset: str, parameters: int | None
) -> None:
    config = FieldConfig.preset(preset)
    images = sum(parameter.numel() for parameter in Field(config).parameters())
    assert images == config.parameters and parameters in (None, images)


def test_the_encoding_contains_sines_and_cosines_of_repeatedly_doubled_coordinates() -> None:
    point = torch.tensor([[0.3, -0.7, 1.1]], dtype=torch.float64)
    value = encode(point, 3)[0].tolist()
    slow = point[0].tolist()
    for wave in (math.sin, math.cos):
        slow += [wave(2**octave * x) for octave in range(3) for x in point[0].tolist()]
    assert value == pytest.approx(slow, abs=1e-14)
    wider = torch.full((1, 24), 9.0, dtype=torch.float64)
    encode(point, 3, out=wider)
    assert wider[0, :21].tolist() == value and wider[0, 21:].tolist() == [9.0] * 3, (
        "the other columns are unchanged"
    )
    assert encode(point, 0).equal(point)


def test_every_point_uses_the_codes_of_its_image_and_the_direction_of_its_ray() -> None:
    field = Field(TINY).double()
    torch.manual_seed(1)
    points, directions = torch.randn(12, 3).double(), torch.randn(6, 3).double()
    shape, app = torch.randn(2, 8).double(), torch.randn(2, 8).double()
    colour, density, features = field(points, directions, shape, app, features=True)
    assert features.shape == (12, TINY.features)
    for at in range(12):  # one by one: 6 points of an image, 2 of a ray
        alone = field(
            points[at : at + 1], directions[at // 2 : at // 2 + 1], shape[at // 6][None], app[at // 6][None]
        )
        torch.testing.assert_close(alone[0][0], colour[at], rtol=0, atol=1e-13)
        torch.testing.assert_close(alone[1][0], density[at], rtol=0, atol=1e-13)
    by_point = field(points, directions.repeat_interleave(2, dim=0), shape, app)
    assert by_point[0].equal(colour) and by_point[2] is None


def test_a_field_computed_layer_by_layer_gives_the_same_values() -> None:
    """The inputs are in the published order: point, shape code; hidden, direction, appearance code."""
    field = Field(TINY).double()
    torch.manual_seed(2)
    point, direction, shape, app = (torch.randn(1, wide).double() for wide in (3, 3, 8, 8))
    inputs = torch.cat((encode(point, 4), shape), dim=1)
    hidden = inputs
    for at in range(4):
        if at == 2:
            hidden = torch.cat((inputs, hidden), dim=1)
        hidden = (hidden @ field.trunk[at].weight.t() + field.trunk[at].bias).clamp_min(0)
    view = torch.cat((field.remap(hidden), encode(direction, 2), app), dim=1)
    colour, density, _ = field(point, direction, shape, app)
    torch.testing.assert_close(density, field.density(hidden))
    torch.testing.assert_close(colour, field.colour(field.view(view).clamp_min(0)))


def test_a_seed_determines_the_field_and_does_not_change_the_callers_random_state() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, other = Field(TINY, seed=3), Field(TINY, seed=4)
    assert torch.rand(1).equal(expected)
    again = Field(TINY, seed=3)
    assert all(a.equal(b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not one.density.weight.equal(other.density.weight)


@pytest.mark.parametrize(
    ("points", "directions", "images"), [(7, 7, 2), (8, 3, 2), (8, 1, 2), (8, 0, 2), (8, 8, 0)]
)
def test_points_that_do_not_divide_evenly_among_images_and_rays_are_refused(
    points: int, directions: int, images: int
) -> None:
    with pytest.raises(BadInput):
        Field(TINY)(
            torch.zeros(points, 3), torch.zeros(directions, 3), torch.zeros(images, 8), torch.zeros(images, 8)
        )
