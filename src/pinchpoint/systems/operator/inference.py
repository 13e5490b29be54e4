"""What a trained operator says of a body of any number of points: its tokens once, then the points in chunks.

All points must lie on the device only where the encoder reads them: place, area and lifted values, beside its edges.
What is made of a point alone, before it and after it, streams: features and surroundings come, answers go, a chunk at
a time. P points, L tokens, C channels, T targets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pinchpoint.kit import Edges
from pinchpoint.streaming.stream import stream
from pinchpoint.systems.common.precision import autocast
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.model.graph import Graph
from pinchpoint.systems.operator.model.model import Body, Operator
from pinchpoint.systems.operator.settings import Settings

POINTS = 16_384  # at one time: a few megabytes, and as many edges as a chunk of the edge transform has


class Answering:
    """One body put to one model. The sample and its graph stay where they are; the model's device computes."""

    def __init__(self, model: Operator, sample: Sample, graph: Graph, told: Settings) -> None:
        self.model, self.sample, self.graph, self.told = model, sample, graph, told
        self.device = model.scaling.tokens.device
        self.how: dict[str, Any] = {"memory": told.memory, "chunk": told.chunk or "auto"}
        self.points, self.areas = sample.points.to(self.device), sample.areas.to(self.device)
        self.body: Body = model.body(self.points, sample.features.to(self.device), self.areas)

    def lift(self, points: Tensor, features: Tensor, *surroundings: Tensor) -> Tensor:
        """(c, C) of points on the device, (c, 3), and what is known of them."""
        with self._autocast():
            return self.model.lift(
                self.model.inputs(self.body, self.model.places(self.body, points), features, surroundings)
            )

    def encode(self, lifted: Tensor) -> Tensor:
        """(L, C) of the lifted values (P, C) of all points."""
        graph = Graph(
            _there(self.graph.encoder, self.device),
            (),
            tuple(s.to(self.device) for s in self.graph.token_statistics),
        )
        with self._autocast():
            return self.model.encode(
                self.body, self.model.places(self.body, self.points), lifted, self.areas, graph, **self.how
            )

    def decode(
        self, tokens: Tensor, first: int, points: Tensor, features: Tensor, *surroundings: Tensor
    ) -> Tensor:
        """(c, T) of the points `first` and following."""
        edges = _there(
            tuple(edges.rows(first, first + len(points)) for edges in self.graph.decoder), self.device
        )
        with self._autocast():
            places = self.model.places(self.body, points)
            inputs = self.model.inputs(self.body, places, features, surroundings)
            return self.model.decode(self.body, tokens, places, inputs, edges, **self.how).float()

    def _autocast(self) -> Any:
        return autocast(self.told.precision, self.device.type)


@torch.no_grad()
def answer(
    model: Operator,
    sample: Sample,
    graph: Graph,
    told: Settings,
    *,
    points: int = POINTS,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """(P, T) on the host, as the model gives it for the whole body at once, to rounding. points: at one time."""
    asked = Answering(model, sample, graph, told)
    known = (sample.points, sample.features, *graph.point_statistics)
    device = str(asked.device)
    lifted = stream(asked.lift, known, chunk=points, device=device, out="device", pad=False)
    tokens = asked.encode(lifted)
    del lifted

    def decode(numbers: Tensor, *chunk: Tensor) -> Tensor:
        return asked.decode(tokens, int(numbers[0]), *chunk)

    numbers = torch.arange(len(sample.points))
    return stream(decode, (numbers, *known), chunk=points, device=device, pad=False, progress=progress)


def answer_one_chunk(
    model: Operator, sample: Sample, graph: Graph, told: Settings, *, points: int = POINTS
) -> Tensor:
    """As much of `answer` as tells its peak: what one chunk takes, any does. Run on fake tensors, which have no numbers."""
    asked = Answering(model, sample, graph, told)
    some = min(points, len(sample.points))
    chunk = (
        sample.points[:some],
        sample.features[:some],
        *(found[:some] for found in graph.point_statistics),
    )
    first = asked.lift(*chunk)
    lifted = first.new_empty(len(sample.points), first.shape[1])
    del first
    return asked.decode(asked.encode(lifted), 0, *chunk)


def _there(edges: tuple[Edges, ...], device: torch.device) -> tuple[Edges, ...]:
    return tuple(part.to(device) for part in edges)
