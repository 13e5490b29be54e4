"""Arguments of the wrong type raise an error with a hint, not one of torch's own errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pinchpoint.core.errors import BadInput
from pinchpoint.kit import (
    Edges,
    GraphCache,
    Lattice,
    coverage,
    edge_transform,
    flat_path,
    lattice_edges,
    least_radius,
    radius_edges,
    radius_for,
    require_radius,
)

X, Y, F = torch.rand(5, 3), torch.rand(6, 3), torch.randn(6, 4)
INDEX = torch.tensor([[0, 5, 2], [4, 0, 0]])
MLP = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))
BOX = Lattice((3, 3, 3), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def transform(**other: Any) -> Any:
    return edge_transform(**{"mlp": MLP, "x": X, "y": Y, "f": F, "edges": INDEX, **other})


@pytest.mark.parametrize(
    ("call", "what", "hint"),
    [
        (lambda: transform(edges=INDEX.numpy()), "`edges` is a numpy.ndarray", r"torch\.as_tensor\(edges\)"),
        (lambda: transform(edges=INDEX.tolist()), "`edges` is a list", "as_tensor"),
        (lambda: transform(edges=None), "`edges` is None", r"radius_edges\(x, y, radius\)"),
        (lambda: transform(edges="abc"), "`edges` is a str", r"radius_edges\(x, y, radius\)"),
        (lambda: transform(x="abc"), "`x` is a str", r"Give a torch tensor\."),
        (lambda: flat_path(MLP, like="cuda"), "`like` is a str", "such as x"),
        (lambda: flat_path(MLP, like=X.numpy()), "`like` is a numpy.ndarray", r"as_tensor\(like\)"),
        (lambda: flat_path(lambda edges: edges, like=X), "the function <lambda>", "nn.Module"),
        (lambda: transform(x=X.numpy()), "`x` is a numpy.ndarray", r"as_tensor\(x\)"),
        (lambda: transform(y=Y.tolist()), "`y` is a list", "as_tensor"),
        (lambda: transform(f=F.numpy()), "`f` is a numpy.ndarray", "as_tensor"),
        (lambda: transform(f=F[:, 0]), r"`f` has shape \(6,\)", r"f\[:, None\]"),
        (
            lambda: transform(weights="quadrature", quadrature=[1.0] * 6),
            "`quadrature` is a list",
            "as_tensor",
        ),
        (
            lambda: transform(mlp=lambda edges: edges[:, :4]),
            "the function <lambda>",
            "your own nn.Module",
        ),
        (lambda: transform(mlp=nn.Linear), "the class Linear", r"Linear\(\.\.\.\)"),
        (lambda: transform(mlp=None), "`mlp` is None", "nn.Module"),
        (
            lambda: transform(weights="attention", attention=lambda d: d[:, :1]),
            "`attention` is the function",
            "nn.Module",
        ),
        (lambda: transform(chunk="big"), "chunk is 'big'", "'auto'"),
        (lambda: transform(chunk=1.5), "chunk is 1.5", "'auto'"),
        (lambda: transform(chunk=None), "chunk is None", "'auto'"),
        (lambda: transform(chunk=True), "chunk is True", "'auto'"),
        (
            lambda: transform(x=X.double(), y=Y.double()),
            "`mlp` is in torch.float32, but the edges are in torch.float64",
            r"mlp\.to\(",
        ),
        (lambda: radius_edges(X.numpy(), Y.numpy(), 0.5), "`x` is a numpy.ndarray", r"as_tensor\(x\)"),
        (lambda: radius_edges(X, Y.tolist(), 0.5), "`y` is a list", r"as_tensor\(y\)"),
        (lambda: radius_edges(X, Y, "0.5"), "radius is '0.5'", "a number"),
        (lambda: radius_edges(X, Y, [0.5]), "radius is", "a number"),
        (lambda: lattice_edges(X.numpy(), BOX, 0.5), "`points` is a numpy.ndarray", "as_tensor"),
        (lambda: lattice_edges(X, (3, 3, 3), 0.5), r"lattice is \(3, 3, 3\)", "Lattice"),
        (lambda: radius_for(X, (3, 3, 3)), "lattice is", "Lattice"),
        (lambda: least_radius(X.numpy(), BOX), "`points` is a numpy.ndarray", "as_tensor"),
        (lambda: require_radius(X.numpy(), BOX, 0.5), "`points` is a numpy.ndarray", "as_tensor"),
        (lambda: Lattice(3, (0.0,), (1.0,)), "lattice's shape is 3", "each axis"),
        (lambda: coverage(INDEX), "edges are a Tensor", "Edges.from_index"),
        (
            lambda: Edges(np.zeros(3), torch.zeros(0, dtype=torch.int32), 4),
            "`offsets` is a numpy.ndarray",
            "as_tensor",
        ),
        (lambda: Edges.from_index(INDEX, queries=5.0, sources=6), "`queries` is 5.0", "number of queries"),
        (lambda: Edges.from_index(INDEX, queries=5, sources=-1), "`sources` is -1", "number of sources"),
    ],
)
def test_an_argument_of_the_wrong_type_is_refused_with_its_type_and_what_to_give(
    call: Callable[[], Any], what: str, hint: str
) -> None:
    with pytest.raises(BadInput, match=what) as refused:
        call()
    assert refused.match(f"(?s)hint.*{hint}")


def test_a_graph_cache_requires_a_lattice_too(tmp_path: Any) -> None:
    with pytest.raises(BadInput, match="lattice is None"):
        GraphCache(tmp_path).lattice_edges(X, None, [0.5])  # pyright: ignore[reportArgumentType]


def test_numpy_numbers_are_accepted() -> None:
    assert torch.equal(transform(chunk=np.int64(2)), transform(chunk=2))
    assert radius_edges(X, Y, np.float32(0.5)).count == radius_edges(X, Y, float(np.float32(0.5))).count


def test_a_module_that_casts_for_itself_may_have_weights_of_another_dtype() -> None:
    class Casting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = MLP

        def forward(self, edges: torch.Tensor) -> torch.Tensor:
            return self.inner(edges.float()).double()

    doubles = {"x": X.double(), "y": Y.double(), "f": F.double()}
    assert torch.allclose(transform(mlp=Casting(), **doubles).float(), transform(), atol=1e-6)


def test_the_repr_of_edges_counts_them() -> None:
    edges = Edges.from_index(torch.arange(1000) * torch.tensor([[1], [0]]), queries=2, sources=1000)
    assert len(edges) == edges.count == 1000
    assert repr(edges) == "Edges(1,000 edges from 1,000 sources to 2 destinations, cpu)"
    assert Edges.from_index(INDEX[:, :0], queries=5, sources=6), "a graph without edges is a graph"
