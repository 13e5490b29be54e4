"""The bodies of a data set as a trainer takes them: samples and their graphs, each made once.

Both are kept in memory up to a limit. Graphs are kept on disk too, by the content of the points and the
code that made them, so that a resumed run makes none again: most of their time goes into the statistics
of every point's surroundings, which the edges alone would not save.
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

HELD_BYTES = 4 * GIB
_DECIDING = (
    "low",
    "high",
    "radii",
    "lattice",
    "geometry",
    "local_radii",
    "turning",
    "compat",
    "neighbour_cap",
)
_DIGEST = 32  # bytes of the hash a file begins with


class Supply:
    """Samples and graphs by name, on the CPU. graphs: the folder that keeps graphs; none are kept without it.

    pinned: what is held lies in pinned memory, from which a GPU fetches it while it computes.
    """

    def __init__(
        self,
        data: Dataset,
        config: OperatorConfig,
        *,
        graphs: Path | None = None,
        held_bytes: int = HELD_BYTES,
        pinned: bool = False,
    ) -> None:
        self.data, self.config, self.graphs, self.pinned = data, config, graphs, pinned
        self._held: dict[str, tuple[Sample, Graph]] = {}
        self._room = held_bytes

    def get(self, name: str) -> tuple[Sample, Graph]:
        if name in self._held:
            return self._held[name]
        sample = self.data.sample(name)
        made = sample, self._graph(sample)
        size = sum(tensor.nbytes for tensor in _tensors(*made))
        if size <= self._room:
            self._room -= size
            if self.pinned:
                made = made[0].mapped(torch.Tensor.pin_memory), made[1].mapped(torch.Tensor.pin_memory)
            self._held[name] = made
        return made

    def _graph(self, sample: Sample) -> Graph:
        path = None if self.graphs is None else self.graphs / f"{_key(sample, self.config)}.graph"
        found = None if path is None else _read(path)
        if found is None:
            found = graph_of(sample.points, self.config, areas=sample.areas, features=sample.features)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(path, _packed(found))
        return found


def _key(sample: Sample, config: OperatorConfig) -> str:
    """What a graph follows from: the points' own bytes, the configuration, and the code."""
    digest = hashlib.sha256(json.dumps([getattr(config, name) for name in _DECIDING]).encode())
    for file in (geometry.__file__, graph.__file__, surroundings.__file__):
        digest.update(Path(file).read_bytes())
    normals = graph.normals_of(sample.features, config)
    for tensor in (sample.points, sample.areas, *(() if normals is None else (normals,))):
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _packed(made: Graph) -> bytes:
    """A hash of what follows, and the graph's tensors."""
    plain: list[Any] = [
        [(e.offsets, e.sources, e.source_count) for e in edges] for edges in (made.encoder, made.decoder)
    ]
    plain += [list(made.token_statistics), list(made.point_statistics)]
    buffer = io.BytesIO()
    torch.save(plain, buffer)
    return hashlib.sha256(buffer.getbuffer()).digest() + buffer.getvalue()


def _read(path: Path) -> Graph | None:
    """The graph of a file; None where there is none or a damaged one, which is then made again."""
    data = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
        return None
    encoder, decoder, tokens, points = torch.load(io.BytesIO(data[_DIGEST:]), weights_only=True)
    return Graph(
        tuple(Edges(*e) for e in encoder), tuple(Edges(*e) for e in decoder), tuple(tokens), tuple(points)
    )


def _tensors(sample: Sample, made: Graph) -> list[torch.Tensor]:
    edges = [part for edges in (*made.encoder, *made.decoder) for part in (edges.offsets, edges.sources)]
    return [
        sample.points,
        sample.features,
        sample.target,
        sample.areas,
        *edges,
        *made.token_statistics,
        *made.point_statistics,
    ]


def fingerprint(data: Dataset) -> str:
    """What a data set is, wherever it lies: its kind, its box and the files of its training bodies."""
    files = [(name, data.bodies[name]["sha256"]) for name in data.names("train")]
    said = {"kind": data.kind, "low": list(data.low), "high": list(data.high), "train": files}
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()
