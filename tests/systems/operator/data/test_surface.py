"""Triangulation, cars and balls: closed, well shaped, symmetric, and independent of the resolution."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest

torch = pytest.importorskip("torch", reason="the operator needs torch")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.operator.data import cars  # noqa: E402
from pinchpoint.systems.operator.data.cars import Car, car_mesh, draw_car, largest_box  # noqa: E402
from pinchpoint.systems.operator.data.harmonic import ball_mesh, draw_ball  # noqa: E402
from pinchpoint.systems.operator.data.harmonic import largest_box as largest_ball_box  # noqa: E402
from pinchpoint.systems.operator.data.surface import (  # noqa: E402
    Mesh,
    edges_of,
    facets,
    mirror_partners,
    neighbours,
    smooth,
    smooth_normals,
    volume,
)
from pinchpoint.systems.operator.data.triangulation import Counts, counts_for, triangulation  # noqa: E402
from pinchpoint.systems.operator.files.meshes import check_mesh, outward  # noqa: E402

CUBE = Mesh(
    torch.tensor(
        [[x, y, z] for x in (0.0, 2.0) for y in (0.0, 2.0) for z in (0.0, 2.0)], dtype=torch.float64
    ),
    torch.tensor(
        [
            [0, 1, 3],
            [0, 3, 2],
            [4, 6, 7],
            [4, 7, 5],
            [0, 4, 5],
            [0, 5, 1],
            [2, 3, 7],
            [2, 7, 6],
            [0, 2, 6],
            [0, 6, 4],
            [1, 5, 7],
            [1, 7, 3],
        ]
    ),
)


def smallest_angle_deg(mesh):
    corner = mesh.vertices[mesh.faces]
    one, other = corner.roll(-1, 1) - corner, corner.roll(1, 1) - corner
    cosine = (one * other).sum(2) / (one.norm(dim=2) * other.norm(dim=2))
    return float(torch.rad2deg(torch.acos(cosine)).min())


def test_the_faces_of_a_cube_have_its_areas_normals_and_volume():
    shape = facets(CUBE)
    assert shape.areas.tolist() == [2.0] * 12
    assert volume(CUBE) == pytest.approx(8.0)
    outwards = torch.nn.functional.normalize(shape.centroids - 1, dim=1)
    assert ((shape.normals * outwards).sum(dim=1) > 0.5).all()
    assert shape.normals.abs().sum(dim=1).tolist() == pytest.approx([1.0] * 12)


@pytest.mark.parametrize("counts", [Counts(5, 1, 0), Counts(6, 3, 4), Counts(7, 2, 6)])
def test_a_triangulation_is_a_closed_surface_with_the_expected_number_of_triangles(counts):
    surface = triangulation(counts)
    assert len(surface.faces) == counts.panels
    # Euler's formula for a sphere: V - E + F = 2 with E = 3F/2.
    assert len(surface.along) == 2 + counts.panels // 2
    assert torch.equal(torch.unique(surface.faces), torch.arange(len(surface.along)))


@pytest.mark.parametrize("panels", [200, 1000, 5000, 20_000])
def test_a_car_has_about_the_requested_number_of_panels_and_none_is_degenerate(panels):
    for number in range(3 if panels == 20_000 else 8):
        mesh = check_mesh(car_mesh(draw_car(11, number), panels))
        assert len(mesh.faces) == pytest.approx(panels, rel=0.05)
        assert outward(mesh)[1] == 0  # all faces already point outward
        assert smallest_angle_deg(mesh) > 12
        areas = facets(mesh).areas
        assert areas.max() < 8 * areas.min()


def test_finer_meshes_of_a_car_converge_to_one_shape():
    car = draw_car(0, 4)
    volumes = [volume(car_mesh(car, panels)) for panels in (1000, 4000, 16_000)]
    # The volume lost to flat panels falls with their area.
    assert volumes[0] < volumes[1] < volumes[2]
    assert (volumes[2] - volumes[1]) / (volumes[1] - volumes[0]) == pytest.approx(0.25, abs=0.08)


def test_a_car_is_its_own_mirror_image():
    centroids = facets(car_mesh(draw_car(5, 2), 1000)).centroids
    images = centroids * torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    apart, partner = torch.cdist(centroids, images, compute_mode="donot_use_mm_for_euclid_dist").min(dim=1)
    assert apart.max() < 1e-12
    assert len(torch.unique(partner)) == len(centroids)


def test_mirror_partners_are_found_for_symmetric_meshes_only():
    mesh = car_mesh(draw_car(5, 2), 1000)
    rounded_mesh = Mesh(mesh.vertices.float().double(), mesh.faces)  # as stored in a body
    partners = mirror_partners(rounded_mesh)
    assert partners is not None
    centroids = facets(rounded_mesh).centroids
    assert torch.allclose(centroids[partners], centroids * torch.tensor([1.0, -1.0, 1.0]), rtol=0, atol=1e-14)
    bent = rounded_mesh.vertices.clone()
    bent[int(bent[:, 1].argmax()), 0] += 1e-9
    assert mirror_partners(Mesh(bent, rounded_mesh.faces)) is None
    assert (
        mirror_partners(Mesh(rounded_mesh.vertices, torch.cat([rounded_mesh.faces, rounded_mesh.faces[:1]])))
        is None
    )
    assert mirror_partners(CUBE) is None  # it lies on one side of the plane


def test_neighbouring_faces_share_an_edge():
    edges = edges_of(car_mesh(draw_car(0, 3), 300).faces)[1]
    beside = neighbours(edges)
    for k in range(3):
        assert (edges[beside[:, k]] == edges[:, k, None]).any(dim=1).all()
        assert (beside[:, k] != torch.arange(len(beside))).all()


def test_smoothing_removes_what_alternates_and_keeps_what_is_smooth():
    faces = torch.tensor([[a, b, c] for a in (0, 3) for b in (1, 4) for c in (2, 5)])  # of an octahedron
    beside = neighbours(edges_of(faces)[1])
    colours = (faces >= 3).sum(dim=1).double() % 2 * 2 - 1  # every neighbour has the other colour
    assert (colours[beside] == -colours[:, None]).all()
    assert torch.allclose(smooth(3 + 0.7 * colours, beside), torch.full((8,), 3.0, dtype=torch.float64))
    mesh = car_mesh(draw_car(0, 3), 5000)
    along = facets(mesh).centroids / 4.5
    assert (smooth(along, neighbours(edges_of(mesh.faces)[1])) - along).abs().mean() < 3e-4


def test_smooth_normals_match_those_of_a_much_finer_mesh(monkeypatch):
    meshes = []
    for times in (
        1,
        4,
    ):  # each face of the first is divided in sixteen in the second, one of them at its middle
        monkeypatch.setattr(
            cars, "counts_for", lambda *_, times=times, **__: Counts(6, 6 * times, 24 * times)
        )
        meshes.append(car_mesh(draw_car(0, 900_000), 0))
    coarse, fine = (facets(mesh) for mesh in meshes)
    middle = torch.cdist(coarse.centroids, fine.centroids).argmin(dim=1)
    truth = smooth_normals(meshes[1], fine.normals)[middle]
    flat, smooth = (
        (normals - truth).norm(dim=1).mean()
        for normals in (coarse.normals, smooth_normals(meshes[0], coarse.normals))
    )
    assert smooth < 0.3 * flat


def test_normals_are_not_smoothed_across_sharp_edges():
    normals = facets(CUBE).normals
    assert torch.allclose(smooth_normals(CUBE, normals), normals)


def test_a_car_has_its_clearance_length_width_and_height_and_fits_into_the_box():
    low, high = (torch.tensor(corner) for corner in largest_box())
    for number in range(10):
        car = draw_car(0, number)
        at = car_mesh(car, 5000).vertices
        assert float(at[:, 2].min()) == pytest.approx(car.clearance, abs=0.01)
        assert float(at[:, 0].max() - at[:, 0].min()) == pytest.approx(car.length)
        assert float(at[:, 1].max() - at[:, 1].min()) == pytest.approx(
            car.width, rel=0.15
        )  # minus the tumblehome
        assert float(at[:, 2].max()) <= car.clearance + car.height + 1e-9
        assert (at >= low - 1e-9).all() and (at <= high + 1e-9).all()


def test_seed_and_number_determine_the_car():
    assert draw_car(3, 7) == draw_car(3, 7)
    others = [draw_car(3, 8), draw_car(4, 7)]
    assert all(
        getattr(draw_car(3, 7), part.name) != getattr(other, part.name)
        for other in others
        for part in fields(Car)
    )


def test_a_ball_fits_into_its_box_and_has_no_degenerate_faces():
    low, high = (torch.tensor(corner) for corner in largest_ball_box())
    for number in range(5):
        mesh = check_mesh(ball_mesh(draw_ball(2, number), 2000))
        assert outward(mesh)[1] == 0
        assert len(mesh.faces) == pytest.approx(2000, rel=0.05)
        assert smallest_angle_deg(mesh) > 12
        assert (mesh.vertices >= low).all() and (mesh.vertices <= high).all()


def test_too_few_panels_are_refused():
    with pytest.raises(BadInput, match="too few for a body"):
        counts_for(10, length=math.pi, girth=2 * math.pi)
