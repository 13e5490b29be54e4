"""Building blocks for models with very many points; torch or JAX is imported when one is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pinchpoint.kit.edges.coverage import (
        Coverage,
        Degrees,
        coverage,
        least_radius,
        radius_for,
        require_radius,
    )
    from pinchpoint.kit.edges.edge_mlp import flat_path
    from pinchpoint.kit.edges.edges import Edges
    from pinchpoint.kit.edges.graph_cache import GraphCache
    from pinchpoint.kit.edges.lattice import Lattice
    from pinchpoint.kit.edges.neighbours import lattice_edges, lattice_edges_multi, radius_edges
    from pinchpoint.kit.edges.transform import edge_transform
    from pinchpoint.kit.laplacians.derivatives import Laplace
    from pinchpoint.kit.laplacians.laplacian import kinetic_energy, laplacian, laplacian_of_batch
    from pinchpoint.kit.segments.reduce import segment_max, segment_mean, segment_softmax, segment_sum
    from pinchpoint.kit.segments.segments import Segments
    from pinchpoint.kit.segments.subset import draw_counts, sample_one, sample_subset
    from pinchpoint.kit.segments.take_rows import take_rows

__all__ = [
    "Coverage",
    "Degrees",
    "Edges",
    "GraphCache",
    "Laplace",
    "Lattice",
    "Segments",
    "coverage",
    "draw_counts",
    "edge_transform",
    "flat_path",
    "kinetic_energy",
    "laplacian",
    "laplacian_of_batch",
    "lattice_edges",
    "lattice_edges_multi",
    "least_radius",
    "radius_edges",
    "radius_for",
    "require_radius",
    "sample_one",
    "sample_subset",
    "segment_max",
    "segment_mean",
    "segment_softmax",
    "segment_sum",
    "take_rows",
]

_MODULES = {
    "Coverage": "edges.coverage",
    "Degrees": "edges.coverage",
    "Edges": "edges.edges",
    "GraphCache": "edges.graph_cache",
    "Lattice": "edges.lattice",
    "Laplace": "laplacians.derivatives",
    "kinetic_energy": "laplacians.laplacian",
    "laplacian": "laplacians.laplacian",
    "laplacian_of_batch": "laplacians.laplacian",
    "edge_transform": "edges.transform",
    "flat_path": "edges.edge_mlp",
    "lattice_edges": "edges.neighbours",
    "lattice_edges_multi": "edges.neighbours",
    "least_radius": "edges.coverage",
    "radius_edges": "edges.neighbours",
    "radius_for": "edges.coverage",
    "require_radius": "edges.coverage",
    "coverage": "edges.coverage",
    "Segments": "segments.segments",
    "draw_counts": "segments.subset",
    "sample_one": "segments.subset",
    "sample_subset": "segments.subset",
    "segment_max": "segments.reduce",
    "segment_mean": "segments.reduce",
    "segment_softmax": "segments.reduce",
    "segment_sum": "segments.reduce",
    "take_rows": "segments.take_rows",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"pinchpoint.kit.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
