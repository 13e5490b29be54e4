"""The surroundings of every point: compared with all pairs and finer meshes, and the growth of the work."""

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
def test_statistics_of_sparse_points_match_all_pairs(
    count: int, block: int, near: int, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    points, weights = sphere(count)
    points = points * torch.tensor([1.0, 3.0, 0.5]) + 50  # far from the origin, with three widths
    assert count == 1 or float(torch.pdist(points).min()) > 3**0.5 * RADIUS / CELLS
    monkeypatch.setattr(surroundings, "_CPU_BLOCK", block)
    monkeypatch.setattr(surroundings, "_CPU_NEAR", near)
    point_weights = weights * torch.rand(count, dtype=torch.float64) if weighted else None
    values = own_statistics(points, radius=RADIUS, weights=point_weights)
    assert torch.allclose(values, by_pairs(points, point_weights), rtol=1e-7, atol=1e-7)


def test_single_precision_gives_single_precision() -> None:
    points, weights = (values.float() for values in sphere(600))
    values = own_statistics(points, radius=RADIUS, weights=weights)
    assert values.dtype is torch.float32
    assert torch.allclose(values, by_pairs(points, weights), atol=1e-6)


def test_statistics_of_a_mesh_finer_than_the_cells_are_accurate() -> None:
    points, weights = (values[:10_000] for values in sphere(60_000))  # a cap of the sphere
    sources, some = merge_cells(points / RADIUS, weights), points[::100]
    assert len(sources) < 0.9 * len(points)
    assert float(sources[:, 0].sum()) == pytest.approx(float(weights.sum()))
    values = departure(own_statistics(points, radius=RADIUS, weights=weights)[::100])
    edges = radius_edges(some, points, RADIUS)
    truth = departure(statistics(some, points, edges, radius=RADIUS, weights=weights, fading=True))
    assert float((values - truth).abs().max()) < 4e-3 and float((values - truth).abs().mean()) < 5e-4


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


def test_sums_with_normals_match_all_pairs_and_do_not_change_the_others() -> None:
    points, weights = sphere(1500)
    normals = torch.randn(1500, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = own_statistics(points + 50, radius=RADIUS, weights=weights, normals=normals)
    plain = own_statistics(points + 50, radius=RADIUS, weights=weights)
    # Not bit for bit: a matrix product with more columns may add in another order.
    assert torch.allclose(values[:, :9], plain, rtol=1e-9, atol=1e-11)
    assert torch.allclose(
        values[:, 9:], with_normals(points, normals, weights, torch.arange(1500)), atol=1e-9
    )


def test_sums_with_normals_of_a_mesh_finer_than_the_cells_are_close_to_all_pairs() -> None:
    points, weights = (values[:10_000] for values in sphere(60_000))
    some = torch.arange(0, 10_000, 100)
    values = own_statistics(points, radius=RADIUS, weights=weights, normals=points)[some, 9:]
    assert float((values - with_normals(points, points, weights, some)).abs().max()) < 1e-3


def test_the_turning_of_a_sphere_matches_the_closed_form() -> None:
    # With s = (distance / radius)^2 areas are even in s, so that a sum of f is the integral of 3 (1 - s)^2
    # f(s) over 0 to 1.
    points, weights = sphere(20_000)
    wind = torch.tensor([[0.6, -0.3, 0.8]], dtype=torch.float64).expand_as(points)
    sums = own_statistics(points, radius=RADIUS, weights=weights, normals=points)[:, None, 9:]
    sizes = (2.5, 2.5, 10, 10, 30, 30, 30, 30)
    parts = (
        part[::50] / size for part, size in zip(turning_inputs(sums, points, [wind]), sizes, strict=True)
    )
    away, facing, total, across, aside, induced, through, along = parts
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
        (induced, facet * u + normal * (wind[::50] - u)),
        (through, normal * (wind[::50] * n).sum(1, keepdim=True)),
        (along, facet * u.square().sum(1, keepdim=True)),
    ):
        assert float((part - truth).abs().max()) < 5e-4
    assert sum(part.shape[1] for part in turning_inputs(sums, points, [wind])) == turning_columns(1)


def test_a_plane_has_no_turning_and_rotation_does_not_change_it() -> None:
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


def test_points_at_one_place_are_one_source() -> None:
    points = torch.full((300, 3), 2.0)
    values = own_statistics(points, radius=RADIUS)
    assert len(merge_cells(points.double(), torch.ones(300, dtype=torch.float64))) == 1
    assert values[0].tolist() == pytest.approx([900, 0, 0, 0, 0, 0, 0, 0, 0], abs=1e-5)


def test_points_without_weight_add_nothing() -> None:
    points, weights = sphere(500)
    weights[::2] = 0
    assert torch.allclose(
        own_statistics(points, radius=RADIUS, weights=weights), by_pairs(points, weights), atol=1e-7
    )
    assert not own_statistics(points, radius=RADIUS, weights=torch.zeros(500)).any()


def test_moments_about_another_origin_match_those_of_shifted_points() -> None:
    torch.manual_seed(0)
    places, weights = (
        torch.rand(40, 3, dtype=torch.float64) / (2 * CELLS),
        torch.rand(40, dtype=torch.float64),
    )
    origin = torch.tensor([0.1, -0.7, 0.3], dtype=torch.float64)
    offsets = places - origin
    truth = torch.cat([torch.ones(40, 1), offsets, offsets * offsets, offsets * offsets[:, [1, 2, 0]]], dim=1)
    assert torch.allclose(shift_moments(merge_cells(places, weights), origin)[0], weights @ truth.double())


def test_points_that_are_adjacent_in_the_order_are_close() -> None:
    torch.manual_seed(0)
    places = torch.rand(5_000, 3)
    order = block_order(places, 100)
    assert order.sort().values.tolist() == list(range(5_000))
    widths = torch.stack([places[part].amax(0) - places[part].amin(0) for part in order.split(100)])
    assert float(widths.prod(1).mean()) < 1.5 * 100 / 5_000  # a run has about its share of the cube


@pytest.mark.gpu
@pytest.mark.parametrize("count", [3_000, 40_000])
def test_results_on_a_gpu_match_those_on_the_cpu(count: int) -> None:
    points, weights = sphere(count)
    truth = own_statistics(points, radius=RADIUS, weights=weights)
    values = own_statistics(points.cuda(), radius=RADIUS, weights=weights.cuda())
    assert torch.allclose(values.cpu(), truth, rtol=1e-7, atol=1e-7)
