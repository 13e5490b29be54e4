"""Inference in chunks of points: the same numbers, and a peak that grows only by what the encoder reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pinchpoint.backends.torch.measurement import account
from pinchpoint.systems.operator.data.dataset import open_dataset
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.graph import Graph, graph_of
from pinchpoint.systems.operator.model.inference import infer
from pinchpoint.systems.operator.model.model import Operator
from pinchpoint.systems.operator.settings import Settings
from pinchpoint.systems.operator.training import budget
from pinchpoint.systems.operator.training.budget import chunk_for
from pinchpoint.systems.operator.training.training_step import forward

VECTORS: dict[str, Any] = {"vectors": (0, 3), "mirror": 4}
pytestmark = pytest.mark.usefixtures("quick_workers")


def config_of(data: Path, model: dict[str, Any], **changes: Any) -> OperatorConfig:
    found = open_dataset(data)
    preset = "compat" if changes.get("compat") else "small"
    return OperatorConfig.preset(
        preset, low=found.low, high=found.high, in_features=7, **{**model["model"], **changes}
    )


def many(data: Path, copies: int) -> Sample:
    """The points of a body many times, each copy a little aside, under a flow from the left."""
    found = open_dataset(data)
    body = found.sample(found.names("test")[0])
    aside = 1e-3 * torch.rand(copies, 1, 3, generator=torch.Generator().manual_seed(0))
    features = body.features.repeat(copies, 1)
    features[:, 4] = -features[:, 4].abs() - 0.1
    points = (body.points + aside).reshape(-1, 3)
    return Sample("many", points, features, body.target.repeat(copies, 1), body.areas.repeat(copies) / copies)


def held(sample: Sample, graph: Graph) -> int:
    """Bytes of what is there already."""
    edges = [part for one in (*graph.encoder, *graph.decoder) for part in (one.offsets, one.sources)]
    given = [sample.points, sample.features, sample.areas, *graph.point_statistics, *edges]
    return sum(part.numel() * part.element_size() for part in given)


@pytest.mark.parametrize(
    "changes",
    [
        VECTORS,
        {"turning": True, **VECTORS},
        {"compat": True},
        {"geometry": "pointnet"},
        {"weights": "attention", **VECTORS},
        {"transform": "nonlinear"},
    ],
)
@torch.no_grad()
def test_chunks_of_points_give_what_the_whole_body_does(
    tiny_data: Path, tiny_model: dict[str, Any], changes: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    config, sample = config_of(tiny_data, tiny_model, **changes), many(tiny_data, 3)
    model, told = Operator(config).eval(), Settings(memory="flat")
    graph = graph_of(sample.points, config, areas=sample.areas, features=sample.features)
    whole = forward(model, sample, graph, told)
    seen: list[tuple[int, int]] = []
    found = infer(
        model, sample, graph, told, points=50, progress=lambda done, total: seen.append((done, total))
    )
    assert found.shape == whole.shape
    assert float((found - whole).abs().max()) <= 1e-6 * float(whole.abs().max())
    assert seen[-1] == (len(whole), len(whole)) and len(seen) > 5


@torch.no_grad()
def test_the_peak_grows_by_what_the_encoder_reads_of_a_point(
    tiny_data: Path, tiny_model: dict[str, Any]
) -> None:
    config = config_of(tiny_data, tiny_model, **VECTORS)
    model, told = Operator(config).eval(), Settings(memory="flat", chunk=512)
    peaks = []
    for copies in (8, 24):
        sample = many(tiny_data, copies)
        graph = graph_of(sample.points, config, areas=sample.areas, features=sample.features)
        ways = (
            lambda s=sample, g=graph: infer(model, s, g, told, points=128),
            lambda s=sample, g=graph: forward(model, s, g, told),
        )
        peaks.append([len(sample.points), *((account(way) or 0) - held(sample, graph) for way in ways)])
    (few, small, whole_small), (more, large, whole_large) = peaks
    # Lifted values (8 channels) and a copy of them on their way, place, quadrature for two radii, number and
    # answer.
    assert (large - small) / (more - few) <= 2 * 4 * config.channels + 64
    assert (whole_large - whole_small) / (more - few) > 500


@torch.no_grad()
def test_what_a_budget_is_compared_with_is_what_the_chunks_take(
    tiny_data: Path, tiny_model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "resident_bytes", lambda: 0)
    config, sample = config_of(tiny_data, tiny_model, **VECTORS), many(tiny_data, 20)
    graph = graph_of(sample.points, config, areas=sample.areas, features=sample.features)
    model, told = Operator(config).eval(), Settings(memory="flat")
    found = chunk_for(config, told, graph, budget="1GiB", device="cpu", mode="infer")
    told = Settings(memory="flat", chunk=found.chunk)
    needed = account(lambda: infer(model, sample, graph, told))
    assert needed is not None
    assert found.predicted_bytes == pytest.approx(needed, rel=0.05)
