"""Neighbours within a radius, held against looking at every pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.kit import Edges, Lattice, lattice_edges, lattice_edges_multi, radius_edges
from pinchpoint.kit.edges import neighbours

DTYPES = [torch.float32, torch.float64]


def every_pair(x: Any, y: Any, radius: float) -> Edges:
    squares = torch.zeros((), dtype=x.dtype)
    for axis in range(x.shape[1]):
        squares = squares + (x[:, None, axis] - y[None, :, axis]) ** 2
    rows, sources = (squares <= torch.tensor(radius, dtype=x.dtype) ** 2).nonzero(as_tuple=True)
    return Edges.from_index(torch.stack([sources, rows]), queries=len(x), sources=len(y))


def same(a: Edges, b: Edges) -> bool:
    return (
        torch.equal(a.offsets, b.offsets)
        and torch.equal(a.sources, b.sources)
        and a.source_count == b.source_count
    )


def surface(count: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(count, 3))
    return torch.from_numpy(points / np.linalg.norm(points, axis=1, keepdims=True) * [0.9, 0.5, 0.4]).float()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_CPU_BLOCK", 100)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [1, 2, 3, 4])
@pytest.mark.parametrize("radius", [1e-9, 0.02, 0.2, 5.0])
def test_the_cells_find_every_neighbour_and_no_other(dims: int, radius: float, dtype: Any) -> None:
    torch.manual_seed(dims)
    x, y = torch.rand(211, dims, dtype=dtype), torch.rand(307, dims, dtype=dtype) * 1.3 - 0.1
    assert same(radius_edges(x, y, radius), every_pair(x, y, radius))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("radius", [0.1, 0.3, 0.5])
def test_points_at_exactly_the_radius_are_neighbours(radius: float, dtype: Any) -> None:
    """A grid of steps of a tenth has pairs at the radius, and at every place of a cell."""
    x = torch.stack(torch.meshgrid(*[torch.arange(9, dtype=dtype) * 0.1] * 3, indexing="ij"), -1).reshape(
        -1, 3
    )
    assert same(radius_edges(x, x, radius), every_pair(x, x, radius))
    at = torch.tensor([[0.0, 0.0, 0.0], [radius, 0.0, 0.0], [0.0, 0.0, -radius]], dtype=dtype)
    assert radius_edges(at[:1], at, radius).sources.tolist() == [0, 1, 2]
    lattice = Lattice((3, 3, 3), (-radius,) * 3, (radius,) * 3)
    assert lattice_edges(at[:1], lattice, radius)[1].count == 7  # the middle and its six neighbours


@pytest.mark.parametrize("offset", [0.0, 1000.0, -30000.0])
def test_far_from_the_origin_rounding_loses_no_neighbour(offset: float) -> None:
    torch.manual_seed(1)
    x, y = torch.rand(150, 3) + offset, torch.rand(180, 3) + offset
    assert same(radius_edges(x, y, 0.11), every_pair(x, y, 0.11))
    lattice = Lattice((6, 9, 5), (offset,) * 3, (offset + 1.0,) * 3)
    assert same(lattice_edges(x, lattice, 0.25)[1], every_pair(x, lattice.points(), 0.25))


def test_a_stray_point_far_away_costs_no_neighbour() -> None:
    x = torch.cat([torch.rand(100, 3), torch.tensor([[1e12, -1e9, 3e10]])])
    assert same(radius_edges(x, x, 0.2), every_pair(x, x, 0.2))
    lattice = Lattice((5, 5, 5), (0.0,) * 3, (1.0,) * 3)
    assert same(lattice_edges(x, lattice, 0.2)[1], every_pair(x, lattice.points(), 0.2))


def test_many_points_in_one_place_are_all_neighbours() -> None:
    """No cap: a place where thousands meet keeps them all."""
    x = torch.zeros(3, 3)
    y = torch.cat([torch.full((5000, 3), 0.01), torch.ones(10, 3)])
    assert radius_edges(x, y, 0.1).degrees().tolist() == [5000] * 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(9, 7, 5), (4, 1, 6), (1, 1, 1), (11, 3), (13,), (3, 2, 4, 3)])
@pytest.mark.parametrize("radius", [1e-3, 0.21, 0.25, 0.9, 7.0])
def test_a_lattice_is_counted_both_ways(shape: tuple[int, ...], radius: float, dtype: Any) -> None:
    """Axes of different spacing, points outside, points twice, points on the lattice."""
    torch.manual_seed(0)
    dims = len(shape)
    lattice = Lattice(shape, low=(-0.5, -0.4, -0.1, 0.0)[:dims], high=(0.5, 0.6, 0.4, 0.2)[:dims])
    tokens = lattice.points(dtype=dtype)
    points = torch.rand(97, dims, dtype=dtype) * 1.6 - 0.8
    points = torch.cat([points, points[:20], tokens[:9], tokens[:1] + radius])
    into_lattice, into_points = lattice_edges(points, lattice, radius)
    assert same(into_points, every_pair(points, tokens, radius))
    assert same(into_lattice, every_pair(tokens, points, radius))


@pytest.mark.usefixtures("small_blocks")
def test_work_in_many_blocks_gives_the_same_edges() -> None:
    x, y = surface(120), surface(90, seed=1)
    lattice = Lattice((6, 5, 4), (-1.0,) * 3, (1.0,) * 3)
    assert same(radius_edges(x, y, 0.4), every_pair(x, y, 0.4))
    into_lattice, into_points = lattice_edges(x, lattice, 0.6)
    assert same(into_points, every_pair(x, lattice.points(), 0.6))
    assert same(into_lattice, every_pair(lattice.points(), x, 0.6))


@pytest.mark.parametrize("radii", [[0.3, 0.1, 0.5], [0.2, 0.2], [0.4], [1e-6, 0.7]])
def test_several_radii_at_once_equal_one_at_a_time(radii: list[float]) -> None:
    lattice = Lattice((8, 6, 5), (-1.0, -0.6, -0.5), (1.0, 0.6, 0.5))
    points = surface(2000)
    together = lattice_edges_multi(points, lattice, radii)
    for (tokens, back), radius in zip(together, radii, strict=True):
        alone_tokens, alone_back = lattice_edges(points, lattice, radius)
        assert same(tokens, alone_tokens) and same(back, alone_back)


def test_points_that_need_gradients_give_plain_edges() -> None:
    points = surface(50).requires_grad_()
    assert same(radius_edges(points, points, 0.3), radius_edges(points.detach(), points.detach(), 0.3))
    assert lattice_edges(points, Lattice((4, 4, 4), (-1.0,) * 3, (1.0,) * 3), 0.5)[0].count > 0


def test_no_queries_or_sources_have_no_edges() -> None:
    assert radius_edges(torch.zeros(0, 3), torch.rand(5, 3), 0.1).count == 0
    assert radius_edges(torch.rand(5, 3), torch.zeros(0, 3), 0.1).offsets.tolist() == [0] * 6


@pytest.mark.parametrize(
    ("x", "radius", "what"),
    [
        (torch.tensor([[0.0, float("nan"), 0.0], [0.0] * 3]), 0.1, "1 of 2 points are not finite"),
        (torch.full((2, 3), float("inf")), 0.1, "2 of 2 points are not finite"),
        (torch.rand(2, 3), 0.0, "radius is 0"),
        (torch.rand(2, 3), -1.0, "radius is -1"),
        (torch.rand(2, 3), float("inf"), "radius is inf"),
        (torch.rand(2, 3), float("nan"), "radius is nan"),
        (torch.rand(2, 2), 0.1, "shape"),
        (torch.rand(3), 0.1, "shape"),
        (torch.zeros(2, 3, dtype=torch.int64), 0.1, "`points` is torch.int64"),
        (torch.zeros(2, 3, dtype=torch.float16), 0.1, "`points` is torch.float16"),
        (torch.zeros(1, 1).expand(2**31, 3), 0.1, "2,147,483,648 points"),
    ],
)
def test_bad_points_and_radii_are_refused(x: Any, radius: float, what: str) -> None:
    with pytest.raises(BadInput, match=what) as caught:
        radius_edges(x, torch.rand(4, 3), radius)
    assert caught.value.hint
    with pytest.raises(BadInput, match=what):
        lattice_edges(x, Lattice((4, 4, 4), (0.0,) * 3, (1.0,) * 3), radius)


def test_a_body_without_points_no_radius_and_two_dtypes_are_refused() -> None:
    lattice = Lattice((4, 4, 4), (0.0,) * 3, (1.0,) * 3)
    with pytest.raises(BadInput, match="no points"):
        lattice_edges(torch.zeros(0, 3), lattice, 0.1)
    with pytest.raises(BadInput, match="list of radii is empty"):
        lattice_edges_multi(torch.rand(2, 3), lattice, [])
    with pytest.raises(BadInput, match="float64"):
        radius_edges(torch.rand(2, 3), torch.rand(2, 3, dtype=torch.float64), 0.1)


@pytest.mark.parametrize(
    ("shape", "low", "high", "what"),
    [
        ((4, 4), (0.0, 0.0), (1.0, 0.0), "Axis 1 of the lattice goes from 0 to 0"),
        ((4, 4), (0.0, 0.0), (-1.0, 1.0), "Axis 0 of the lattice goes from 0 to -1"),
        ((1, 4), (0.0, 0.0), (-1.0, 1.0), "Axis 0"),
        ((4,), (0.0,), (float("nan"),), "Axis 0"),
        ((4, 0), (0.0, 0.0), (1.0, 1.0), "shape"),
        ((4, 4, 4), (0.0, 0.0), (1.0, 1.0), "3 counts, 2 low"),
        ((), (), (), "0 counts"),
        ((2048, 2048, 2048), (0.0,) * 3, (1.0,) * 3, "8,589,934,592 points"),
    ],
)
def test_an_invalid_lattice_is_refused(shape: Any, low: Any, high: Any, what: str) -> None:
    with pytest.raises(BadInput, match=what) as caught:
        Lattice(shape, low, high)
    assert caught.value.hint


def test_a_lattice_with_a_single_plane_may_be_flat() -> None:
    assert Lattice((3, 1), (0.0, 2.0), (1.0, 2.0)).points().tolist() == [[0.0, 2.0], [0.5, 2.0], [1.0, 2.0]]


@pytest.mark.parametrize("spacings", [0.78, 1.93])  # about 2 and 30 edges per point
def test_lattice_edges_compare_at_most_five_pairs_for_each_edge(
    spacings: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    lattice, points = Lattice((16,) * 3, (-1.0,) * 3, (1.0,) * 3), surface(5_000)
    pairs = []
    measure = neighbours._Windows.measure

    def count(self: Any, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        squares, tokens = measure(self, points)
        pairs.append(squares.numel())
        return squares, tokens

    monkeypatch.setattr(neighbours._Windows, "measure", count)
    into_tokens, _ = lattice_edges(points, lattice, spacings * lattice.spacing[0])
    assert into_tokens.count <= sum(pairs) <= 5 * into_tokens.count


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_gives_the_same_edges(dtype: Any) -> None:
    lattice, points = Lattice((16, 9, 12), (-1.0,) * 3, (1.0,) * 3), surface(20_000).to(dtype)
    here = lattice_edges_multi(points, lattice, [0.1, 0.3])
    there = lattice_edges_multi(points.cuda(), lattice, [0.1, 0.3])
    for both, others in zip(here, there, strict=True):
        assert all(same(a, b.to("cpu")) for a, b in zip(both, others, strict=True))
    assert same(
        radius_edges(points, points[:5000], 0.03),
        radius_edges(points.cuda(), points[:5000].cuda(), 0.03).to("cpu"),
    )


@pytest.mark.parametrize(
    "index", [torch.tensor([[0.5, 1.0], [0.0, 1.0]]), torch.ones(2, 2, dtype=torch.bool)]
)
def test_an_index_that_is_not_of_integers_is_refused(index: Any) -> None:
    with pytest.raises(BadInput, match="index is torch") as caught:
        Edges.from_index(index, queries=2, sources=2)
    assert "index.long()" in caught.value.hint


def test_a_forecast_knows_the_edges_of_points_on_a_gpu() -> None:
    """A block has more pairs than one write or, in the fake run, one read used to follow."""
    from pinchpoint.backends.torch.data_dependent.operations import Dynamic
    from pinchpoint.backends.torch.fake.session import Device, simulate_device

    torch.manual_seed(0)
    x = torch.rand(12_000, 3)
    for radius in (0.1, 0.19):
        truth = radius_edges(x, x, radius)
        mib = 2**20
        card = Device("NVIDIA H200", 143155 * mib, (9, 0), 32 * mib, mib, 132)
        with simulate_device(card, dynamic=Dynamic()):
            edges = radius_edges(x.to("cuda"), x.to("cuda"), radius)
            assert len(edges) == len(truth)
            assert (edges.starts == truth.starts).all()
