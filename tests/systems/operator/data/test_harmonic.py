"""Harmonic fields: the closed form, its identities, and the fields stored in a dataset."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the operator needs torch")

from pinchpoint.systems.operator.data.harmonic import (  # noqa: E402
    FLUX_LIMIT,
    ball_mesh,
    draw_ball,
    potential,
    surface_fields,
)
from pinchpoint.systems.operator.data.surface import facets  # noqa: E402


def test_the_potential_is_the_sum_over_the_charges():
    ball = draw_ball(0, 0)
    point = np.array([0.2, -0.1, 0.3])
    by_hand = sum(
        q / np.linalg.norm(point - place) for q, place in zip(ball.strengths, ball.places, strict=True)
    )
    assert float(potential(ball, torch.from_numpy(point)[None])[0][0]) == pytest.approx(by_hand)


def test_the_gradient_matches_finite_differences_and_the_potential_is_harmonic():
    ball = draw_ball(1, 3)
    at = torch.tensor([[0.1, 0.2, -0.3]], dtype=torch.float64)
    step = 1e-4
    value, gradient = potential(ball, at)
    second = 0.0
    for axis in range(3):
        push = torch.zeros(1, 3, dtype=torch.float64)
        push[0, axis] = step
        ahead, behind = (potential(ball, at + way * push)[0] for way in (1, -1))
        assert float(gradient[0, axis]) == pytest.approx(
            float((ahead - behind) / (2 * step)), rel=1e-5, abs=1e-7
        )
        second += float((ahead - 2 * value + behind) / step**2)
    assert abs(second) < 1e-5


def test_charges_lie_outside_the_ball():
    for number in range(20):
        ball = draw_ball(0, number)
        mesh = ball_mesh(ball, 500)
        for place in torch.from_numpy(ball.places):
            assert (mesh.vertices - place).norm(dim=1).min() > 0.2


def test_the_net_flux_falls_with_the_panel_size_and_the_mean_is_subtracted():
    for number in range(5):
        ball = draw_ball(0, number)
        net = {}
        for panels in (500, 2000, 8000):
            mesh = ball_mesh(ball, panels)
            value, _, net[panels] = surface_fields(ball, mesh)
            assert abs(float(value @ facets(mesh).areas)) < 1e-10
        assert net[8000] < FLUX_LIMIT / 10
        assert net[8000] < net[500] / 4 + 1e-4


def test_flux_and_shape_determine_the_potential():
    """Green's third identity gives the potential inside from potential and flux on the surface."""
    ball = draw_ball(4, 1)
    mesh = ball_mesh(ball, 8000)
    shape = facets(mesh)
    value, flux, _ = surface_fields(ball, mesh)
    inside = torch.tensor([[0.1, 0.0, -0.1], [0.0, 0.2, 0.1]], dtype=torch.float64)
    apart = inside[:, None] - shape.centroids
    distance = apart.norm(dim=2)
    double = (apart * shape.normals).sum(dim=2) / distance**3
    reconstruction = ((flux / distance - value * double) @ shape.areas) / (4 * np.pi)
    truth = (
        potential(ball, inside)[0] - (potential(ball, shape.centroids)[0] @ shape.areas) / shape.areas.sum()
    )
    assert reconstruction.tolist() == pytest.approx(truth.tolist(), abs=0.01 * float(value.abs().max()))
