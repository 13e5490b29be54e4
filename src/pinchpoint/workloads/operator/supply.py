"""The bodies of a data set as a trainer takes them: samples and their graphs, each made once.

Both are kept in memory up to a limit; past that they are made again. Which body a step takes is
worked out from the seed and the step alone, so a resumed run needs no more than its step to go on
in the same order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import torch

from pinchpoint.core.units import GIB
from pinchpoint.workloads.operator.config import OperatorConfig
from pinchpoint.workloads.operator.dataset import Dataset
from pinchpoint.workloads.operator.graph import Graph, graph_of
from pinchpoint.workloads.operator.sample import Sample

HELD_BYTES = 4 * GIB


class Supply:
    """Samples and graphs by name, on the CPU."""

    def __init__(self, data: Dataset, config: OperatorConfig, *, held_bytes: int = HELD_BYTES) -> None:
        self.data, self.config = data, config
        self._held: dict[str, tuple[Sample, Graph]] = {}
        self._room = held_bytes

    def get(self, name: str) -> tuple[Sample, Graph]:
        if name in self._held:
            return self._held[name]
        sample = self.data.sample(name)
        made = sample, graph_of(sample.points, self.config, areas=sample.areas)
        size = sum(tensor.nbytes for tensor in _tensors(*made))
        if size <= self._room:
            self._room -= size
            self._held[name] = made
        return made


def _tensors(sample: Sample, graph: Graph) -> list[torch.Tensor]:
    edges = [part for edges in (*graph.encoder, *graph.decoder) for part in (edges.offsets, edges.sources)]
    return [sample.points, sample.features, sample.target, sample.areas, *edges, *graph.token_statistics, *graph.point_statistics]


def at_turn(names: Sequence[str], *, seed: int, turn: int) -> str:
    """The body of turn 0, 1, ...: every pass over the bodies has an order of its own, and the next follows at once."""
    number, place = divmod(turn, len(names))
    shuffle = torch.Generator().manual_seed(seed * 1_000_003 + number)
    return names[int(torch.randperm(len(names), generator=shuffle)[place])]


def fingerprint(data: Dataset) -> str:
    """What a data set is, wherever it lies: its kind, its box and the files of its training bodies."""
    files = [(name, data.bodies[name]["sha256"]) for name in data.names("train")]
    said = {"kind": data.kind, "low": list(data.low), "high": list(data.high), "train": files}
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()
