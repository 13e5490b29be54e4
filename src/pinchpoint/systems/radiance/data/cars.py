"""Procedural cars: a signed distance and a colour for every point, from factors drawn by (seed, number).

A rounded hull with a bonnet that slopes towards the nose, a cabin between four raked planes, wheel arches cut
out of the hull and four wheels in them; windows, lamps, a grille and a dark sill are colours. z is up, the
nose points to +x, and every car lies inside the unit sphere around the origin. Letters: C cars, R rays (or
points); every tensor of a `Shapes` is (C,) or (R,).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

GENERATOR = 1  # increased whenever the picture of a (seed, number) changes
# Range of the pose's v: from straight above to 6 degrees over the horizon, uniform by solid angle.
V_RANGE = (
    0.0,
    0.45,
)

# Factors are drawn uniformly from these ranges. Lengths are in units of the sphere around the car; x_half and
# y_half are half sizes.
RANGES = {
    "hue": (0.0, 1.0),
    "saturation": (0.62, 0.95),
    "value": (0.6, 0.95),
    "x_half": (0.74, 0.88),
    "y_half": (0.33, 0.39),
    "height": (0.52, 0.64),  # roof above the ground
    "belt": (0.54, 0.6),  # height of the hull relative to the roof
    "clearance": (0.07, 0.11),
    "wheel": (0.39, 0.44),  # radius, relative to the height of the hull's top above the ground
    "cabin_at": (-0.16, 0.0),  # its centre, in x_half
    "cabin_half": (0.52, 0.62),  # its half length at the belt, in x_half
    "windscreen": (0.14, 0.26),  # length of the front rake
    "backlight": (0.06, 0.24),  # length of the rear rake, short for a hatchback
    "bonnet": (0.03, 0.12),  # its slope
    "tumblehome": (0.03, 0.075),  # half width lost between belt and roof
}

# Body types: ranges that replace those above. They differ in where the cabin begins and ends.
BODIES: dict[str, dict[str, tuple[float, float]]] = {
    "hatchback": {
        "x_half": (0.7, 0.78),
        "cabin_at": (-0.3, -0.26),
        "cabin_half": (0.6, 0.64),
        "backlight": (0.06, 0.1),
    },
    "saloon": {
        "x_half": (0.82, 0.88),
        "height": (0.5, 0.56),
        "cabin_at": (-0.08, -0.02),
        "cabin_half": (0.46, 0.52),
        "backlight": (0.16, 0.22),
    },
    "van": {
        "x_half": (0.76, 0.82),
        "y_half": (0.33, 0.37),
        "height": (0.66, 0.72),
        "belt": (0.5, 0.54),
        "cabin_at": (-0.12, -0.08),
        "cabin_half": (0.82, 0.86),
        "windscreen": (0.14, 0.18),
        "backlight": (0.02, 0.04),
    },
    "pickup": {
        "x_half": (0.82, 0.88),
        "cabin_at": (0.12, 0.18),
        "cabin_half": (0.3, 0.34),
        "windscreen": (0.14, 0.18),
        "backlight": (0.02, 0.05),
    },
}

_NOSE = 0.15  # radius of the hull's corners seen from above
_EDGE = 0.05  # radius of the other edges
_BLEND = 0.03  # width of the seam between hull and cabin
_TYRE = 0.06  # half width of a wheel


@dataclass(frozen=True)
class Car:
    """The factors of one car; see RANGES."""

    hue: float
    saturation: float
    value: float
    x_half: float
    y_half: float
    height: float
    belt: float
    clearance: float
    wheel: float
    cabin_at: float
    cabin_half: float
    windscreen: float
    backlight: float
    bonnet: float
    tumblehome: float
    wheels: bool = True  # if False, the hull is closed in place of the wheels


@dataclass(frozen=True)
class Pose:
    """Camera pose: azimuth 2 pi u, sine of the elevation 1 - 2 v."""

    u: float
    v: float


def draw_car(seed: int, number: int, *, body: str | None = None) -> tuple[Car, Pose]:
    """Draw the car and pose with this number, the same on every machine and for every picture size.

    body: one of BODIES; None: any car between hatchback and saloon, as RANGES has it.
    """
    rng = np.random.default_rng([seed, number])
    ranges = RANGES if body is None else RANGES | BODIES[body]
    car = Car(**{name: float(rng.uniform(low, high)) for name, (low, high) in ranges.items()}, wheels=True)
    return car, Pose(float(rng.uniform()), float(rng.uniform(*V_RANGE)))


def body_of(number: int) -> str:
    """The body type of a car in a set with body types: each one in turn."""
    return tuple(BODIES)[number % len(BODIES)]


class Shapes(NamedTuple):
    """Parameters of cars for `distance`; each tensor is (C,), or (R,) after `take`."""

    red: Tensor
    green: Tensor
    blue: Tensor
    x_half: Tensor
    y_half: Tensor
    top: Tensor  # z of the roof; the ground is at -top
    belt: Tensor  # z of the hull's top
    bottom: Tensor  # z of the hull's floor
    wheel: Tensor
    base: Tensor  # x distance of the wheels from x = 0
    wheel_offset: Tensor  # 0, or far away for a car without wheels
    front: Tensor  # x where the windscreen meets the belt
    front_x: Tensor  # its normal
    front_z: Tensor
    rear: Tensor
    rear_x: Tensor
    rear_z: Tensor
    side_y: Tensor  # normal of the side windows
    side_z: Tensor
    bonnet_x: Tensor  # normal of the bonnet
    bonnet_z: Tensor

    def take(self, index: Tensor) -> Shapes:
        return Shapes(*(values[index] for values in self))


def shapes_of(cars: list[Car], *, device: str | torch.device = "cpu") -> Shapes:
    """Tensors of these cars, (C,) each."""
    factors = {
        name: np.array([row[name] for row in map(asdict, cars)], dtype=np.float64)
        for name in (*RANGES, "wheels")
    }
    top = factors["height"] / 2
    belt = factors["height"] * factors["belt"] - top
    rise = top - belt
    middle, half = factors["cabin_at"] * factors["x_half"], factors["cabin_half"] * factors["x_half"]
    front, rear = np.hypot(rise, factors["windscreen"]), np.hypot(rise, factors["backlight"])
    side, hood = np.hypot(rise, factors["tumblehome"]), np.hypot(1.0, factors["bonnet"])
    red, green, blue = _rgb(factors["hue"], factors["saturation"], factors["value"])
    columns = {
        "red": red,
        "green": green,
        "blue": blue,
        "x_half": factors["x_half"],
        "y_half": factors["y_half"],
        "top": top,
        "belt": belt,
        "bottom": factors["clearance"] - top,
        "wheel": factors["wheel"] * (belt + top),
        "base": 0.62 * factors["x_half"],
        "wheel_offset": np.where(factors["wheels"] > 0, 0.0, 10.0),
        "front": middle + half,
        "front_x": rise / front,
        "front_z": factors["windscreen"] / front,
        "rear": middle - half,
        "rear_x": rise / rear,
        "rear_z": factors["backlight"] / rear,
        "side_y": rise / side,
        "side_z": factors["tumblehome"] / side,
        "bonnet_x": factors["bonnet"] / hood,
        "bonnet_z": 1.0 / hood,
    }
    return Shapes(
        **{name: torch.tensor(values, dtype=torch.float32, device=device) for name, values in columns.items()}
    )


def half_box(shapes: Shapes) -> tuple[Tensor, Tensor, Tensor]:
    """Half sizes of a box around the origin that contains the car."""
    out = _BLEND / 4  # how far hull and cabin bulge where they meet
    return shapes.x_half + out, shapes.y_half + out, shapes.top + out


def distance(shapes: Shapes, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Lower bounds on distances (R,) from points to the body and the nearest wheel; negative inside."""
    side = y.abs()
    hull = _hull(shapes, x, side, z)
    cabin = _cabin(shapes, x, side, z)
    body = _smooth_min(hull, cabin, _BLEND)
    along = x.abs() - shapes.base
    radial = torch.sqrt(along.square() + (z + shapes.top - shapes.wheel).square())
    arch = torch.maximum(radial - 1.16 * shapes.wheel, shapes.y_half - 2.6 * _TYRE - side)
    arch = torch.maximum(arch, z - shapes.belt + 0.06) + shapes.wheel_offset  # below the wings
    body = torch.maximum(body, -arch)
    tyre = (side - shapes.y_half + 0.008 + _TYRE).abs() - _TYRE
    return body, _round_edge(radial - shapes.wheel, tyre, 0.02) + shapes.wheel_offset


def colours(shapes: Shapes, at: Tensor, normal: Tensor, wheel: Tensor) -> tuple[Tensor, Tensor]:
    """Albedo (R, 3) of surface points and how much each reflects the sky, (R,).

    at, normal: (R, 3); wheel: (R,) True on a wheel.
    """
    x, y, z = at.unbind(dim=1)
    side, facing = y.abs(), normal[:, 0]
    ahead, behind = _windscreen(shapes, x, z), _backlight(shapes, x, z)
    high = (z > shapes.belt + 0.025) & (z < shapes.top - 0.035)
    half = shapes.y_half - 0.03 - (z - shapes.belt) * shapes.side_z / shapes.side_y
    pillar = (x - (shapes.front + shapes.rear) / 2).abs() > 0.022
    doors = (normal[:, 1].abs() > 0.6) & (ahead < -0.055) & (behind < -0.055) & pillar
    ends = (normal[:, 1].abs() < 0.6) & (side < half - 0.04) & (torch.maximum(ahead, behind) > -0.045)
    glass = high & (doors | ends)
    rise = (z - shapes.bottom) / (shapes.belt - shapes.bottom)
    corner = (facing.abs() > 0.35) & (side > 0.52 * shapes.y_half) & (x.abs() > 0.84 * shapes.x_half)
    lamp = corner & (rise > 0.42) & (rise < 0.74)
    grille = (
        (facing > 0.6)
        & (side < 0.42 * shapes.y_half)
        & (rise > 0.25)
        & (rise < 0.62)
        & (x > 0.5 * shapes.x_half)
    )
    sill = rise < 0.16
    radial = torch.sqrt((x.abs() - shapes.base).square() + (z + shapes.top - shapes.wheel).square())
    arch = (
        (radial < 1.2 * shapes.wheel)
        & (side < shapes.y_half - 0.012)
        & (normal[:, 1].abs() < 0.9)
        & (shapes.wheel_offset == 0)
    )
    hub = wheel & (radial < 0.55 * shapes.wheel)

    albedo = torch.stack([shapes.red, shapes.green, shapes.blue], dim=1)
    mirror = torch.full_like(x, 0.25)
    dark = sill | grille | (arch & (z < shapes.belt - 0.04))
    for mask, colour, shine in (
        (dark, (0.12, 0.12, 0.13), 0.05),
        (lamp & (x > 0), (1.0, 0.95, 0.72), 0.2),
        (lamp & (x < 0), (0.72, 0.04, 0.05), 0.2),
        (glass, (0.13, 0.17, 0.22), 0.55),
        (wheel, (0.07, 0.07, 0.075), 0.03),
        (hub, (0.66, 0.67, 0.7), 0.2),
    ):
        albedo = torch.where(mask[:, None], albedo.new_tensor(colour), albedo)
        mirror = torch.where(mask, shine, mirror)
    return albedo, mirror


def _hull(shapes: Shapes, x: Tensor, side: Tensor, z: Tensor) -> Tensor:
    plan = _round_edge(x.abs() - shapes.x_half, side - shapes.y_half, _NOSE)
    deep = (z - (shapes.belt + shapes.bottom) / 2).abs() - (shapes.belt - shapes.bottom) / 2
    box = _round_edge(plan, deep, _EDGE)
    bonnet = (x - shapes.front + 0.05) * shapes.bonnet_x + (z - shapes.belt) * shapes.bonnet_z
    return _smooth_max(box, bonnet, 0.03)


def _cabin(shapes: Shapes, x: Tensor, side: Tensor, z: Tensor) -> Tensor:
    """Distance to the cabin between windscreen, backlight, sides and roof.

    The planes are not at right angles, so the combined distance may be too large; the factor 0.7 makes it a
    lower bound.
    """
    ends = torch.maximum(_windscreen(shapes, x, z), _backlight(shapes, x, z))
    walls = (side - shapes.y_half + 0.03) * shapes.side_y + (z - shapes.belt) * shapes.side_z
    cabin = _round_edge(_round_edge(ends, walls, 0.06), z - shapes.top, 0.05)
    return 0.7 * torch.maximum(cabin, shapes.bottom + 0.1 - z)


def _windscreen(shapes: Shapes, x: Tensor, z: Tensor) -> Tensor:
    return (x - shapes.front) * shapes.front_x + (z - shapes.belt) * shapes.front_z


def _backlight(shapes: Shapes, x: Tensor, z: Tensor) -> Tensor:
    return (shapes.rear - x) * shapes.rear_x + (z - shapes.belt) * shapes.rear_z


def _round_edge(a: Tensor, b: Tensor, radius: float) -> Tensor:
    """Distance to the region where both a and b are negative, with a rounded edge."""
    a, b = a + radius, b + radius
    outside = torch.sqrt(a.clamp_min(0).square() + b.clamp_min(0).square())
    return outside + torch.maximum(a, b).clamp_max(0) - radius


def _smooth_min(a: Tensor, b: Tensor, width: float) -> Tensor:
    """Smooth minimum: never above the minimum, and below it by at most a quarter of the width."""
    near = (1 - (a - b).abs() / width).clamp_min(0)
    return torch.minimum(a, b) - near.square() * (width / 4)


def _smooth_max(a: Tensor, b: Tensor, width: float) -> Tensor:
    return -_smooth_min(-a, -b, width)


def _rgb(
    hue: np.ndarray, saturation: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """RGB from hue, saturation and value, each in [0, 1]."""

    def channel(shift: float) -> np.ndarray:
        place = np.mod(shift + 6.0 * hue, 6.0)
        return value * (1 - saturation * np.clip(np.minimum(place, 4.0 - place), 0.0, 1.0))

    return channel(5.0), channel(3.0), channel(1.0)
