"""Holes of a graph counted by hand, and the radius that fixes them tried out."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.kit import Edges, Lattice, coverage, lattice_edges, least_radius, radius_for, require_radius

LATTICE = Lattice((5, 4, 3), (0.0, 0.0, 0.0), (1.0, 1.2, 0.8))


def cloud(count: int = 300, seed: int = 0, *, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Any:
    return torch.rand(count, 3, generator=torch.Generator().manual_seed(seed), dtype=dtype) * scale


def edges_of(pairs: list[tuple[int, int]], *, points: int, tokens: int) -> Edges:
    """(point, token) pairs as edges into tokens."""
    return Edges.from_index(torch.tensor(pairs).T.reshape(2, -1), queries=tokens, sources=points)


def test_holes_and_degrees_are_those_counted_by_hand() -> None:
    pairs = [(0, 0), (1, 0), (2, 0), (5, 0), (0, 2), (0, 3)]
    into_tokens = edges_of(pairs, points=6, tokens=5)
    found = coverage(into_tokens)
    assert (found.points, found.tokens, found.edges) == (6, 5, 6)
    assert (found.uncovered, found.uncovered_first) == (2, (3, 4))
    assert (found.empty_tokens, found.empty_share) == (2, 0.4)
    assert (found.of_points.median, found.of_points.most) == (1.0, 3)
    assert found.of_points.bins == ((0, 0, 2), (1, 1, 3), (2, 3, 1))
    assert found.of_tokens.bins == ((0, 0, 2), (1, 1, 2), (2, 3, 0), (4, 7, 1))
    assert coverage(into_tokens, into_tokens.transpose()) == found


def test_bins_hold_every_row_once() -> None:
    into_tokens, into_points = lattice_edges(cloud(), LATTICE, 0.6)
    found = coverage(into_tokens, into_points)
    degrees = into_points.degrees()
    for low, high, rows in found.of_points.bins:
        assert rows == int(((degrees >= low) & (degrees <= high)).sum())
    assert sum(rows for *_, rows in found.of_tokens.bins) == LATTICE.count


def test_the_summary_fits_a_screen() -> None:
    text = coverage(*lattice_edges(cloud(scale=2.0), LATTICE, 0.4)).text()
    assert max(map(len, text.splitlines())) <= 80 and len(text.splitlines()) <= 24
    assert "300 points, 60 tokens" in text and "uncovered points" in text


def test_directions_of_two_graphs_are_refused() -> None:
    into_tokens, _ = lattice_edges(cloud(), LATTICE, 0.4)
    with pytest.raises(BadInput, match="300 points"):
        coverage(into_tokens, into_tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.8, 3.0])  # inside the lattice, and mostly outside
@pytest.mark.parametrize("seed", range(4))
def test_the_least_radius_covers_and_nothing_less_does(seed: int, scale: float, dtype: torch.dtype) -> None:
    points = cloud(100, seed, scale=scale, dtype=dtype)
    radius = least_radius(points, LATTICE)
    assert coverage(*lattice_edges(points, LATTICE, radius)).uncovered == 0
    require_radius(points, LATTICE, radius)
    less = float(
        torch.nextafter(torch.tensor(radius * (1 - 1e-6), dtype=dtype), torch.tensor(0.0, dtype=dtype))
    )
    assert coverage(*lattice_edges(points, LATTICE, less)).uncovered >= 1
    truth = torch.cdist(points.double(), LATTICE.points().double()).min(1).values.max()
    assert radius == pytest.approx(float(truth), rel=1e-5)


def test_points_on_the_tokens_need_hardly_any_radius() -> None:
    radius = least_radius(LATTICE.points(), LATTICE)
    assert 0 < radius < 1e-30
    assert radius_for(LATTICE.points(), Lattice((1, 1, 1), (0.0,) * 3, (1.0,) * 3)) > 0


def test_half_the_diagonal_of_a_cell_covers_its_middle() -> None:
    middle = torch.tensor([[step / 2 for step in LATTICE.spacing]], dtype=torch.float64)
    assert least_radius(middle, LATTICE) == pytest.approx(LATTICE.half_diagonal)
    assert Lattice((3, 1), (0.0, 0.0), (1.0, 5.0)).half_diagonal == 0.25


def test_the_advised_radius_covers_with_about_the_edges_asked_for() -> None:
    lattice = Lattice((16,) * 3, (-1.0,) * 3, (1.0,) * 3)
    points = cloud(2000) - 0.5
    for wanted in (8, 30):
        into_tokens, into_points = lattice_edges(
            points, lattice, radius_for(points, lattice, edges_per_point=wanted)
        )
        assert coverage(into_tokens, into_points).uncovered == 0
        assert into_points.count / len(points) == pytest.approx(wanted, rel=0.1)
    sparse = radius_for(points, lattice, edges_per_point=0.5)
    assert coverage(*lattice_edges(points, lattice, sparse)).uncovered == 0


def number_in(text: str) -> float:
    found = re.search(r"radius to (?:about )?([0-9.e-]+)", text)
    assert found, text
    return float(found[1].rstrip("."))


@pytest.mark.parametrize("scale", [0.8, 3.0])
def test_a_radius_that_leaves_holes_is_refused_and_the_hint_covers(scale: float) -> None:
    points = cloud(scale=scale)
    graph = lattice_edges(points, LATTICE, 0.1)
    holes = int((graph[1].degrees() == 0).sum())
    with pytest.raises(BadInput, match=f"{holes} of 300 points have no token") as early:
        require_radius(points, LATTICE, 0.1)
    with pytest.raises(BadInput, match=f"{holes} of 300 points have no token") as late:
        coverage(*graph).require_covered(points, LATTICE)
    for caught in (early, late):
        radius = number_in(caught.value.hint)
        coverage(*lattice_edges(points, LATTICE, radius)).require_covered()
    assert ("outside" in early.value.hint) == (scale > 1)
    with pytest.raises(BadInput, match="no token") as blind:
        coverage(*graph).require_covered()
    assert "least_radius" in blind.value.hint


def test_a_radius_larger_than_the_domain_is_refused_with_its_edges() -> None:
    points = cloud(scale=0.8)
    with pytest.raises(BadInput, match="300 x 60 = 18,000 edges") as early:
        require_radius(points, LATTICE, 5.0)
    with pytest.raises(BadInput, match="300 x 60 = 18,000 edges"):
        coverage(*lattice_edges(points, LATTICE, 5.0)).require_covered(points, LATTICE)
    with pytest.raises(BadInput, match="Every token is connected to every point"):
        coverage(*lattice_edges(points, LATTICE, 5.0)).require_covered()
    require_radius(points, LATTICE, number_in(early.value.hint))


def test_the_refusal_of_a_large_radius_begins_exactly_where_every_pair_is_near() -> None:
    points = cloud(40, scale=0.8, dtype=torch.float64)
    furthest = float(torch.cdist(points, LATTICE.points(dtype=torch.float64)).max())
    require_radius(points, LATTICE, furthest * 0.999)
    with pytest.raises(BadInput, match="Every token"):
        require_radius(points, LATTICE, furthest * 1.001)


@pytest.mark.parametrize(
    ("points", "radius", "what"),
    [
        (torch.zeros(0, 3), 0.1, "no points"),
        (torch.full((2, 3), float("nan")), 0.1, "not finite"),
        (torch.rand(4, 2), 0.1, "shape"),
        (torch.rand(4, 3), 0.0, "radius is 0"),
        (torch.rand(4, 3), float("inf"), "radius is inf"),
    ],
)
def test_bad_input_is_refused(points: Any, radius: float, what: str) -> None:
    with pytest.raises(BadInput, match=what) as caught:
        require_radius(points, LATTICE, radius)
    assert caught.value.hint
