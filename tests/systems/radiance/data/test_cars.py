"""Procedural cars: drawn by number, inside the unit sphere, with lower bounds on the distance."""

from __future__ import annotations

import colorsys
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="cars are torch's")

from pinchpoint.systems.radiance.data.cars import (  # noqa: E402
    BODIES,
    RANGES,
    V_RANGE,
    body_of,
    distance,
    draw_car,
    shapes_of,
)

CARS = [draw_car(3, number)[0] for number in range(24)]
VARIED = [draw_car(3, number, body=body_of(number))[0] for number in range(40)]


def points(count: int, reach: float, seed: int = 0) -> Any:
    return (2 * torch.rand(count, 3, generator=torch.Generator().manual_seed(seed)) - 1) * reach


def each(cars: list[Any], at: Any) -> tuple[Any, Any]:
    """Distances of every point (P, 3) to the body and wheels of every car: (C, P) each."""
    which = torch.arange(len(cars)).repeat_interleave(len(at))
    body, wheel = distance(shapes_of(cars).take(which), *at.repeat(len(cars), 1).unbind(dim=1))
    return body.view(len(cars), -1), wheel.view(len(cars), -1)


def test_a_number_determines_one_car_whose_factors_are_within_their_ranges() -> None:
    assert draw_car(3, 7) == draw_car(3, 7)
    assert draw_car(3, 7) != draw_car(4, 7) != draw_car(3, 8)
    for number in range(200):
        car, pose = draw_car(1, number)
        assert all(low <= getattr(car, name) <= high for name, (low, high) in RANGES.items())
        assert 0 <= pose.u < 1 and V_RANGE[0] <= pose.v <= V_RANGE[1]


def test_every_car_lies_inside_the_unit_sphere() -> None:
    at = torch.nn.functional.normalize(points(4000, 1.0), dim=1)
    body, wheel = each([*CARS, *VARIED], at)
    assert min(body.min(), wheel.min()) > 0


def test_body_types_differ_in_the_height_of_bonnet_roof_and_rear() -> None:
    """Heights at the nose, behind the centre and at the tail, as fractions of the height of the car."""
    assert [body_of(number) for number in range(5)] == [*BODIES, next(iter(BODIES))]
    up = torch.linspace(-1, 1, 201)
    profiles: dict[str, list[float]] = {}
    for name in BODIES:
        cars = [draw_car(3, number, body=name)[0] for number in range(6)]
        shapes = shapes_of(cars)
        rows = []
        for along in (0.66, -0.3, -0.66):
            x = (along * shapes.x_half).repeat_interleave(len(up))
            which = torch.arange(len(cars)).repeat_interleave(len(up))
            body, _ = distance(shapes.take(which), x, torch.zeros_like(x), up.repeat(len(cars)))
            top = torch.where(body.view(len(cars), -1) < 0, up, -1.0).amax(dim=1)
            rows.append(((top + shapes.top) / (2 * shapes.top)).mean())
        profiles[name] = [float(row) for row in rows]
    nose, _, tail = zip(*profiles.values(), strict=True)
    assert {name for name in BODIES if profiles[name][2] < 0.75} == {"saloon", "pickup"}, profiles
    assert profiles["van"][0] > 1.1 * sorted(nose)[-2] and profiles["van"][2] == max(tail), profiles
    assert profiles["pickup"][1] < 0.8 < profiles["saloon"][1], profiles


def test_the_distance_never_changes_faster_than_the_position() -> None:
    """Otherwise a ray could step through a surface."""
    one = points(6000, 0.9)
    two = one + points(6000, 0.01, seed=1)
    steps = (one - two).norm(dim=1)
    for before, after in zip(each(CARS, one), each(CARS, two), strict=True):
        assert ((before - after).abs() / steps).max() < 1.01


def test_a_car_has_four_wheels_on_the_ground_or_none() -> None:
    shapes = shapes_of(CARS)
    for along in (-1, 1):
        for side in (-1, 1):
            at = along * shapes.base, side * (shapes.y_half - 0.05), shapes.wheel - shapes.top
            assert torch.allclose(distance(shapes, *at)[1], torch.full_like(shapes.base, -0.042), atol=2e-3)
            below = at[0], at[1], -shapes.top
            assert torch.allclose(distance(shapes, *below)[1], torch.zeros_like(shapes.base), atol=1e-6)
    bare = shapes_of([replace(car, wheels=False) for car in CARS])
    assert distance(bare, bare.base, bare.y_half - 0.05, bare.wheel - bare.top)[1].min() > 1
    # Where a wheel and its arch were, the hull is closed.
    in_arch = shapes.base, shapes.y_half - 0.05, (shapes.bottom + shapes.belt) / 2 - 0.02
    assert distance(shapes, *in_arch)[0].min() > 0 > distance(bare, *in_arch)[0].max()


def test_the_paint_is_the_hue_saturation_and_value_of_the_factors() -> None:
    shapes = shapes_of(CARS)
    expected = torch.tensor([colorsys.hsv_to_rgb(car.hue, car.saturation, car.value) for car in CARS])
    assert torch.allclose(torch.stack([shapes.red, shapes.green, shapes.blue], dim=1), expected, atol=1e-6)
