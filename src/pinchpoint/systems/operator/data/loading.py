"""Samples and graphs of a dataset's bodies for training, each computed once.

Both are cached in memory up to a limit. Graphs are also cached on disk, keyed by the content of the points
and the code that computes them, so that a resumed run does not compute them again: most of the time is spent
on the statistics of every point's surroundings, which a cache of edges alone would not save.
"""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import torch

from pinchpoint.core.files import write_bytes
from pinchpoint.core.units import GIB
from pinchpoint.kit.edges.edges import Edges
from pinchpoint.systems.operator.data.dataset import Dataset
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.model import geometry, graph, surroundings
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.graph import Graph, graph_of

CACHE_BYTES = 4 * GIB
_KEY_FIELDS = (
    "low",
    "high",
    "radii",
    "lattice",
    "geometry",
    "local_radii",
    "turning",
    "measure",
    "compat",
    "neighbour_cap",
)
_DIGEST = 32  # bytes of the hash at the start of a file


class Supply:
    """Samples and graphs by name, on the CPU.

    graphs: the folder for graphs; without it they are not written to disk. pinned: cached tensors are in
    pinned memory, from which a GPU copies them while it computes.
    """

    def __init__(
        self,
        data: Dataset,
        config: OperatorConfig,
        *,
        graphs: Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        pinned: bool = False,
    ) -> None:
        self.data, self.config, self.graphs, self.pinned = data, config, graphs, pinned
        self._cache: dict[str, tuple[Sample, Graph]] = {}
        self._free_bytes = cache_bytes

    def get(self, name: str) -> tuple[Sample, Graph]:
        if name in self._cache:
            return self._cache[name]
        sample = self.data.sample(name)
        pair = sample, self._graph(sample)
        size = tensor_bytes(*pair)
        if size <= self._free_bytes:
            self._free_bytes -= size
            if self.pinned:
                pair = pair[0].apply(torch.Tensor.pin_memory), pair[1].apply(torch.Tensor.pin_memory)
            self._cache[name] = pair
        return pair

    def _graph(self, sample: Sample) -> Graph:
        path = None if self.graphs is None else self.graphs / f"{_key(sample, self.config)}.graph"
        body_graph = None if path is None else _load(path)
        if body_graph is None:
            body_graph = graph_of(sample.points, self.config, areas=sample.areas, features=sample.features)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(path, _pack(body_graph))
        return body_graph


def _key(sample: Sample, config: OperatorConfig) -> str:
    """A hash of everything that determines a graph: the points' bytes, the configuration, and the code."""
    digest = hashlib.sha256(json.dumps([getattr(config, name) for name in _KEY_FIELDS]).encode())
    for file in (geometry.__file__, graph.__file__, surroundings.__file__):
        digest.update(Path(file).read_bytes())
    normals = graph.normals_of(sample.features, config)
    for tensor in (sample.points, sample.areas, *(() if normals is None else (normals,))):
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _pack(body_graph: Graph) -> bytes:
    """The bytes of a file: a hash, and the graph's tensors."""
    plain: list[Any] = [
        [(e.offsets, e.sources, e.source_count) for e in edges]
        for edges in (body_graph.encoder, body_graph.decoder)
    ]
    plain += [list(body_graph.token_statistics), list(body_graph.point_statistics)]
    buffer = io.BytesIO()
    torch.save(plain, buffer)
    return hashlib.sha256(buffer.getbuffer()).digest() + buffer.getvalue()


def _load(path: Path) -> Graph | None:
    """The graph in a file, or None if the file is missing or damaged; it is then computed again."""
    data = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
        return None
    encoder, decoder, tokens, points = torch.load(io.BytesIO(data[_DIGEST:]), weights_only=True)
    return Graph(
        tuple(Edges(*e) for e in encoder), tuple(Edges(*e) for e in decoder), tuple(tokens), tuple(points)
    )


def tensor_bytes(sample: Sample, body_graph: Graph) -> int:
    """The bytes of all tensors of a body."""
    lists = (*body_graph.encoder, *body_graph.decoder)
    edges = [part for edges in lists for part in (edges.offsets, edges.sources)]
    tensors = [sample.points, sample.features, sample.target, sample.areas, *edges]
    tensors += [*body_graph.token_statistics, *body_graph.point_statistics]
    return sum(tensor.nbytes for tensor in tensors)


def fingerprint(data: Dataset) -> str:
    """A hash that identifies a dataset in any folder: its kind, its box and its training bodies' files."""
    files = [(name, data.bodies[name]["sha256"]) for name in data.names("train")]
    identity = {"kind": data.kind, "low": list(data.low), "high": list(data.high), "train": files}
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()
