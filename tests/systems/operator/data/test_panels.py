"""The velocity of a source panel compared with quadrature, and exact identities on closed surfaces."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the operator needs torch")

from pinchpoint.systems.operator.data.cars import car_mesh, draw_car  # noqa: E402
from pinchpoint.systems.operator.data.panels import (  # noqa: E402
    normal_influence,
    panels_of,
    slopes,
    solid_angles,
    surface_velocity,
    velocity,
)
from pinchpoint.systems.operator.data.surface import Mesh  # noqa: E402

TRIANGLE = Mesh(
    torch.tensor([[0.1, -0.2, 0.4], [1.3, 0.1, 0.6], [0.4, 0.9, 0.2]], dtype=torch.float64),
    torch.tensor([[0, 1, 2]]),
)
ONE = torch.ones(1, dtype=torch.float64)


def by_quadrature(mesh, point, order=60, strength=lambda y: 1.0):
    """1/(4 pi) times the integral of strength(y) (x - y) / |x - y|^3, by Gauss points of a square."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    u, v = np.meshgrid((nodes + 1) / 2, (nodes + 1) / 2, indexing="ij")
    weight = np.outer(weights, weights) / 4 * u
    a, b, c = mesh.vertices[mesh.faces[0]].numpy()
    y = a + u[..., None] * (b - a) + (u * v)[..., None] * (c - b)
    apart = np.asarray(point) - y
    weight = weight * strength(y)
    kernel = apart / np.linalg.norm(apart, axis=-1, keepdims=True) ** 3
    double_area = np.linalg.norm(np.cross(b - a, c - a))
    return (kernel * weight[..., None]).sum(axis=(0, 1)) * double_area / (4 * math.pi)


@pytest.mark.parametrize(
    "point",
    [
        (0.5, 0.3, 1.5),
        (0.6, 0.2, 0.1),
        (-2.0, 1.0, 0.3),
        (0.5, 0.2, 0.65),
        (9.0, -7.0, 30.0),
        (2.0, 0.1, 0.7),
    ],
)
def test_the_triangle_formula_matches_the_integral_over_the_triangle(point):
    value = velocity(panels_of(TRIANGLE), ONE, torch.tensor([point], dtype=torch.float64))[0].numpy()
    truth = by_quadrature(TRIANGLE, point)
    assert np.abs(value - truth).max() <= 1e-7 * np.linalg.norm(truth)


@pytest.mark.parametrize(
    "point", [(0.5, 0.3, 1.5), (0.6, 0.2, 0.1), (-2.0, 1.0, 0.3), (0.5, 0.2, 0.65), (2.0, 0.1, 0.7)]
)
def test_the_formula_for_a_linear_strength_matches_the_integral(point):
    panels = panels_of(TRIANGLE)
    slope = torch.linalg.cross(
        panels.normals, torch.tensor([[0.3, -0.8, 1.1]], dtype=torch.float64)
    )  # within the panel
    where = torch.tensor([point], dtype=torch.float64)
    middle, grows = panels.centroids[0].numpy(), slope[0].numpy()
    for ground in (False, True):
        value = velocity(panels, 0.7 * ONE, where, slope=slope, ground=ground)[0].numpy()
        truth = by_quadrature(TRIANGLE, point, strength=lambda y: 0.7 + (y - middle) @ grows)
        if ground:
            below = np.array([1, 1, -1]) * by_quadrature(
                TRIANGLE, np.array([1, 1, -1]) * point, strength=lambda y: 0.7 + (y - middle) @ grows
            )
            truth = truth + below
        assert np.abs(value - truth).max() <= 1e-7 * np.linalg.norm(truth)


def test_slopes_are_the_gradient_of_strengths_along_the_surface():
    panels = panels_of(car_mesh(draw_car(0, 0), 2000))
    way = torch.tensor([0.5, -0.3, 0.8], dtype=torch.float64)
    truth = way - (panels.normals @ way)[:, None] * panels.normals
    value = slopes(panels, panels.centroids @ way)
    assert (value * panels.normals).sum(dim=1).abs().max() < 1e-12
    assert (value - truth).norm(dim=1).median() < 0.02
    assert slopes(panels, torch.full_like(panels.areas, 3.0)).abs().max() < 1e-10


def test_a_symmetric_body_gives_the_same_result_from_one_half():
    panels = panels_of(car_mesh(draw_car(0, 3), 300))
    assert panels.partners is not None
    whole = dataclasses.replace(panels, partners=None)
    strengths = torch.rand(len(panels.faces), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    slope = slopes(panels, strengths)
    for ground in (False, True):
        assert torch.allclose(
            normal_influence(panels, ground=ground),
            normal_influence(whole, ground=ground),
            rtol=0,
            atol=1e-12,
        )
        half, full = (
            surface_velocity(each, strengths, ground=ground, slope=slope) for each in (panels, whole)
        )
        assert torch.allclose(half, full, rtol=0, atol=1e-12)


def test_a_distant_panel_acts_like_a_point_source():
    panels = panels_of(TRIANGLE)
    where = torch.tensor([[300.0, -200.0, 100.0]], dtype=torch.float64)
    apart = where - panels.centroids
    truth = panels.areas * apart / apart.norm() ** 3 / (4 * math.pi)
    assert torch.allclose(velocity(panels, ONE, where), truth, rtol=1e-5, atol=0)


def test_the_solid_angle_is_two_pi_on_one_side_of_a_panel_and_minus_two_pi_on_the_other():
    panels = panels_of(TRIANGLE)
    step = 1e-9 * panels.normals
    above, below = (float(solid_angles(panels, panels.centroids + way * step)[0, 0]) for way in (1, -1))
    assert above == pytest.approx(2 * math.pi, abs=1e-6)
    assert below == pytest.approx(-2 * math.pi, abs=1e-6)
    assert float(normal_influence(panels, ground=False)[0, 0]) == pytest.approx(
        0.5
    )  # at the panel itself the outer side is used


def test_the_solid_angles_of_a_closed_surface_add_up_to_four_pi_inside_and_zero_outside():
    panels = panels_of(car_mesh(draw_car(0, 0), 500))
    middle = panels.vertices.mean(dim=0)
    points = torch.stack([middle, middle + torch.tensor([0.0, 0.0, 5.0], dtype=torch.float64)])
    total = solid_angles(panels, points).sum(dim=0)
    assert total.tolist() == pytest.approx([-4 * math.pi, 0.0], abs=1e-9)


def test_the_matrix_is_the_normal_velocity_for_any_block_size():
    panels = panels_of(car_mesh(draw_car(0, 1), 600))
    rng = torch.Generator().manual_seed(0)
    strengths = torch.rand(len(panels.faces), generator=rng, dtype=torch.float64)
    for ground in (False, True):
        whole = surface_velocity(panels, strengths, ground=ground)
        assert torch.allclose(
            normal_influence(panels, ground=ground) @ strengths,
            (whole * panels.normals).sum(dim=1),
            rtol=0,
            atol=1e-12,
        )


def test_there_is_no_flow_through_the_ground():
    panels = panels_of(car_mesh(draw_car(0, 1), 600))
    strengths = torch.linspace(-1, 1, len(panels.faces), dtype=torch.float64)
    ground = torch.tensor([[0.3, 0.2, 0.0], [-2.0, 1.0, 0.0], [1.7, -0.4, 0.0]], dtype=torch.float64)
    with_image = velocity(panels, strengths, ground, ground=True)
    assert with_image[:, 2].abs().max() < 1e-14
    alone = velocity(panels, strengths, ground)
    assert alone[:, 2].abs().min() > 1e-3
    assert torch.allclose(with_image[:, :2], 2 * alone[:, :2])


def test_the_flux_through_a_sphere_around_the_panels_is_their_total_strength():
    panels = panels_of(TRIANGLE)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    turn = (np.arange(80) + 0.5) * (2 * math.pi / 80)
    cosine, angle = (part.reshape(-1) for part in np.meshgrid(nodes, turn, indexing="ij"))
    sine = np.sqrt(1 - cosine**2)
    ways = torch.from_numpy(np.stack([sine * np.cos(angle), sine * np.sin(angle), cosine], axis=1))
    flow = (velocity(panels, ONE, panels.centroids + 3 * ways) * ways).sum(dim=1).numpy()
    flux = (flow * np.repeat(weights, 80)).sum() * (2 * math.pi / 80) * 9
    assert flux == pytest.approx(float(panels.areas[0]), rel=1e-10)
