"""Fast building blocks for models of very many points; torch is imported when one is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pinchpoint.kit.edges import Edges
    from pinchpoint.kit.neighbours import Lattice, lattice_edges, radius_edges
    from pinchpoint.kit.transform import edge_transform

__all__ = ["Edges", "Lattice", "edge_transform", "lattice_edges", "radius_edges"]

_WHERE = {
    "Edges": "edges", "Lattice": "neighbours", "edge_transform": "transform", "lattice_edges": "neighbours",
    "radius_edges": "neighbours",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"pinchpoint.kit.{_WHERE[name]}"), name)
