"""The graph of an operator: all neighbours in both directions, and errors for points it cannot predict."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.kit import GraphCache
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.graph import ball_shares, cap_edges, graph_of, lattice_of


def config(**changes: Any) -> OperatorConfig:
    settings: dict[str, Any] = {
        "low": (-2, -1, 0),
        "high": (2, 1, 1),
        "in_features": 3,
        "lattice": (8, 4, 4),
        **changes,
    }
    return OperatorConfig.preset(settings.pop("preset", "small"), **settings)


def body(count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.rand(count, 3) * torch.tensor([4.0, 2.0, 1.0]) + torch.tensor([-2.0, -1.0, 0.0]), torch.rand(
        count
    )


def test_turning_needs_the_features_and_uses_their_normals() -> None:
    points, areas = body()
    operator_config = config(vectors=(1,), in_features=5, turning=True)
    with pytest.raises(BadInput, match="needs the features") as excinfo:
        graph_of(points, operator_config, areas=areas)
    assert "features=features" in excinfo.value.hint
    features = torch.rand(60, 5)
    first, other = (
        graph_of(points, operator_config, areas=areas, features=features + shift).point_statistics
        for shift in (0.0, 1.0)
    )
    plain = graph_of(points, config(), areas=areas).point_statistics
    assert [tuple(values.shape) for values in first] == [(60, 21)] * 4
    assert torch.equal(first[0][:, :9], plain[0])
    # The sum of the normals rises by the amount, whose logarithm is the first statistic.
    amount = (first[0][:, :1] / 5).exp() * 2 - 1
    assert torch.allclose(other[0][:, 9:12] - first[0][:, 9:12], amount.expand(-1, 3), rtol=1e-4)


def test_every_radius_has_all_its_neighbours_in_both_directions() -> None:
    points, areas = body()
    operator_config = config()
    graph = graph_of(points, operator_config, areas=areas)
    near = torch.cdist(points.double(), lattice_of(operator_config).points().double())
    assert len(graph.encoder) == len(graph.decoder) == len(operator_config.radii) == 2
    for radius, into_tokens, into_points in zip(
        operator_config.radii, graph.encoder, graph.decoder, strict=True
    ):
        assert into_points.degrees().tolist() == (near <= radius).sum(1).tolist()
        assert into_tokens.degrees().tolist() == (near <= radius).sum(0).tolist()
    assert graph.edges == 2 * sum(int((near <= radius).sum()) for radius in operator_config.radii)
    assert [tuple(values.shape) for values in (*graph.token_statistics, *graph.point_statistics)] == [
        (128, 9)
    ] * 2 + [(60, 9)] * 2


def test_a_point_without_a_token_is_refused_with_a_sufficient_radius() -> None:
    points, areas = body()
    operator_config = config(radii=(0.1,), local_radii=())
    with pytest.raises(BadInput, match="points have no token") as excinfo:
        graph_of(points, operator_config, areas=areas)
    match = re.search(r"Raise the radius to ([\d.]+)", excinfo.value.hint)
    assert match is not None
    enough = graph_of(points, config(radii=(0.1, float(match[1]))), areas=areas)
    assert int(enough.decoder[1].degrees().min()) >= 1


def test_a_radius_that_connects_every_token_to_every_point_is_refused() -> None:
    points = torch.tensor([[0.0, 0.0, 0.5], [0.1, 0.0, 0.5]])
    with pytest.raises(BadInput, match="Every token is connected to every point"):
        graph_of(points, config(radii=(4.0,)), areas=torch.ones(2))


def test_a_cache_gives_the_same_graph(tmp_path: Path) -> None:
    points, areas = body()
    plain = graph_of(points, config(), areas=areas)
    for _ in range(2):
        cached = graph_of(points, config(), areas=areas, cache=GraphCache(tmp_path))
        for one, other in zip(
            (*plain.encoder, *plain.decoder), (*cached.encoder, *cached.decoder), strict=True
        ):
            assert torch.equal(one.offsets, other.offsets) and torch.equal(one.sources, other.sources)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("points", "says"),
    [
        (torch.tensor([[3.0, 0.0, 0.5], [0.0, 0.0, 0.5]]), "1 of 2 points lie outside the box"),
        (torch.zeros(0, 3), "shape"),
        (torch.zeros(4, 2), "shape"),
        (torch.tensor([[0.0, float("nan"), 0.5]]), "not finite"),
    ],
)
def test_points_outside_the_box_are_refused(points: torch.Tensor, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        graph_of(points, config(), areas=torch.ones(len(points)))


def test_statistics_without_areas_are_refused() -> None:
    with pytest.raises(BadInput, match="need its areas"):
        graph_of(body()[0], config())
    assert graph_of(body()[0], config(geometry="none", local_radii=())).token_statistics == ()


def test_the_cap_keeps_the_first_neighbours_of_a_row_only_if_it_is_set() -> None:
    points, _ = body(400)
    whole = graph_of(points, config(preset="compat"))
    capped = graph_of(points, config(preset="compat", neighbour_cap=3))
    for full, few in zip((*whole.encoder, *whole.decoder), (*capped.encoder, *capped.decoder), strict=True):
        for row in range(full.queries):
            begin, end = full.offsets[row : row + 2].tolist()
            assert (
                few.sources[few.offsets[row] : few.offsets[row + 1]].tolist()
                == full.sources[begin : min(end, begin + 3)].tolist()
            )
    assert torch.equal(cap_edges(whole.encoder[0], 10**6).sources, whole.encoder[0].sources)


def test_the_areas_of_a_flat_surface_through_a_ball_add_up_to_one() -> None:
    assert ball_shares(None, 1.0, 2) is None
    shares = ball_shares(torch.tensor([1.0, 2.0]), 2.0, 2)
    assert shares is not None and shares.tolist() == pytest.approx([1 / (4 * torch.pi), 2 / (4 * torch.pi)])


def test_all_tensors_of_a_graph_move_with_it() -> None:
    points, areas = body()
    graph = graph_of(points, config(), areas=areas).to("meta")
    parts = [*graph.encoder, *graph.decoder]
    assert {e.sources.device.type for e in parts} | {
        t.device.type for t in (*graph.token_statistics, *graph.point_statistics)
    } == {"meta"}
