"""Inference of a trained operator on a body of any size: all tokens once, then the points in chunks.

Only what the encoder reads is on the device for all points: places, areas and lifted values, and the
encoder's edges. Computations for each point separately, before and after the encoder, are streamed: features
and surroundings are copied to the device and results are copied back, one chunk at a time. P points, L
tokens, C channels, T targets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pinchpoint.kit import Edges
from pinchpoint.streaming.stream import stream
from pinchpoint.systems.common.training.precision import autocast
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.model.graph import Graph
from pinchpoint.systems.operator.model.model import Body, Operator
from pinchpoint.systems.operator.settings import Settings

POINTS = (
    16_384  # points per chunk: a few megabytes, with about as many edges as a chunk of the edge transform
)


class BodyInference:
    """Inference on one body. The sample and its graph stay on their device; the model's device computes."""

    def __init__(self, model: Operator, sample: Sample, graph: Graph, settings: Settings) -> None:
        self.model, self.sample, self.graph, self.settings = model, sample, graph, settings
        self.device = model.scaling.tokens.device
        self.options: dict[str, Any] = {"memory": settings.memory, "chunk": settings.chunk or "auto"}
        self.points, self.areas = sample.points.to(self.device), sample.areas.to(self.device)
        self.body: Body = model.body(self.points, sample.features.to(self.device), self.areas)

    def lift(self, points: Tensor, features: Tensor, *surroundings: Tensor) -> Tensor:
        """Lifted values (c, C) of points (c, 3) on the device, from their features and surroundings."""
        with self._autocast():
            return self.model.lift(
                self.model.inputs(self.body, self.model.places(self.body, points), features, surroundings)
            )

    def encode(self, lifted: Tensor) -> Tensor:
        """Tokens (L, C) from the lifted values (P, C) of all points."""
        graph = Graph(
            _move_edges(self.graph.encoder, self.device),
            (),
            tuple(s.to(self.device) for s in self.graph.token_statistics),
        )
        with self._autocast():
            return self.model.encode(
                self.body,
                self.model.places(self.body, self.points),
                lifted,
                self.areas,
                graph,
                **self.options,
            )

    def decode(
        self, tokens: Tensor, first: int, points: Tensor, features: Tensor, *surroundings: Tensor
    ) -> Tensor:
        """Predictions (c, T) at c points, starting with point number `first`."""
        edges = _move_edges(
            tuple(edges.rows(first, first + len(points)) for edges in self.graph.decoder), self.device
        )
        with self._autocast():
            places = self.model.places(self.body, points)
            inputs = self.model.inputs(self.body, places, features, surroundings)
            return self.model.decode(self.body, tokens, places, inputs, edges, **self.options).float()

    def _autocast(self) -> Any:
        return autocast(self.settings.precision, self.device.type)


@torch.no_grad()
def infer(
    model: Operator,
    sample: Sample,
    graph: Graph,
    settings: Settings,
    *,
    points: int = POINTS,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Predictions (P, T) on the host, equal up to rounding to the model's output for the whole body.

    points: points per chunk.
    """
    inference = BodyInference(model, sample, graph, settings)
    inputs = (sample.points, sample.features, *graph.point_statistics)
    device = str(inference.device)
    lifted = stream(inference.lift, inputs, chunk=points, device=device, out="device", pad=False)
    tokens = inference.encode(lifted)
    del lifted

    def decode(numbers: Tensor, *chunk: Tensor) -> Tensor:
        return inference.decode(tokens, int(numbers[0]), *chunk)

    numbers = torch.arange(len(sample.points))
    return stream(decode, (numbers, *inputs), chunk=points, device=device, pad=False, progress=progress)


def infer_one_chunk(
    model: Operator, sample: Sample, graph: Graph, settings: Settings, *, points: int = POINTS
) -> Tensor:
    """The part of `infer` that determines its peak, for fake tensors: all chunks need the same memory."""
    inference = BodyInference(model, sample, graph, settings)
    some = min(points, len(sample.points))
    chunk = (
        sample.points[:some],
        sample.features[:some],
        *(statistics[:some] for statistics in graph.point_statistics),
    )
    first = inference.lift(*chunk)
    lifted = first.new_empty(len(sample.points), first.shape[1])
    del first
    return inference.decode(inference.encode(lifted), 0, *chunk)


def _move_edges(edges: tuple[Edges, ...], device: torch.device) -> tuple[Edges, ...]:
    return tuple(part.to(device) for part in edges)
