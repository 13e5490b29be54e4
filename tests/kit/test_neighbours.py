"""Neighbours within a radius, held against looking at every pair."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.kit import Edges, Lattice, lattice_edges, radius_edges


def every_pair(x: Any, y: Any, radius: float) -> Edges:
    near = (x[:, None, :] - y[None, :, :]).square().sum(-1) <= radius**2
    rows, sources = near.nonzero(as_tuple=True)
    return Edges.of_index(torch.stack([sources, rows]), queries=len(x), sources=len(y))


def same(a: Edges, b: Edges) -> bool:
    return torch.equal(a.offsets, b.offsets) and torch.equal(a.sources, b.sources) and a.source_count == b.source_count


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("radius", [0.02, 0.2, 5.0])
def test_the_grid_finds_every_neighbour_and_no_other(dims: int, radius: float) -> None:
    torch.manual_seed(dims)
    x, y = torch.rand(211, dims), torch.rand(307, dims) * 1.3 - 0.1
    assert same(radius_edges(x, y, radius), every_pair(x, y, radius))


def test_many_points_in_one_place_are_all_neighbours() -> None:
    """No cap: a place where thousands meet keeps them all."""
    x = torch.zeros(3, 3)
    y = torch.cat([torch.full((5000, 3), 0.01), torch.ones(10, 3)])
    assert radius_edges(x, y, 0.1).degrees().tolist() == [5000] * 3


@pytest.mark.parametrize("shape", [(9, 7, 5), (4, 1, 6), (11, 3)])
@pytest.mark.parametrize("radius", [0.05, 0.21, 0.9])
def test_a_lattice_is_counted_both_ways(shape: tuple[int, ...], radius: float) -> None:
    torch.manual_seed(0)
    lattice = Lattice(shape, low=(-0.5,) * len(shape), high=(0.5,) * len(shape))
    points = torch.rand(157, len(shape)) * 1.2 - 0.6
    tokens = lattice.points()
    into_lattice, into_points = lattice_edges(points, lattice, radius)
    assert same(into_points, every_pair(points, tokens, radius))
    assert same(into_lattice, every_pair(tokens, points, radius))


def test_no_points_have_no_edges() -> None:
    assert radius_edges(torch.zeros(0, 3), torch.rand(5, 3), 0.1).count == 0
    assert radius_edges(torch.rand(5, 3), torch.zeros(0, 3), 0.1).offsets.tolist() == [0] * 6


@pytest.mark.parametrize(
    ("x", "radius", "what"),
    [
        (torch.full((2, 3), float("nan")), 0.1, "not finite"),
        (torch.rand(2, 3), 0.0, "a radius of 0"),
        (torch.rand(2, 2), 0.1, "shapes"),
    ],
)
def test_bad_points_and_radii_are_refused(x: Any, radius: float, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        radius_edges(x, torch.rand(4, 3), radius)
