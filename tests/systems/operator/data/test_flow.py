"""Flow over bodies: the closed form on a sphere; no drag, symmetry and conservation on cars."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="the operator needs torch")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.operator.data import cars  # noqa: E402
from pinchpoint.systems.operator.data.cars import car_mesh, draw_car  # noqa: E402
from pinchpoint.systems.operator.data.flow import LIMITS, Quality, faults, gmres, onset, solve_flow  # noqa: E402
from pinchpoint.systems.operator.data.surface import Mesh, facets  # noqa: E402
from pinchpoint.systems.operator.data.triangulation import Counts, counts_for, triangulation  # noqa: E402

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def icosphere(halvings):
    """An icosahedron whose triangles are divided in four `halvings` times, with all corners on the unit
    sphere.
    """
    golden = (1 + math.sqrt(5)) / 2
    corners = [(0, a, b * golden) for a in (-1, 1) for b in (-1, 1)]
    vertices = torch.tensor([c[k:] + c[:k] for c in corners for k in range(3)], dtype=torch.float64)
    vertices = torch.nn.functional.normalize(vertices, dim=1)
    near = torch.cdist(vertices, vertices)
    edge = near[near > 0].min() * 1.01
    faces = torch.tensor(
        [
            (i, j, k)
            for i in range(12)
            for j in range(i)
            for k in range(j)
            if max(near[i, j], near[j, k], near[i, k]) < edge
        ]
    )
    for _ in range(halvings):
        ends = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]).sort(dim=1).values
        edges, back = torch.unique(ends, dim=0, return_inverse=True)
        ab, bc, ca = (back + len(vertices)).chunk(3)
        vertices = torch.cat([vertices, torch.nn.functional.normalize(vertices[edges].mean(dim=1), dim=1)])
        a, b, c = faces.unbind(dim=1)
        faces = torch.cat(
            [torch.stack(t, dim=1) for t in ((a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca))]
        )
    inward = (facets(Mesh(vertices, faces)).normals * vertices[faces[:, 0]]).sum(dim=1) < 0
    return Mesh(vertices, torch.where(inward[:, None], faces.flip(1), faces))


def relative_error_of_the_sphere(mesh, **options):
    """RMS over the surface of Cp - (1 - 9/4 sin^2 theta), relative to that of the closed form."""
    solution = solve_flow(mesh, ground=False, **options)
    shape = facets(mesh)
    along = torch.nn.functional.normalize(shape.centroids, dim=1) @ onset(options.get("yaw_deg", 0.0))
    truth = 1 - 9 / 4 * (1 - along.square())
    return math.sqrt(
        float(((solution.cp.cpu() - truth).square() @ shape.areas) / (truth.square() @ shape.areas))
    )


@pytest.mark.parametrize(("halvings", "panels", "bar"), [(2, 320, 0.019), (3, 1280, 0.006), (4, 5120, 0.002)])
def test_the_pressure_on_a_sphere_matches_the_closed_form(halvings, panels, bar):
    mesh = icosphere(halvings)
    assert len(mesh.faces) == panels
    assert relative_error_of_the_sphere(mesh) < bar


def test_the_triangulation_of_the_bodies_is_nearly_as_accurate_on_a_sphere():
    surface = triangulation(counts_for(1280, length=math.pi, girth=2 * math.pi))
    polar, turn = math.pi * surface.along, 2 * math.pi * surface.around
    at = torch.stack(
        [-torch.cos(polar), torch.sin(polar) * torch.sin(turn), -torch.sin(polar) * torch.cos(turn)], dim=1
    )
    assert relative_error_of_the_sphere(Mesh(at, surface.faces)) < 0.01
    assert relative_error_of_the_sphere(Mesh(at, surface.faces), yaw_deg=35.0) < 0.01


def test_a_car_four_times_as_fine_has_nearly_the_same_pressure(monkeypatch):
    car = draw_car(0, 900_000)
    meshes = []
    # Each panel of the first mesh is divided in four in the second, one of them at its middle.
    for times in (1, 2):
        monkeypatch.setattr(
            cars, "counts_for", lambda *_, times=times, **__: Counts(6, 3 * times, 12 * times)
        )
        meshes.append(car_mesh(car, 0))
    coarse, fine = (facets(mesh) for mesh in meshes)
    assert len(fine.areas) == 4 * len(coarse.areas)
    middle = torch.cdist(coarse.centroids, fine.centroids).argmin(dim=1)
    cp, truth = (solve_flow(mesh, yaw_deg=car.yaw_deg).cp for mesh in meshes)
    apart = (cp - truth[middle]).abs() @ coarse.areas / (truth[middle].abs() @ coarse.areas)
    assert apart < 0.06  # with plain panels of constant strength it is 0.099


def test_flow_is_faster_in_the_gap_between_a_sphere_and_the_ground():
    ball = icosphere(3)
    cp = solve_flow(Mesh(ball.vertices + torch.tensor([0.0, 0.0, 1.2]), ball.faces)).cp
    height = facets(ball).normals[:, 2]
    assert cp[height < -0.98].mean() < cp[height > 0.98].mean() - 0.5
    assert cp[height > 0.98].mean() < -1.25  # the flow above is faster than without the ground too


@pytest.mark.parametrize("number", [0, 1])
def test_a_car_has_no_drag_no_net_source_and_no_flow_through_it(number):
    car = draw_car(0, number)
    coarse, fine = (solve_flow(car_mesh(car, panels), yaw_deg=car.yaw_deg).quality for panels in (500, 2000))
    assert abs(fine.drag) < 0.002 and fine.net_source < 1e-9 and fine.residual < 1e-9
    assert fine.leak < 0.6 * coarse.leak < 0.01  # finer panels are more accurate
    assert faults(fine) == []


def test_the_flow_over_a_car_without_yaw_is_symmetric():
    mesh = car_mesh(draw_car(0, 3), 800)
    centroids = facets(mesh).centroids
    mirror = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    partner = torch.cdist(centroids, centroids * mirror).argmin(dim=1)
    straight, askew = solve_flow(mesh), solve_flow(mesh, yaw_deg=8.0)
    assert torch.allclose(straight.cp, straight.cp[partner], atol=1e-9)
    assert (askew.cp - askew.cp[partner]).abs().max() > 0.1
    # With the opposite yaw, the flow is the mirror image.
    assert torch.allclose(askew.cp, solve_flow(mesh, yaw_deg=-8.0).cp[partner], atol=1e-9)


def test_gmres_finds_the_same_solution_as_elimination():
    rng = torch.Generator().manual_seed(2)
    matrix = torch.eye(300, dtype=torch.float64) + 0.05 * torch.randn(
        300, 300, generator=rng, dtype=torch.float64
    )
    rhs = torch.randn(300, generator=rng, dtype=torch.float64)
    truth = torch.linalg.solve(matrix, rhs)
    assert (gmres(matrix, rhs, most=300) - truth).norm() < 1e-7 * truth.norm()
    assert torch.equal(gmres(matrix, torch.zeros_like(rhs)), torch.zeros_like(rhs))
    assert gmres(torch.eye(5, dtype=torch.float64), rhs[:5]).tolist() == pytest.approx(rhs[:5].tolist())


def test_a_solution_beyond_a_limit_is_marked_with_that_limit():
    good = Quality(net_source=1e-12, drag=-0.01, residual=1e-12, leak=0.01, lowest_cp=-1.0)
    assert faults(good) == []
    quality = Quality(net_source=1.0, drag=-1.0, residual=1.0, leak=float("nan"), lowest_cp=-100.0)
    assert [text.split()[0] for text in faults(quality)] == [
        "net_source",
        "drag",
        "residual",
        "leak",
        "lowest_cp",
    ]
    assert str(LIMITS.drag) in faults(quality)[1]


def test_a_body_that_reaches_into_the_ground_is_refused():
    with pytest.raises(BadInput, match="reaches into the ground"):
        solve_flow(icosphere(1))


@pytest.mark.gpu
@gpu
def test_the_flow_on_a_gpu_matches_that_on_the_cpu():
    mesh = car_mesh(draw_car(0, 0), 2000)
    assert torch.allclose(solve_flow(mesh).cp, solve_flow(mesh, device="cuda").cp.cpu(), atol=1e-8)
