"""Every point's own surroundings: all pairs written out, finer meshes, and how the work grows."""

from __future__ import annotations

import math

import pytest
import torch

from pinchpoint.kit import radius_edges
from pinchpoint.workloads.operator import surroundings
from pinchpoint.workloads.operator.geometry import departure, statistics
from pinchpoint.workloads.operator.surroundings import CELLS, merged, own_statistics, shifted, together

RADIUS = 0.4


def sphere(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(count, 3) evenly over the unit sphere, and (count,) equal areas in units of a disc of RADIUS."""
    index = torch.arange(count, dtype=torch.float64) + 0.5
    z, turn = 1 - 2 * index / count, math.pi * (1 + 5**0.5) * index
    points = torch.stack([(1 - z * z).sqrt() * turn.cos(), (1 - z * z).sqrt() * turn.sin(), z], dim=1)
    return points, torch.full((count,), 4 / count / RADIUS**2, dtype=torch.float64)


def by_pairs(points: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    return statistics(points, points, radius_edges(points, points, RADIUS), radius=RADIUS, weights=weights, fading=True)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("count", "block", "near"), [(1, 128, 1024), (129, 128, 1024), (1000, 7, 33), (2000, 128, 1024)])
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
    sources, some = merged(points / RADIUS, weights), points[::100]
    assert len(sources) < 0.9 * len(points)
    assert float(sources[:, 0].sum()) == pytest.approx(float(weights.sum()))
    found = departure(own_statistics(points, radius=RADIUS, weights=weights)[::100])
    edges = radius_edges(some, points, RADIUS)
    truth = departure(statistics(some, points, edges, radius=RADIUS, weights=weights, fading=True))
    assert float((found - truth).abs().max()) < 4e-3 and float((found - truth).abs().mean()) < 5e-4


def test_sources_do_not_grow_with_a_mesh_that_is_finer_than_the_cells() -> None:
    few, many = (len(merged(points / RADIUS, weights)) for points, weights in (sphere(150_000), sphere(300_000)))
    assert many < 1.1 * few


def test_points_all_in_one_place_are_one_source() -> None:
    points = torch.full((300, 3), 2.0)
    found = own_statistics(points, radius=RADIUS)
    assert len(merged(points.double(), torch.ones(300, dtype=torch.float64))) == 1
    assert found[0].tolist() == pytest.approx([900, 0, 0, 0, 0, 0, 0, 0, 0], abs=1e-5)


def test_points_without_weight_add_nothing() -> None:
    points, weights = sphere(500)
    weights[::2] = 0
    assert torch.allclose(own_statistics(points, radius=RADIUS, weights=weights), by_pairs(points, weights), atol=1e-7)
    assert not own_statistics(points, radius=RADIUS, weights=torch.zeros(500)).any()


def test_moments_about_another_origin_are_those_of_moved_points() -> None:
    torch.manual_seed(0)
    places, weights = torch.rand(40, 3, dtype=torch.float64) / (2 * CELLS), torch.rand(40, dtype=torch.float64)
    origin = torch.tensor([0.1, -0.7, 0.3], dtype=torch.float64)
    moved = places - origin
    truth = torch.cat([torch.ones(40, 1), moved, moved * moved, moved * moved[:, [1, 2, 0]]], dim=1)
    assert torch.allclose(shifted(merged(places, weights), origin)[0], weights @ truth.double())


def test_runs_of_the_order_lie_close_together() -> None:
    torch.manual_seed(0)
    places = torch.rand(5_000, 3)
    order = together(places, 100)
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
