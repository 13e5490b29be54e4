"""Fast building blocks for models of very many points; torch or JAX is imported when one is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pinchpoint.kit.covering import Coverage, Degrees, coverage, least_radius, radius_for, require_radius
    from pinchpoint.kit.derivatives import Laplace
    from pinchpoint.kit.edges import Edges
    from pinchpoint.kit.graph_cache import GraphCache
    from pinchpoint.kit.laplace import kinetic_energy, laplacian, laplacian_of_batch
    from pinchpoint.kit.lattice import Lattice
    from pinchpoint.kit.neighbours import lattice_edges, lattice_edges_multi, radius_edges
    from pinchpoint.kit.reduce import segment_max, segment_mean, segment_softmax, segment_sum
    from pinchpoint.kit.segments import Segments
    from pinchpoint.kit.subset import draw_counts, sample_one, sample_subset
    from pinchpoint.kit.take import take_rows
    from pinchpoint.kit.transform import edge_transform

__all__ = [
    "Coverage", "Degrees", "Edges", "GraphCache", "Laplace", "Lattice", "Segments", "coverage", "draw_counts", "edge_transform",
    "kinetic_energy", "laplacian", "laplacian_of_batch", "lattice_edges", "lattice_edges_multi", "least_radius", "radius_edges",
    "radius_for", "require_radius", "sample_one", "sample_subset", "segment_max", "segment_mean", "segment_softmax",
    "segment_sum", "take_rows",
]  # fmt: skip

_WHERE = {
    "Coverage": "covering", "Degrees": "covering", "Edges": "edges", "GraphCache": "graph_cache", "Lattice": "lattice",
    "Laplace": "derivatives", "kinetic_energy": "laplace", "laplacian": "laplace", "laplacian_of_batch": "laplace",
    "edge_transform": "transform", "lattice_edges": "neighbours", "lattice_edges_multi": "neighbours",
    "least_radius": "covering", "radius_edges": "neighbours", "radius_for": "covering", "require_radius": "covering",
    "coverage": "covering", "Segments": "segments", "draw_counts": "subset", "sample_one": "subset", "sample_subset": "subset",
    "segment_max": "reduce", "segment_mean": "reduce", "segment_softmax": "reduce", "segment_sum": "reduce",
    "take_rows": "take",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"pinchpoint.kit.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
