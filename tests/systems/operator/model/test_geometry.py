"""Statistics of surroundings, compared with explicit sums and numpy's eigenvalues."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pinchpoint.kit import radius_edges
from pinchpoint.systems.operator.model.geometry import (
    COLUMNS,
    FLAT,
    departure,
    eigenvalues,
    readable,
    statistics,
)

RADIUS = 0.4


def fibonacci_sphere(count: int) -> torch.Tensor:
    """(count, 3) points evenly over the unit sphere, with equal areas."""
    index = torch.arange(count, dtype=torch.float64) + 0.5
    z, turn = 1 - 2 * index / count, math.pi * (1 + 5**0.5) * index
    return torch.stack([(1 - z * z).sqrt() * turn.cos(), (1 - z * z).sqrt() * turn.sin(), z], dim=1)


def by_hand(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    rows = []
    for place in x:
        offset = (y - place) / RADIUS
        near = (offset**2).sum(1) <= 1
        if not near.any():
            rows.append(np.zeros(COLUMNS))
            continue
        offset, weight = offset[near], weights[near]
        distance = np.sqrt((offset**2).sum(1))
        mean, centroid = np.average(distance, weights=weight), np.average(offset, axis=0, weights=weight)
        spread = np.linalg.eigvalsh(np.cov(offset.T, aweights=weight, bias=True).reshape(3, 3))[::-1]
        variance = np.average((distance - mean) ** 2, weights=weight)
        rows.append(np.concatenate([[weight.sum(), mean, variance], centroid, np.maximum(spread, 0)]))
    return np.stack(rows)


@pytest.mark.parametrize("chunk", [1, 50, 100_000])
@pytest.mark.parametrize("weighted", [False, True])
def test_statistics_match_those_of_a_loop(weighted: bool, chunk: int) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(40, 3, dtype=torch.float64), torch.rand(70, 3, dtype=torch.float64)
    x[0] = 9.0  # no points are near
    weights = torch.rand(70, dtype=torch.float64) if weighted else None
    values = statistics(x, y, radius_edges(x, y, RADIUS), radius=RADIUS, weights=weights, chunk=chunk)
    truth = by_hand(x.numpy(), y.numpy(), np.ones(70) if weights is None else weights.numpy())
    assert not values[0].any()
    np.testing.assert_allclose(values.numpy(), truth, rtol=1e-7, atol=1e-7)


def test_eigenvalues_match_numpy_and_a_known_matrix() -> None:
    torch.manual_seed(0)
    half = torch.randn(200, 3, 3, dtype=torch.float64)
    matrices = half @ half.transpose(1, 2)
    matrices[0] = torch.eye(3)  # three equal eigenvalues
    matrices[1] = torch.diag(torch.tensor([1.0, 4.0, 1.0]))  # two equal eigenvalues
    matrices[2] = 0
    truth = np.linalg.eigvalsh(matrices.numpy())[:, ::-1]
    np.testing.assert_allclose(eigenvalues(matrices).numpy(), truth, atol=1e-7)
    np.testing.assert_allclose(eigenvalues(matrices[1:2]).numpy(), [[4, 1, 1]], atol=1e-12)


def test_the_statistics_of_a_flat_disc_match_the_closed_form() -> None:
    # Uniform over a disc of radius 1: mean distance 2/3, E[d^2] = 1/2, variance of each axis 1/4, none
    # across.
    side = torch.linspace(-1, 1, 401, dtype=torch.float64) * RADIUS
    flat = torch.stack(torch.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
    y = torch.cat([flat, torch.zeros(len(flat), 1, dtype=torch.float64)], dim=1)
    x = torch.zeros(1, 3, dtype=torch.float64)
    areas = torch.full((len(y),), float((2 * RADIUS / 400) ** 2 / (math.pi * RADIUS**2)), dtype=torch.float64)
    edges = radius_edges(x, y, RADIUS)
    (values,) = statistics(x, y, edges, radius=RADIUS, weights=areas).tolist()
    assert values == pytest.approx([1, 2 / 3, 1 / 18, 0, 0, 0, 1 / 4, 1 / 4, 0], abs=2e-3)
    faded_statistics = statistics(x, y, edges, radius=RADIUS, weights=areas, fading=True)
    assert faded_statistics[0].tolist() == pytest.approx(FLAT, abs=1e-4)
    assert departure(faded_statistics)[0].tolist() == pytest.approx([0.0] * COLUMNS, abs=2e-3)


def test_a_finer_mesh_of_a_surface_has_the_same_statistics() -> None:
    place = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    rows = []
    for count in (2_000, 8_000):
        y = fibonacci_sphere(count)
        areas = torch.full((count,), 4 * math.pi / count / (math.pi * RADIUS**2), dtype=torch.float64)
        rows.append(statistics(place, y, radius_edges(place, y, RADIUS), radius=RADIUS, weights=areas))
    assert torch.allclose(rows[0], rows[1], atol=0.02)
    # The cap of a unit sphere within distance r sinks by r^2 / 4 on average: the offset shows its curvature.
    assert float(rows[1][0, 5]) == pytest.approx(-RADIUS / 4, rel=0.02)


def test_statistics_have_no_gradient_and_are_identical_to_the_bit() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(30, 3, requires_grad=True), torch.rand(90, 3, requires_grad=True)
    edges = radius_edges(x.detach(), y.detach(), RADIUS)
    first, second = (statistics(x, y, edges, radius=RADIUS) for _ in range(2))
    assert not first.requires_grad and torch.equal(first, second)


def test_readable_statistics_are_logarithms_and_lengths() -> None:
    raw = torch.tensor([math.e - 1, 0.5, 0.04, 0.1, 0.2, -0.3, 0.25, 0.09, 0.0])
    assert readable(raw).tolist() == pytest.approx([1, 0.5, 0.2, 0.1, 0.2, -0.3, 0.5, 0.3, 0], abs=1.1e-3)


def test_a_bend_shows_as_a_departure_from_a_flat_disc() -> None:
    bent = torch.tensor(FLAT)
    bent[5] = -0.1
    assert departure(bent).tolist() == pytest.approx([0, 0, 0, 0, 0, -0.5, 0, 0, 0], abs=1e-5)


def test_fading_statistics_hardly_change_for_a_coarser_mesh() -> None:
    places = fibonacci_sphere(50)
    values: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    for count in (500, 8_000):
        y = fibonacci_sphere(count)
        areas = torch.full((count,), 4 / count / RADIUS**2, dtype=torch.float64)
        for fading in values:
            values[fading].append(
                statistics(
                    places, y, radius_edges(places, y, RADIUS), radius=RADIUS, weights=areas, fading=fading
                )
            )
    jumps = {fading: float((coarse - fine).abs().mean()) for fading, (coarse, fine) in values.items()}
    assert jumps[True] < jumps[False] / 2
