"""Car-like bodies: smooth closed surfaces from 15 numbers, drawn from (seed, number), at any resolution.

The body is a rounded box |x|^p + |y|^q + |z|^q = 1, with separate p for nose and tail, which is then
stretched: first the height by a smooth silhouette (bonnet, cabin with two rakes, deck, rising underbody),
then the width by a taper along the length and towards the roof. Each stretch is monotone along its axis, so
the map is one-to-one, and the surface is closed and does not intersect itself. The nose points to -x, z is
up, the ground is z = 0, and y = 0 is a plane of symmetry. Two more numbers, clearance and yaw, describe how
the car stands in the flow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pinchpoint.systems.operator.data.surface import Mesh
from pinchpoint.systems.operator.data.triangulation import counts_for, triangulation


@dataclass(frozen=True)
class Car:
    """A shape and its position in the flow.

    Lengths are in metres; places along the car are in car lengths from its middle.
    """

    length: float
    width: float
    height: float  # height of the body, without the gap below it
    bonnet: float  # height of the nose relative to the roof
    deck: float  # height of the tail relative to the roof
    windscreen: float  # middle of the front rake
    windscreen_run: float  # length along which the front rake rises
    backlight: float  # middle of the rear rake
    backlight_run: float  # length along which the rear rake falls
    nose: float  # exponent p in front of the middle: 2 is a half ellipse, more is blunter
    tail: float  # exponent p behind the middle
    section: float  # exponent q of the cross section
    taper: float  # width lost towards nose and tail
    tumblehome: float  # width lost towards the roof
    diffuser: float  # rise of the underbody at the tail relative to the height
    clearance: float  # metres between ground and body
    yaw_deg: float  # angle between the onset flow and the car's axis


# Drawn uniformly from these ranges; the fields of Car in the same order.
_RANGES = {
    "length": (3.8, 5.0),
    "width": (1.65, 2.0),
    "height": (1.15, 1.5),
    "bonnet": (0.5, 0.7),
    "deck": (0.55, 0.95),
    "windscreen": (-0.26, -0.12),
    "windscreen_run": (0.12, 0.24),
    "backlight": (0.2, 0.36),
    "backlight_run": (0.12, 0.26),
    "nose": (2.4, 3.8),
    "tail": (2.4, 4.2),
    "section": (2.6, 4.0),
    "taper": (0.0, 0.18),
    "tumblehome": (0.05, 0.25),
    "diffuser": (0.0, 0.15),
    "clearance": (0.2, 0.5),
    "yaw_deg": (-12.0, 12.0),
}


def draw_car(seed: int, number: int) -> Car:
    """The car with this number, the same on every machine and for every resolution."""
    rng = np.random.default_rng([seed, number])
    return Car(**{name: float(rng.uniform(low, high)) for name, (low, high) in _RANGES.items()})


def largest_box() -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Low and high corner of a box that contains every car that can be drawn."""
    length, width = _RANGES["length"][1], _RANGES["width"][1]
    top = _RANGES["height"][1] + _RANGES["clearance"][1]
    return (-length / 2, -width / 2, _RANGES["clearance"][0]), (length / 2, width / 2, top)


def car_mesh(car: Car, panels: int) -> Mesh:
    """The car's surface with about `panels` triangles (within a few per cent)."""
    profile, section = _profile(car), _section(car)
    mesh = triangulation(counts_for(panels, length=profile.length, girth=2 * section.length))
    at, turn = profile.angles(mesh.along), section.angles(2 * mesh.around.abs())
    # (cos^(2/p))^p + (sin^(2/q))^q = 1 for all exponents: each point lies on the rounded box to the last
    # digit.
    power = torch.where(at < math.pi / 2, 2 / car.nose, 2 / car.tail)
    x = -torch.cos(at).sign() * torch.cos(at).abs().pow(power)
    reach = torch.sin(at).abs().pow(2 / car.section)
    side = torch.where(mesh.around.abs() == 0.5, 0.0, mesh.around.sign())  # sin(pi) is not exactly 0
    y = side * torch.sin(turn).abs().pow(2 / car.section) * reach
    z = -torch.cos(turn).sign() * torch.cos(turn).abs().pow(2 / car.section) * reach
    return Mesh(_stretch(car, torch.stack([x, y, z], dim=1)), mesh.faces)


@dataclass(frozen=True)
class _Curve:
    """A table of the arc length of a curve over an angle from 0 to pi."""

    angle: np.ndarray
    arc: np.ndarray

    @property
    def length(self) -> float:
        return float(self.arc[-1])

    def angles(self, fraction: Tensor) -> Tensor:
        """The angles at which the arc length reaches these fractions of the total."""
        return torch.from_numpy(np.interp(fraction.numpy() * self.length, self.arc, self.angle))


def _curve(first: Callable[[np.ndarray], np.ndarray], second: Callable[[np.ndarray], np.ndarray]) -> _Curve:
    angle = np.linspace(0.0, math.pi, 4001)
    steps = np.hypot(np.diff(first(angle)), np.diff(second(angle)))
    return _Curve(angle, np.concatenate([[0.0], np.cumsum(steps)]))


def _profile(car: Car) -> _Curve:
    """The middle line of the body from the tip of the nose to that of the tail, with a mean radius for its
    girth.
    """

    def x(angle: np.ndarray) -> np.ndarray:
        power = np.where(angle < math.pi / 2, 2 / car.nose, 2 / car.tail)
        return -np.sign(np.cos(angle)) * np.abs(np.cos(angle)) ** power * (car.length / 2)

    return _curve(
        x, lambda angle: np.abs(np.sin(angle)) ** (2 / car.section) * ((car.width + car.height) / 4)
    )


def _section(car: Car) -> _Curve:
    """Half of the widest section, from the floor along the side to the roof."""
    power = 2 / car.section
    return _curve(
        lambda angle: np.abs(np.sin(angle)) ** power * (car.width / 2),
        lambda angle: np.sign(np.cos(angle)) * np.abs(np.cos(angle)) ** power * (car.height / 2),
    )


def _step(x: Tensor, middle: float, run: float) -> Tensor:
    """A smooth step from 0 to 1, most of it within `run` around `middle`."""
    return 0.5 * (1 + torch.tanh((x - middle) * (2 / run)))


def _stretch(car: Car, box: Tensor) -> Tensor:
    """Map the rounded box (V, 3) within [-1, 1]^3 to the car over the ground."""
    x, y, z = box.unbind(dim=1)
    along = x / 2  # in lengths from the middle
    front = _step(along, car.windscreen, car.windscreen_run)
    back = _step(along, car.backlight, car.backlight_run)
    roof = car.bonnet * (1 - front) + front * (1 - back) + car.deck * back
    floor = car.diffuser * _step(along, 0.4, 0.25)
    up = (1 + z) / 2
    wide = (1 - car.taper * x.square()) * (1 - car.tumblehome * up.square())
    height = floor + up * (roof - floor)
    return torch.stack(
        [along * car.length, y * wide * (car.width / 2), car.clearance + height * car.height], dim=1
    )
