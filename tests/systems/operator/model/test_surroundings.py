"""Every point's own surroundings: all pairs written out, finer meshes, and how the work grows."""

from __future__ import annotations

import math

import pytest
import torch

from pinchpoint.kit import radius_edges
from pinchpoint.systems.operator.model import surroundings
from pinchpoint.systems.operator.model.geometry import departure, statistics, turning_columns, turning_inputs
from pinchpoint.systems.operator.model.surroundings import (
    CELLS,
    block_order,
    merge_cells,
    own_statistics,
    shift_moments,
)

RADIUS = 0.4


def sphere(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(count, 3) evenly over the unit sphere, and (count,) equal areas in units of a disc of RADIUS."""
    index = torch.arange(count, dtype=torch.float64) + 0.5
    z, turn = 1 - 2 * index / count, math.pi * (1 + 5**0.5) * index
    points = torch.stack([(1 - z * z).sqrt() * turn.cos(), (1 - z * z).sqrt() * turn.sin(), z], dim=1)
    return points, torch.full((count,), 4 / count / RADIUS**2, dtype=torch.float64)


def by_pairs(points: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    return statistics(
        points, points, radius_edges(points, points, RADIUS), radius=RADIUS, weights=weights, fading=True
    )


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(
    ("count", "block", "near"), [(1, 128, 1024), (129, 128, 1024), (1000, 7, 33), (2000, 128, 1024)]
)
def test_points_apart_are_read_one_by_one(
    count: int, block: int, near: int, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    points, weights = sphere(count)
    points = points * torch.tensor([1.0, 3.0, 0.5]) + 50  # far from the origin, of three widths
    assert count == 1 or float(torch.pdist(points).min()) > 3**0.5 * RADIUS / CELLS
    monkeypatch.setattr(surroundings, "_CPU_BLOCK", block)
    monkeypatch.setattr(surroundings, "_CPU_NEAR", near)
    given = weights * torch.rand(count, dtype=torch.float64) if weighted else None
    found = own_statistics(points, radius=RADIUS, weights=given)
    assert torch.allclose(found, by_pairs(points, given), rtol=1e-7, atol=1e-7)


def test_single_precision_is_told_in_single_precision() -> None:
    points, weights = (values.float() for values in sphere(600))
    found = own_statistics(points, radius=RADIUS, weights=weights)
    assert found.dtype is torch.float32
    assert torch.allclose(found, by_pairs(points, weights), atol=1e-6)


def test_a_mesh_finer_than_the_cells_is_read_as_if_it_were_not() -> None:
    points, weights = (values[:10_000] for values in sphere(60_000))  # a cap of it
    sources, some = merge_cells(points / RADIUS, weights), points[::100]
    assert len(sources) < 0.9 * len(points)
    assert float(sources[:, 0].sum()) == pytest.approx(float(weights.sum()))
    found = departure(own_statistics(points, radius=RADIUS, weights=weights)[::100])
    edges = radius_edges(some, points, RADIUS)
    truth = departure(statistics(some, points, edges, radius=RADIUS, weights=weights, fading=True))
    assert float((found - truth).abs().max()) < 4e-3 and float((found - truth).abs().mean()) < 5e-4


def test_sources_do_not_grow_with_a_mesh_that_is_finer_than_the_cells() -> None:
    few, many = (
        len(merge_cells(points / RADIUS, weights)) for points, weights in (sphere(150_000), sphere(300_000))
    )
    assert many < 1.1 * few


def with_normals(
    points: torch.Tensor, normals: torch.Tensor, weights: torch.Tensor, some: torch.Tensor
) -> torch.Tensor:
    """(some, 12): the sums of normals and of offset times normal, by all pairs."""
    offset = (points[None] - points[some][:, None]) / RADIUS
    fading = 3 * (1 - offset.square().sum(2)).clamp_min(0).square() * weights
    products = torch.einsum("ij,ija,jb->iab", fading, offset, normals).flatten(1)
    return torch.cat([fading @ normals, products], dim=1)


def test_sums_with_normals_are_those_of_all_pairs_and_leave_the_others_as_they_are() -> None:
    points, weights = sphere(1500)
    normals = torch.randn(1500, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = own_statistics(points + 50, radius=RADIUS, weights=weights, normals=normals)
    plain = own_statistics(points + 50, radius=RADIUS, weights=weights)
    # Not bit for bit: a matrix product with more columns may add in another order.
    assert torch.allclose(found[:, :9], plain, rtol=1e-9, atol=1e-11)
    assert torch.allclose(found[:, 9:], with_normals(points, normals, weights, torch.arange(1500)), atol=1e-9)


def test_sums_with_normals_of_a_mesh_finer_than_the_cells_are_near_those_of_all_pairs() -> None:
    points, weights = (values[:10_000] for values in sphere(60_000))
    some = torch.arange(0, 10_000, 100)
    found = own_statistics(points, radius=RADIUS, weights=weights, normals=points)[some, 9:]
    assert float((found - with_normals(points, points, weights, some)).abs().max()) < 1e-3


def test_how_a_sphere_turns_is_as_in_closed_form() -> None:
    # With s = (distance / radius)^2 areas are even in s, so that a sum of f is the integral of 3 (1 - s)^2
    # f(s) over 0 to 1.
    points, weights = sphere(20_000)
    wind = torch.tensor([[0.6, -0.3, 0.8]], dtype=torch.float64).expand_as(points)
    sums = own_statistics(points, radius=RADIUS, weights=weights, normals=points)[:, None, 9:]
    sizes = (2.5, 2.5, 10, 10, 30, 30, 30, 30)
    parts = (
        part[::50] / size for part, size in zip(turning_inputs(sums, points, [wind]), sizes, strict=True)
    )
    away, facing, total, across, aside, added, through, along = parts
    n, r = points[::50], RADIUS
    u = wind[::50] - (wind[::50] * n).sum(1, keepdim=True) * n
    facet = r / 8 - r**3 / 80  # the response of the sphere to a wind along it
    normal = -r / 8 + r**3 / 40
    for part, truth in (
        (away, -n * r**2 / 8),
        (facing, torch.full_like(facing, -(r**2) / 8)),
        (total, torch.full_like(total, r / 8)),
        (across, torch.full_like(across, normal)),
        (aside, torch.zeros_like(aside)),
        (added, facet * u + normal * (wind[::50] - u)),
        (through, normal * (wind[::50] * n).sum(1, keepdim=True)),
        (along, facet * u.square().sum(1, keepdim=True)),
    ):
        assert float((part - truth).abs().max()) < 5e-4
    assert sum(part.shape[1] for part in turning_inputs(sums, points, [wind])) == turning_columns(1)


def test_a_plane_does_not_turn_and_a_rotated_body_turns_the_same() -> None:
    grid = (
        torch.cartesian_prod(torch.arange(-20.0, 21.0), torch.arange(-20.0, 21.0), torch.zeros(1)).double()
        / 20
    )
    up, wind = (
        torch.tensor([[0.0, 0.0, 1.0]]).double().expand_as(grid),
        torch.randn(1, 3).double().expand_as(grid),
    )
    shares = torch.full((len(grid),), 1 / 400 / math.pi / RADIUS**2, dtype=torch.float64)
    middle = (grid.norm(dim=1) < 0.5).nonzero()[:, 0]
    flat = own_statistics(grid, radius=RADIUS, weights=shares, normals=up)[middle, None, 9:]
    assert all(float(part.abs().max()) < 3e-2 for part in turning_inputs(flat, up[middle], [wind[middle]]))

    points, weights = sphere(2000)
    points = points * torch.tensor([1.5, 1.0, 0.7], dtype=torch.float64)
    normals = torch.nn.functional.normalize(
        points / torch.tensor([1.5, 1.0, 0.7], dtype=torch.float64).square(), dim=1
    )
    wind = wind[:1].expand_as(points)
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    parts = []
    for q in (torch.eye(3, dtype=torch.float64), turn):
        sums = own_statistics(points @ q, radius=RADIUS, weights=weights, normals=normals @ q)[:, None, 9:]
        parts.append(turning_inputs(sums, normals @ q, [wind @ q]))
    for first, second in zip(*parts, strict=True):
        assert torch.allclose(first if first.shape[1] == 1 else first @ turn, second, atol=3e-2)


def test_points_all_in_one_place_are_one_source() -> None:
    points = torch.full((300, 3), 2.0)
    found = own_statistics(points, radius=RADIUS)
    assert len(merge_cells(points.double(), torch.ones(300, dtype=torch.float64))) == 1
    assert found[0].tolist() == pytest.approx([900, 0, 0, 0, 0, 0, 0, 0, 0], abs=1e-5)


def test_points_without_weight_add_nothing() -> None:
    points, weights = sphere(500)
    weights[::2] = 0
    assert torch.allclose(
        own_statistics(points, radius=RADIUS, weights=weights), by_pairs(points, weights), atol=1e-7
    )
    assert not own_statistics(points, radius=RADIUS, weights=torch.zeros(500)).any()


def test_moments_about_another_origin_are_those_of_moved_points() -> None:
    torch.manual_seed(0)
    places, weights = (
        torch.rand(40, 3, dtype=torch.float64) / (2 * CELLS),
        torch.rand(40, dtype=torch.float64),
    )
    origin = torch.tensor([0.1, -0.7, 0.3], dtype=torch.float64)
    moved = places - origin
    truth = torch.cat([torch.ones(40, 1), moved, moved * moved, moved * moved[:, [1, 2, 0]]], dim=1)
    assert torch.allclose(shift_moments(merge_cells(places, weights), origin)[0], weights @ truth.double())


def test_runs_of_the_order_lie_close_together() -> None:
    torch.manual_seed(0)
    places = torch.rand(5_000, 3)
    order = block_order(places, 100)
    assert order.sort().values.tolist() == list(range(5_000))
    widths = torch.stack([places[part].amax(0) - places[part].amin(0) for part in order.split(100)])
    assert float(widths.prod(1).mean()) < 1.5 * 100 / 5_000  # as much of the cube as of the points


@pytest.mark.gpu
@pytest.mark.parametrize("count", [3_000, 40_000])
def test_a_gpu_finds_what_a_cpu_finds(count: int) -> None:
    points, weights = sphere(count)
    wanted = own_statistics(points, radius=RADIUS, weights=weights)
    found = own_statistics(points.cuda(), radius=RADIUS, weights=weights.cuda())
    assert torch.allclose(found.cpu(), wanted, rtol=1e-7, atol=1e-7)
