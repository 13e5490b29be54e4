"""The graph of a study: exactly the requested edges, the same in both directions, between neighbours."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the operator is torch's")

import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.kit import Edges
from pinchpoint.systems.operator.data.sheet import LATTICE, K, Sheet, reach


@pytest.mark.parametrize("edges", [1, 31, 32, 33, 1_000, 26_912, 26_913, 300_007])
def test_both_directions_have_the_same_edges_and_as_many_as_requested(edges: int) -> None:
    sheet = Sheet(edges)
    into_points, into_tokens = sheet.into_points("cpu"), sheet.into_tokens("cpu")
    assert into_points.count == into_tokens.count == edges
    index = torch.stack([into_points.destinations().long(), into_points.sources.long()])
    sorted_out = Edges.from_index(
        index, queries=LATTICE.count, sources=sheet.count
    )  # by sorting; the module itself only counts
    assert torch.equal(into_tokens.offsets, sorted_out.offsets)
    assert torch.equal(into_tokens.sources, sorted_out.sources)
    for graph in (into_points, into_tokens):
        assert torch.equal(torch.from_numpy(graph.starts), graph.offsets), (
            "counts on the host match those on the device"
        )


def test_every_point_has_all_its_tokens_once_within_reach() -> None:
    sheet = Sheet(40_000)
    edges = sheet.into_points("cpu")
    assert bool((edges.degrees() == K).all())
    rows = edges.sources.reshape(-1, K).sort(dim=1).values
    assert bool((rows.diff(dim=1) > 0).all())
    points, tokens = sheet.points(seed=3, device="cpu"), LATTICE.points()
    apart = (points[edges.destinations().long()] - tokens[edges.sources.long()]).norm(dim=1)
    assert float(apart.max()) < reach()
    nearest = torch.cdist(points, tokens).argmin(dim=1)
    has_nearest = (edges.sources.reshape(-1, K) == nearest[:, None].int()).any(dim=1)
    assert float(has_nearest.float().mean()) > 0.95, (
        "the nearest token is included, except where the sheet is steep"
    )


def test_points_lie_in_the_box_are_evenly_distributed_and_depend_on_the_seed() -> None:
    sheet = Sheet(32 * 20_000)
    points = sheet.points(seed=0, device="cpu")
    assert points.shape == (20_000, 3)
    low, high = torch.tensor(LATTICE.low), torch.tensor(LATTICE.high)
    assert bool(((points > low) & (points < high)).all())
    # A quarter of the plane covered by columns contains a quarter of the points.
    middle = (points[:, :2].min(0).values + points[:, :2].max(0).values) / 2
    assert float((points[:, :2] < middle).all(dim=1).float().mean()) == pytest.approx(0.25, abs=0.01)
    assert torch.equal(points, sheet.points(seed=0, device="cpu"))
    assert not torch.equal(points, sheet.points(seed=1, device="cpu"))


@pytest.mark.parametrize("edges", [0, -1, 32 * 2**31])
def test_an_invalid_number_of_edges_is_refused(edges: int) -> None:
    with pytest.raises(BadInput, match="edges"):
        Sheet(edges)
