"""pinchpoint's operator and GINO for one problem: equal lattices, features, scales and parameter counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from peer import Choices, Gino, gino_of_size, parameter_count
from torch import Tensor, nn
from training import Contender

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.graph import Graph, graph_of, lattice_of
from pinchpoint.systems.operator.model.model import Operator, input_count

NAMES = ("ours", "gino", "gino+query")


@dataclass(frozen=True)
class Scales:
    """Means and standard deviations over the training bodies, by which both models scale their values."""

    feature_shift: tuple[float, ...]
    feature_scale: tuple[float, ...]
    target_shift: tuple[float, ...]
    target_scale: tuple[float, ...]


def scales_of(samples: Sequence[Sample], *, vectors: Sequence[int]) -> Scales:
    """Return the scales over all points of the bodies.

    Values that hardly vary, and the unit vectors at `vectors`, are not scaled.
    """

    def of(values: Tensor, plain: set[int]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        std, mean = torch.std_mean(values.double(), dim=0)
        scales = [float(s) > 1e-6 and column not in plain for column, s in enumerate(std)]
        shifts = tuple(float(m) if is_scaled else 0.0 for m, is_scaled in zip(mean, scales, strict=True))
        return shifts, tuple(float(s) if is_scaled else 1.0 for s, is_scaled in zip(std, scales, strict=True))

    features, targets = torch.cat([s.features for s in samples]), torch.cat([s.target for s in samples])
    return Scales(*of(features, {at + part for at in vectors for part in range(3)}), *of(targets, set()))


class Ours(nn.Module):
    """pinchpoint's operator, whose configuration contains the scales."""

    def __init__(self, config: OperatorConfig, *, memory: str) -> None:
        super().__init__()
        self.config, self.memory = config, memory
        self.operator = Operator(config)

    def prepare(self, sample: Sample) -> tuple[Sample, Graph]:
        return sample, graph_of(sample.points, self.config, areas=sample.areas, features=sample.features)

    def forward(self, body: tuple[Sample, Graph]) -> Tensor:
        sample, graph = body
        return self.operator(sample.points, sample.features, sample.areas, graph, memory=self.memory)


Query = Callable[[Sample], Tensor]


def query_of(config: OperatorConfig) -> Query:
    """Return a function that computes all inputs (P, I) of pinchpoint's decoder at the points of a sample."""

    @torch.no_grad()
    def query(sample: Sample) -> Tensor:
        reads = Operator(config).to(sample.points.device)
        graph = graph_of(sample.points, config, areas=sample.areas, features=sample.features)
        body = reads.body(sample.points, sample.features, sample.areas)
        return reads.inputs(body, reads.places(body, sample.points), sample.features, graph.point_statistics)

    return query


class ScaledGino(nn.Module):
    """GINO with the scales of the configuration of pinchpoint's operator."""

    feature_shift: Tensor
    feature_scale: Tensor
    target_shift: Tensor
    target_scale: Tensor

    def __init__(self, gino: Gino, scales: Scales, query: Query | None = None) -> None:
        super().__init__()
        self.gino, self.query = gino, query
        for name, values in asdict(scales).items():
            self.register_buffer(name, torch.tensor(values), persistent=False)

    def prepare(self, sample: Sample) -> Any:
        shift, scale = (
            self.feature_shift.to(sample.features.device),
            self.feature_scale.to(sample.features.device),
        )
        scaled_sample = replace(sample, features=(sample.features - shift) / scale)
        return self.gino.prepare(
            scaled_sample, normals=sample.features[:, :3], query=self.query(sample) if self.query else None
        )

    def forward(self, body: Any) -> Tensor:
        return self.gino(body) * self.target_scale + self.target_shift


@dataclass(frozen=True)
class Problem:
    """The problem for which both models are built."""

    config: OperatorConfig
    scales: Scales
    memory: str = "flat"

    def parameters(self) -> int:
        return parameter_count(Operator(self.config))

    def build(self, name: str, *, seed: int, choices: Choices) -> Contender:
        """Return the untrained model, which is determined by the seed."""
        torch.manual_seed(seed)
        if name == "ours":
            return Ours(self.config, memory=self.memory)
        if name not in NAMES:
            raise BadInput(f"The model {name!r} does not exist.", hint=f"Use one of: {', '.join(NAMES)}.")
        query = query_of(self.config) if name == "gino+query" else None
        about = {
            "lattice": lattice_of(self.config),
            "radii": (min(self.config.radii), max(self.config.radii)),
            "features": self.config.in_features,
            "targets": self.config.out_features,
            "choices": replace(choices, query_features=input_count(self.config) if query else 0),
        }
        channels = gino_of_size(self.parameters(), **about).channels
        torch.manual_seed(seed)  # again, because the search for the size also drew random numbers
        return ScaledGino(Gino(channels=channels, **about), self.scales, query)
