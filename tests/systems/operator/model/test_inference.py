"""Inference in chunks of points: the same values, and a peak that grows only by the inputs of the encoder."""

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
    dataset = open_dataset(data)
    preset = "compat" if changes.get("compat") else "small"
    return OperatorConfig.preset(
        preset, low=dataset.low, high=dataset.high, in_features=7, **{**model["model"], **changes}
    )


def many(data: Path, copies: int) -> Sample:
    """Copies of the points of a body, each slightly shifted, in a flow from the left."""
    dataset = open_dataset(data)
    body = dataset.sample(dataset.names("test")[0])
    aside = 1e-3 * torch.rand(copies, 1, 3, generator=torch.Generator().manual_seed(0))
    features = body.features.repeat(copies, 1)
    features[:, 4] = -features[:, 4].abs() - 0.1
    points = (body.points + aside).reshape(-1, 3)
    return Sample("many", points, features, body.target.repeat(copies, 1), body.areas.repeat(copies) / copies)


def input_bytes(sample: Sample, graph: Graph) -> int:
    """Bytes of the inputs."""
    edges = [part for one in (*graph.encoder, *graph.decoder) for part in (one.offsets, one.sources)]
    tensors = [sample.points, sample.features, sample.areas, *graph.point_statistics, *edges]
    return sum(part.numel() * part.element_size() for part in tensors)


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
def test_chunks_of_points_give_the_same_result_as_the_whole_body(
    tiny_data: Path, tiny_model: dict[str, Any], changes: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    config, sample = config_of(tiny_data, tiny_model, **changes), many(tiny_data, 3)
    model, settings = Operator(config).eval(), Settings(memory="flat")
    graph = graph_of(sample.points, config, areas=sample.areas, features=sample.features)
    whole = forward(model, sample, graph, settings)
    progress_calls: list[tuple[int, int]] = []
    prediction = infer(
        model,
        sample,
        graph,
        settings,
        points=50,
        progress=lambda done, total: progress_calls.append((done, total)),
    )
    assert prediction.shape == whole.shape
    assert float((prediction - whole).abs().max()) <= 1e-6 * float(whole.abs().max())
    assert progress_calls[-1] == (len(whole), len(whole)) and len(progress_calls) > 5


@torch.no_grad()
def test_the_peak_grows_only_by_the_inputs_of_the_encoder(
    tiny_data: Path, tiny_model: dict[str, Any]
) -> None:
    config = config_of(tiny_data, tiny_model, **VECTORS)
    model, settings = Operator(config).eval(), Settings(memory="flat", chunk=512)
    peaks = []
    for copies in (8, 24):
        sample = many(tiny_data, copies)
        graph = graph_of(sample.points, config, areas=sample.areas, features=sample.features)
        ways = (
            lambda s=sample, g=graph: infer(model, s, g, settings, points=128),
            lambda s=sample, g=graph: forward(model, s, g, settings),
        )
        peaks.append(
            [len(sample.points), *((account(way) or 0) - input_bytes(sample, graph) for way in ways)]
        )
    (few, small, whole_small), (more, large, whole_large) = peaks
    # Lifted values (8 channels) and a copy of them, place, quadrature for two radii, number and prediction.
    assert (large - small) / (more - few) <= 2 * 4 * config.channels + 64
    assert (whole_large - whole_small) / (more - few) > 500


@torch.no_grad()
def test_the_prediction_for_a_budget_matches_the_memory_of_the_chunks(
    tiny_data: Path, tiny_model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "cpu_bytes", lambda tensor_bytes, resident: round(tensor_bytes))
    config, sample = config_of(tiny_data, tiny_model, **VECTORS), many(tiny_data, 20)
    graph = graph_of(sample.points, config, areas=sample.areas, features=sample.features)
    model, settings = Operator(config).eval(), Settings(memory="flat")
    choice = chunk_for(config, settings, graph, budget="1GiB", device="cpu", mode="infer")
    settings = Settings(memory="flat", chunk=choice.chunk)
    peak_bytes = account(lambda: infer(model, sample, graph, settings))
    assert peak_bytes is not None
    assert choice.predicted_bytes == pytest.approx(peak_bytes, rel=0.05)
