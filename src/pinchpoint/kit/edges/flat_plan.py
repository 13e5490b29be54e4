"""How a transform with memory="flat" runs: its chunks and the kernels of its networks.

A plan depends on shapes, dtypes and options alone. It takes a good part of a training step's time on the
host, so it is kept with its graph (`Edges.plans`) and used again for calls that are alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pinchpoint.backends.torch import compat
from pinchpoint.kit.edges.edge_mlp import FlatPath, Layers, structure_of
from pinchpoint.kit.edges.edges import Edges
from pinchpoint.kit.edges.row_chunks import Rows

_MOST_PLANS = 16  # of a graph; then all are made again
_MOST_CHUNKS = 1024  # of a plan that is kept

Key = tuple[Any, ...]


@dataclass(frozen=True)
class FlatPlan:
    """The chunks of a transform, and how its networks run.

    bounds: the arguments of each chunk's `Rows`, without the graph, which would refer to itself. paths:
    without layers, which would keep the networks alive. chunk_bytes: those of a chunk; None for chunks of a
    given size.
    """

    bounds: list[tuple[int, int, int, int, bool]]
    paths: dict[str, FlatPath]
    chunk_bytes: int | None

    @staticmethod
    def of(parts: list[Rows], paths: dict[str, FlatPath], chunk_bytes: int | None) -> FlatPlan:
        bounds = [(part.first, part.last, part.begin, part.end, part.piece) for part in parts]
        own = {name: replace(path, layers=None) for name, path in paths.items()}
        return FlatPlan(bounds, own, chunk_bytes)

    def parts(self, graph: Edges) -> list[Rows]:
        return [Rows(graph, *bounds) for bounds in self.bounds]

    def path(self, name: str, layers: Layers | None) -> FlatPath:
        """How a network with these layers runs."""
        path = self.paths[name]
        return path if path.name == "autograd" else replace(path, layers=layers)

    def keep(self, graph: Edges, key: Key) -> None:
        if len(self.bounds) <= _MOST_CHUNKS:
            keep_in(graph, key, self)


def keep_in(graph: Edges, key: Key, value: Any) -> None:
    """Keep what is known about a kind of call with its graph."""
    if len(graph.plans) >= _MOST_PLANS:
        graph.plans.clear()
    graph.plans[key] = value


def plan_key(
    networks: dict[str, tuple[nn.Module, Layers | None]],
    x: Tensor,
    others: tuple[Tensor | None, ...],
    options: Key,
) -> Key | None:
    """Everything that a plan depends on, beside the graph; None if it may depend on more.

    others: y, f, quadrature, edge_attr. options: plain values.
    """
    if any(layers is None for _, layers in networks.values()):
        return None  # a module of any kind
    if not all(type(option) in (str, int, bool) for option in options):
        return None
    tensors = tuple(None if one is None else (one.shape, one.dtype, one.device) for one in (x, *others))
    structures = tuple(structure_of(module) for module, _ in networks.values())
    kind = x.device.type
    autocast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
    kinds = tuple(type(option) for option in options)  # True is equal to 1
    return tensors, structures, options, kinds, autocast, compat.products_use_tf32()
