"""Harmonic fields: the potential of charges outside a deformed ball, known in closed form at any resolution.

The task is the Neumann-to-Dirichlet map of the ball's surface: from the normal and the derivative of the
potential along it (the flux), at every point, to the potential there. The flux determines a harmonic function
inside up to a constant, so the potential's mean over the surface is subtracted and the answer is unique. The
map is linear in the flux, non-local, and depends on the shape, which is what a geometry-aware operator is
for. Values on panels are exact up to rounding: only the mean depends on the resolution, with an error
proportional to the square of the panel size.

Letters: P points (centroids of the panels), N charges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pinchpoint.systems.operator.data.surface import Mesh, facets
from pinchpoint.systems.operator.data.triangulation import counts_for, triangulation

_BUMPS = 5
_CHARGES = 6
_SHARPNESS = 4.0  # a bump falls to 1/e within 41 degrees
_BUMP = (-0.2, 0.35)
_MOST = 0.45  # the radius stays within 1 +- this
_NEAREST, _FARTHEST = 0.4, 2.0  # distance of a charge from the surface, in radii
FLUX_LIMIT = 0.01


@dataclass(frozen=True)
class Ball:
    """A deformed ball with a radius of about 1, and the charges around it; NumPy float64."""

    towards: np.ndarray  # (5, 3) unit directions of the bumps
    heights: np.ndarray  # (5,) of the bumps
    places: np.ndarray  # (N, 3) of the charges, all outside the ball
    strengths: np.ndarray  # (N,)


def draw_ball(seed: int, number: int) -> Ball:
    """The ball with this number, the same on every machine and for every resolution."""
    rng = np.random.default_rng(
        [seed, number, 1]
    )  # the 1 makes the numbers independent of those of cars with the same seed
    towards = _directions(rng, _BUMPS)
    heights = rng.uniform(*_BUMP, size=_BUMPS)
    above = rng.uniform(_NEAREST, _FARTHEST, size=_CHARGES)
    ways = _directions(rng, _CHARGES)
    distance = _radius(torch.from_numpy(ways), towards, heights).numpy() + above
    # Far charges are stronger, so that each contributes a field of about the same size on the surface.
    strengths = rng.standard_normal(_CHARGES) * above**2
    return Ball(towards, heights, ways * distance[:, None], strengths)


def largest_box() -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Low and high corner of a box that contains every ball that can be drawn."""
    most = 1 + _MOST
    return (-most, -most, -most), (most, most, most)


def ball_mesh(ball: Ball, panels: int) -> Mesh:
    """The ball's surface with about `panels` triangles (within a few per cent)."""
    mesh = triangulation(counts_for(panels, length=math.pi, girth=2 * math.pi))
    polar, turn = math.pi * mesh.along, 2 * math.pi * mesh.around
    ways = torch.stack(
        [-torch.cos(polar), torch.sin(polar) * torch.sin(turn), -torch.sin(polar) * torch.cos(turn)], dim=1
    )
    return Mesh(ways * _radius(ways, ball.towards, ball.heights)[:, None], mesh.faces)


def potential(ball: Ball, points: Tensor) -> tuple[Tensor, Tensor]:
    """Exact potential (P,) and gradient (P, 3) at points (P, 3) inside the ball or on its surface."""
    apart = points[:, None, :] - torch.from_numpy(ball.places)
    distance = torch.linalg.vector_norm(apart, dim=2)
    each = torch.from_numpy(ball.strengths) / distance
    return each.sum(dim=1), -(each / distance.square())[:, :, None].mul(apart).sum(dim=1)


def surface_fields(ball: Ball, mesh: Mesh) -> tuple[Tensor, Tensor, float]:
    """Potential minus its mean (P,) and flux (P,) at the centroids, and the relative net flux (exactly 0)."""
    shape = facets(mesh)
    value, gradient = potential(ball, shape.centroids)
    flux = (gradient * shape.normals).sum(dim=1)
    mean = (value @ shape.areas) / shape.areas.sum()
    net = float((flux @ shape.areas).abs() / (flux.abs() @ shape.areas))
    return value - mean, flux, net


def _directions(rng: np.random.Generator, count: int) -> np.ndarray:
    vectors = rng.standard_normal((count, 3))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _radius(ways: Tensor, towards: np.ndarray, heights: np.ndarray) -> Tensor:
    closeness = ways @ torch.from_numpy(towards).T
    bumps = torch.exp(_SHARPNESS * (closeness - 1)) @ torch.from_numpy(heights)
    return 1 + _MOST * torch.tanh(bumps / _MOST)
