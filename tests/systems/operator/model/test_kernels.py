"""Kernels of the operator: weighted sums of scales, initial weights that preserve signals, and units."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pinchpoint.kit import edge_transform, lattice_edges
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.graph import lattice_of
from pinchpoint.systems.operator.model.kernels import MultiScale, Scaling, initialise, mlp_of


def config(**changes: Any) -> OperatorConfig:
    settings: dict[str, Any] = {
        "low": (-4, -1, 0),
        "high": (4, 1, 2),
        "in_features": 3,
        "lattice": (8, 4, 4),
        "channels": 6,
    }
    return OperatorConfig.preset("small", **{**settings, **changes})


def test_initial_weights_preserve_the_strength_of_a_signal() -> None:
    torch.manual_seed(0)
    values = torch.randn(2_000, 64)
    plain, ours = (mlp_of((64,) * 9) for _ in range(2))
    initialise(ours)
    assert float(plain(values).detach().std(0).mean()) < 0.01  # the input makes almost no difference
    assert 0.3 < float(ours(values).detach().std(0).mean()) < 2


def test_scales_are_added_with_softmax_weights_for_each_channel() -> None:
    torch.manual_seed(0)
    operator_config = config()
    points = torch.rand(50, 3) * torch.tensor([8.0, 2.0, 2.0]) + torch.tensor([-4.0, -1.0, 0.0])
    pairs = [lattice_edges(points, lattice_of(operator_config), radius) for radius in operator_config.radii]
    scales, units = MultiScale(operator_config, weights="mean"), Scaling(operator_config)
    assert scales.mix is not None
    nn.init.normal_(scales.mix)
    x, y, f = units.tokens, units.places(points), torch.randn(50, 6)
    values = scales(x, y, f, tuple(pair[0] for pair in pairs), memory="flat", chunk=20)
    parts = [
        edge_transform(kernel, x, y, f, pair[0], memory="eager")
        for kernel, pair in zip(scales.kernels, pairs, strict=True)
    ]
    shares = scales.mix.exp() / scales.mix.exp().sum(0)
    assert torch.allclose(values, shares[0] * parts[0] + shares[1] * parts[1], atol=1e-6)


def test_initial_kernels_distinguish_the_edges_of_a_small_ball() -> None:
    torch.manual_seed(0)
    small = config(radii=(0.9,), lattice=(16, 8, 8))
    offsets = torch.nn.functional.normalize(torch.randn(200, 3), dim=1) * small.radii[0] / small.half_length
    edges = torch.cat([offsets, torch.zeros(200, 3)], dim=1)
    spread = {}
    for name, kernel in (
        ("ours", MultiScale(small, weights="mean").kernels[0]),
        ("torch", mlp_of((6, *small.mlp, 6))),
    ):
        spread[name] = float(kernel(edges).detach().std(0).mean())
    assert spread["ours"] > 0.2 > 0.05 > spread["torch"]


def test_the_unit_of_length_is_half_the_longest_side() -> None:
    units = Scaling(config(target_shift=(1.0,), target_scale=(2.0,)))
    assert units.places(torch.tensor([[4.0, 1.0, 2.0], [0.0, 0.0, 1.0]])).tolist() == [
        [1.0, 0.25, 0.25],
        [0.0, 0.0, 0.0],
    ]
    assert units.tokens.min(0).values.tolist() == [-1.0, -0.25, -0.25]
    assert units.areas(torch.tensor([16.0])).tolist() == [1.0]
    assert units.targets(torch.tensor([[3.0]])).tolist() == [[7.0]]
    assert list(units.state_dict()) == []


def test_edge_mlps_are_plain_sequences() -> None:
    kinds = [type(layer) for layer in mlp_of((6, 8, 8, 2))]
    assert kinds == [nn.Linear, nn.GELU, nn.Linear, nn.GELU, nn.Linear]
    assert MultiScale(config(radii=(1.0,)), weights="mean").mix is None


@pytest.mark.parametrize("weights", ["quadrature", "attention"])
def test_the_weights_of_the_configuration_are_used_by_the_transform(weights: Any) -> None:
    torch.manual_seed(0)
    operator_config = config(radii=(1.2,), weights=weights)
    points, areas = (
        torch.rand(40, 3) * torch.tensor([8.0, 2.0, 2.0]) + torch.tensor([-4.0, -1.0, 0.0]),
        torch.rand(40),
    )
    edges, _ = lattice_edges(points, lattice_of(operator_config), operator_config.radii[0])
    scales, units = MultiScale(operator_config, weights=weights), Scaling(operator_config)
    x, y, f = units.tokens, units.places(points), torch.randn(40, 6)
    values = scales(x, y, f, (edges,), areas=units.areas(areas), memory="flat", chunk=30)
    options: dict[str, Any] = (
        {"attention": scales.scores[0]}
        if weights == "attention"
        else {"quadrature": areas / (torch.pi * operator_config.radii[0] ** 2)}
    )
    truth = edge_transform(scales.kernels[0], x, y, f, edges, memory="eager", weights=weights, **options)
    assert torch.allclose(values, truth, atol=1e-6)
